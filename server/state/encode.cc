// MachineState::Encode, and EncodeChange of what one input has changed.
#include <algorithm>
#include <utility>
#include <vector>

#include "google/protobuf/arena.h"
#include "proto/status/code.h"
#include "server/job/job_machine_impl.h"
#include "server/state/machine_state.h"
#include "server/state/machine_state.pb.h"
#include "server/state/operation_proto.h"

namespace iris::server {
namespace {

int64_t Nanoseconds(absl::Time time) { return absl::ToUnixNanos(time); }

void Encode(const Party& from, state::Party* to) {
  to->set_uid(from.uid);
  to->set_container(from.container);
  to->set_maker(from.maker);
}

void Encode(const CallerInfo& from, state::Process* to) {
  to->set_pid(from.pid);
  Encode(from.party, to->mutable_party());
  to->set_gid(from.gid);
  to->set_start(from.process_start);
}

void Encode(const absl::Status& from, state::Status* to) {
  to->set_code(proto::NumberOf(from.code()));
  to->set_text(std::string(from.message()));
}

void Encode(const LeaseRef& from, state::LeaseRef* to) {
  to->set_job(from.job.value);
  to->set_rank(from.rank);
}

void Encode(const Lease& from, state::Lease* to) {
  Encode(from.process, to->mutable_process());
  to->set_held(from.held);
  to->set_session(from.session.value);
}

void Encode(const Member& from, state::Member* to) {
  to->set_state(static_cast<uint32_t>(from.state));
  Encode(from.lease, to->mutable_lease());
  to->set_device_index(from.device_index);
  to->set_prealloc(from.prealloc);
  to->set_base(from.base);
  to->set_joined_ns(Nanoseconds(from.joined));
  to->set_keeps_memory(from.keeps_memory);
  to->set_join_call(from.join_call.value);
  to->set_answered_join(from.answered_join.value);
  for (const CallId call : from.mapped_calls) to->add_mapped_calls(call.value);
  for (const SegmentId segment : from.segments) to->add_segments(segment.value);
  for (const AwaitedBarrier& barrier : from.barriers) {
    state::AwaitedBarrier* one = to->add_barriers();
    one->set_call(barrier.call.value);
    one->set_team(barrier.team);
    one->set_epoch(barrier.epoch);
    one->mutable_missing()->Assign(barrier.missing.begin(), barrier.missing.end());
    one->set_only_thread(barrier.only_thread);
    one->set_entered(barrier.entered);
    one->set_looked(barrier.looked);
  }
}

void Encode(const TeamInfo& from, state::TeamInfo* to) {
  to->set_id(from.id);
  to->mutable_ranks()->Assign(from.ranks.begin(), from.ranks.end());
  to->set_barrier_slot(from.barrier_slot);
  to->set_barrier_start_epoch(from.barrier_start_epoch);
  to->set_sync_offset_bytes(from.sync_offset_bytes);
}

void Encode(const Outcome& from, state::Outcome* to) {
  to->set_k(from.k);
  Encode(from.status, to->mutable_status());
  to->set_offset_bytes(from.result.offset_bytes);
  to->set_value(std::string(from.result.value.view()));
  for (const TeamInfo& team : from.result.teams) Encode(team, to->add_teams());
  to->set_heap_bytes(from.result.heap_bytes);
  if (from.result.opened.has_value()) {
    to->mutable_opened()->set_offset_bytes(from.result.opened->offset_bytes);
    to->mutable_opened()->set_bytes(from.result.opened->bytes);
    to->mutable_opened()->set_dtype(from.result.opened->dtype);
    to->mutable_opened()->set_registered(from.result.opened->registered);
  }
}

void Encode(Rank rank, const GaveUp& from, state::GaveUp* to) {
  to->set_rank(rank);
  to->set_pid(from.pid);
  to->set_when_ns(Nanoseconds(from.when));
  to->set_waited_ns(absl::ToInt64Nanoseconds(from.waited));
  to->set_timed_out(from.timed_out);
}

void EncodeArguments(const PendingOp& from, state::PendingOp* to) {
  v1::OperateRequest op;
  ToProto(from.op, &op);
  to->set_op(op.SerializeAsString());
}

// Without its arguments.
void Encode(const PendingOp& from, state::PendingOp* to) {
  to->set_first(static_cast<uint32_t>(from.first));
  for (size_t i = 0; i < from.asked.size(); ++i) {
    state::PendingOp::Asked* member = to->add_members();
    member->set_asked(from.asked[i]);
    for (const CallId call : from.calls[i]) member->add_calls(call.value);
    member->set_lead_bytes(from.given[i].lead_bytes);
    for (const SegmentId piece : from.given[i].pieces) member->add_pieces(piece.value);
    member->set_asked_alone(from.asked_alone[i]);
  }
  to->set_grown(from.grown);
  to->set_hurried(static_cast<uint32_t>(from.hurried));
  to->set_hurried_timeout_ns(absl::ToInt64Nanoseconds(from.hurried_timeout));
  to->set_since_ns(Nanoseconds(from.since));
}

// Without its outcomes and the arguments of its operation.
void EncodeHead(const Team& from, state::Team* to) {
  Encode(from.info, to->mutable_info());
  to->mutable_position()->Assign(from.position.begin(), from.position.end());
  to->set_next_k(from.next_k);
  if (from.op.has_value()) Encode(*from.op, to->mutable_op());
}

void Encode(const Team& from, state::Team* to) {
  EncodeHead(from, to);
  if (from.op.has_value()) EncodeArguments(*from.op, to->mutable_op());
  for (const Outcome& outcome : from.history) Encode(outcome, to->add_history());
}

void EncodeChange(const Team& from, state::TeamChange* to) {
  EncodeHead(from, to->mutable_team());
  if (from.op.has_value() && from.op->op.changed()) {
    EncodeArguments(*from.op, to->mutable_team()->mutable_op());
  }
  to->set_n_outcomes(from.history.size());
  for (size_t i = from.history.size() - from.history.n_new(); i < from.history.size(); ++i) {
    Encode(from.history[i], to->add_added());
  }
}

void Encode(uint64_t offset_bytes, const HeapAllocation& from, state::Allocation* to) {
  to->set_offset_bytes(offset_bytes);
  to->set_bytes(from.bytes);
  to->set_alignment_bytes(from.alignment_bytes());
  to->set_name(std::string(from.label.name()));
  const TensorInfo tensor = from.label.tensor();
  to->mutable_tensor()->set_dtype(tensor.dtype);
  to->mutable_tensor()->mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  to->set_team(from.team);
  to->set_k(from.k);
  to->set_created_ns(Nanoseconds(from.created));
  to->set_sync(from.sync);
  for (const auto& [rank, n] : *from.opens) {
    state::Opens* one = to->add_opens();
    one->set_rank(rank);
    one->set_n(n);
  }
  to->set_freed(from.freed);
  for (const SegmentId piece : from.registered->pieces) to->add_pieces(piece.value);
  to->set_lead_bytes(from.registered->lead_bytes);
  to->set_piece_bytes(from.registered->piece_bytes);
}

void Encode(const Growth& from, state::Growth* to) {
  to->set_id(from.id.value);
  to->set_team(from.team);
  to->set_bytes(from.bytes);
  to->set_mapping(from.mapping);
  for (const SegmentId segment : from.segments) to->add_segments(segment.value);
  for (const bool created : from.created) to->add_created(created);
  for (const bool mapped : from.mapped) to->add_mapped(mapped);
}

// Without ranks, allocations, teams and past teams.
void EncodeHead(const Job& from, state::Job* to) {
  to->set_id(from.id.value);
  to->set_name(from.name);
  Encode(from.party, to->mutable_party());
  to->set_state(static_cast<uint32_t>(from.state));
  to->set_broken_reason(from.broken_reason);
  to->set_epoch(from.epoch);
  to->set_heap_bytes_initial(from.heap_bytes_initial);
  to->set_heap_bytes(from.heap_bytes);
  to->set_stride_bytes(from.stride_bytes);
  to->set_team_sync_bytes(from.team_sync_bytes);
  to->set_same_address(from.same_address);
  to->set_created_ns(Nanoseconds(from.created));
  to->set_next_team(from.next_team);
  for (const auto& [slot, epoch] : from.slot_epochs) {
    state::SlotEpoch* one = to->add_slot_epochs();
    one->set_slot(slot);
    one->set_epoch(epoch);
  }
  if (from.growth.has_value()) Encode(*from.growth, to->mutable_growth());
  for (const TeamId team : from.growth_queue) to->add_growth_queue(team);
  to->set_last_published_grow(from.last_published.value);
  to->set_moment(from.moment);
  if (from.last_growth.grow.value != 0) {
    to->mutable_last_growth()->set_grow(from.last_growth.grow.value);
    to->mutable_last_growth()->set_published(from.last_growth.published);
    to->mutable_last_growth()->set_reason(from.last_growth.reason);
  }
  for (const auto& [rank, gave_up] : from.gave_up) Encode(rank, gave_up, to->add_gave_up());
}

// The keys of a map, in order.
template <typename Map>
std::vector<typename Map::key_type> KeysOf(const Map& map) {
  std::vector<typename Map::key_type> keys;
  for (const auto& [key, value] : map) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace

// Each thing of the machine by itself: for the whole state, and for a change.
class MachineState::Encoder {
 public:
  explicit Encoder(const JobMachine::Impl& impl) : impl_(impl) {}

  void Run(state::MachineState* to) const {
    to->set_version(1);
    Devices(to->mutable_devices());
    for (const SessionId id : KeysOf(impl_.sessions_)) Session(id, to->add_sessions());
    for (const auto& [id, job] : impl_.jobs_) {
      state::Job* one = to->add_jobs();
      EncodeHead(*job, one);
      for (Rank rank = 0; rank < job->n_ranks(); ++rank) OneRank(*job, rank, one->add_ranks());
      for (const auto& [offset, allocation] : job->allocations) {
        server::Encode(offset, allocation, one->add_allocations());
      }
      for (const auto& [team_id, team] : job->teams) server::Encode(team, one->add_teams());
      for (const Team& team : *job->past_teams) server::Encode(team, one->add_past_teams());
    }
    for (const SegmentId id : KeysOf(impl_.segments_)) Segment(id, to->add_segments());
    for (const auto& [key, when] : impl_.deadlines_.all()) Deadline(key, to->add_deadlines());
    Kept(to->mutable_kept());
    for (const auto& [key, abandoned] : impl_.abandoned_) Abandoned(key, to->add_abandoned());
    for (const auto& [key, refused] : impl_.refused_) Refused(key, to->add_refused());
    to->set_next_job(impl_.next_job_);
    to->set_next_segment(impl_.next_segment_);
    to->set_next_grow(impl_.next_grow_);
    to->set_stopping(impl_.stopping_);
  }

  void RunChange(state::Change* to) const {
    to->mutable_counters()->set_next_job(impl_.next_job_);
    to->mutable_counters()->set_next_segment(impl_.next_segment_);
    to->mutable_counters()->set_next_grow(impl_.next_grow_);
    to->mutable_counters()->set_stopping(impl_.stopping_);
    if (impl_.driver_free_changed_) Devices(to->mutable_devices()->mutable_all());
    for (const SessionId id : impl_.sessions_.marks().All()) {
      if (impl_.sessions_.contains(id)) {
        Session(id, to->add_sessions());
      } else {
        to->add_gone_sessions(id.value);
      }
    }
    for (const JobId id : impl_.jobs_.marks().All()) {
      if (impl_.jobs_.contains(id)) {
        ChangeOf(*impl_.jobs_.at(id), to->add_jobs());
      } else {
        to->add_gone_jobs(id.value);
      }
    }
    for (const SegmentId id : impl_.segments_.marks().All()) {
      if (impl_.segments_.contains(id)) {
        Segment(id, to->add_segments());
      } else {
        to->add_gone_segments(id.value);
      }
    }
    const auto& deadlines = impl_.deadlines_.all();
    for (const DeadlineKey& key : deadlines.marks().All()) {
      Deadline(key, deadlines.contains(key) ? to->add_deadlines() : to->add_gone_deadlines());
    }
    if (impl_.kept_.changed()) Kept(to->mutable_kept()->mutable_all());
    for (const auto& key : impl_.abandoned_.marks().All()) {
      Abandoned(key,
                impl_.abandoned_.contains(key) ? to->add_abandoned() : to->add_gone_abandoned());
    }
    for (const auto& key : impl_.refused_.marks().All()) {
      Refused(key, impl_.refused_.contains(key) ? to->add_refused() : to->add_gone_refused());
    }
  }

 private:
  using Name = std::pair<Party, std::string>;

  void ChangeOf(const Job& job, state::JobChange* to) const {
    EncodeHead(job, to->mutable_job());
    for (const size_t rank : job.ranks.marks().All()) {
      state::RankChange* one = to->add_ranks();
      one->set_rank(static_cast<Rank>(rank));
      OneRank(job, static_cast<Rank>(rank), one->mutable_member());
    }
    for (const uint64_t offset : job.allocations.marks().All()) {
      if (const HeapAllocation* const allocation = job.allocations.Find(offset)) {
        server::Encode(offset, *allocation, to->add_allocations());
      } else {
        to->add_gone_allocations(offset);
      }
    }
    for (const TeamId id : job.teams.marks().All()) {
      if (const Team* const team = job.teams.Find(id)) {
        server::EncodeChange(*team, to->add_teams());
      } else {
        to->add_gone_teams(id);
      }
    }
    if (!job.past_teams.changed()) return;
    for (const Team& team : *job.past_teams) {
      server::Encode(team, to->mutable_past_teams()->add_all());
    }
    (void)to->mutable_past_teams();  // none is a list, too
  }

  void Devices(google::protobuf::RepeatedPtrField<state::Device>* to) const {
    for (const Ledger::DeviceAccount& device : impl_.ledger_.devices()) {
      state::Device* one = to->Add();
      one->set_uuid(device.uuid);
      one->set_memory_bytes(device.memory_bytes);
      one->set_granularity_bytes(device.granularity_bytes);
      if (device.driver_free_bytes.has_value()) {
        one->set_driver_free_bytes(*device.driver_free_bytes);
      }
    }
  }

  void Session(SessionId id, state::Session* to) const {
    const JobMachine::Impl::Session& session = impl_.sessions_.at(id);
    to->set_id(session.id.value);
    server::Encode(session.caller, to->mutable_caller());
    to->set_ending(session.ending);
    if (session.lease.has_value()) server::Encode(*session.lease, to->mutable_lease());
    to->set_created_ns(Nanoseconds(session.created));
    to->set_past_job(session.past_job.value);
    server::Encode(session.past_status, to->mutable_past_status());
    to->set_join_number(session.join_number);
    to->set_process_began_ns(Nanoseconds(session.process_began));
  }

  void OneRank(const Job& job, Rank rank, state::Member* to) const {
    server::Encode(job.ranks[rank], to);
    to->set_starved(impl_.starved_.contains({job.id, rank}));
  }

  void Segment(SegmentId id, state::Segment* to) const {
    const JobMachine::Impl::Segment& segment = impl_.segments_.at(id);
    to->set_id(segment.info.id.value);
    to->set_rank(segment.info.rank);
    to->set_index(segment.info.index);
    to->set_offset_bytes(segment.info.offset_bytes);
    to->set_bytes(segment.info.bytes);
    to->set_job(segment.job.value);
    to->set_job_name(segment.holder.job);
    server::Encode(segment.holder.party, to->mutable_party());
    to->set_device_index(segment.device_index);
    to->set_created(segment.created);
    to->set_dropping(segment.dropping);
    to->set_registered(segment.registered);
  }

  void Deadline(const DeadlineKey& key, state::Deadline* to) const {
    to->set_job(key.job.value);
    to->set_kind(static_cast<uint32_t>(key.kind));
    to->set_index(key.index);
    if (const auto when = impl_.deadlines_.Get(key)) to->set_when_ns(Nanoseconds(*when));
  }

  void Kept(google::protobuf::RepeatedPtrField<state::KeptMemory>* to) const {
    for (const auto& [account, parts] : impl_.kept_->all()) {
      for (const auto& [holders, bytes] : parts) {
        state::KeptMemory* one = to->Add();
        server::Encode(account, one->mutable_party());
        for (const KeptMemory::Process& process : holders) {
          server::Encode(
              CallerInfo{.pid = process.pid, .party = account, .process_start = process.start},
              one->add_holders());
        }
        one->set_bytes(bytes);
      }
    }
  }

  // Of one that is gone, the name alone.
  void Abandoned(const Name& key, state::AbandonedJob* to) const {
    server::Encode(key.first, to->mutable_party());
    to->set_name(key.second);
    const AbandonedJob* const abandoned = impl_.abandoned_.Find(key);
    if (abandoned == nullptr) return;
    to->set_n_ranks(abandoned->n_ranks);
    to->set_when_ns(Nanoseconds(abandoned->when));
    for (const auto& [rank, gave_up] : abandoned->gave_up) {
      server::Encode(rank, gave_up, to->add_gave_up());
    }
  }

  void Refused(const Name& key, state::RefusedJoin* to) const {
    server::Encode(key.first, to->mutable_party());
    to->set_name(key.second);
    const RefusedJoin* const refused = impl_.refused_.Find(key);
    if (refused == nullptr) return;
    server::Encode(refused->told, to->mutable_told());
    to->set_rank(refused->rank);
    to->set_when_ns(Nanoseconds(refused->when));
    to->set_until_ns(Nanoseconds(refused->until));
    to->mutable_untold()->Assign(refused->untold.begin(), refused->untold.end());
  }

  const JobMachine::Impl& impl_;
};

std::string MachineState::Encode(const JobMachine& machine) {
  google::protobuf::Arena arena;
  auto* const to = google::protobuf::Arena::CreateMessage<state::MachineState>(&arena);
  Encoder(*machine.impl_).Run(to);
  // There is no map in the message, so its bytes are the same each time.
  return to->SerializeAsString();
}

void MachineState::EncodeChange(const JobMachine& machine, std::string* to) {
  // The first block is enough for most changes.
  char block[4096];
  google::protobuf::ArenaOptions options;
  options.initial_block = block;
  options.initial_block_size = sizeof(block);
  google::protobuf::Arena arena(options);
  auto* const change = google::protobuf::Arena::CreateMessage<state::Change>(&arena);
  Encoder(*machine.impl_).RunChange(change);
  change->AppendToString(to);
}

}  // namespace iris::server
