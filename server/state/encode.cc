// MachineState::Encode.
#include <algorithm>
#include <utility>
#include <vector>

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
  if (from.result.team.has_value()) Encode(*from.result.team, to->mutable_team());
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

void Encode(const PendingOp& from, state::PendingOp* to) {
  v1::OperateRequest op;
  ToProto(from.op, &op);
  to->set_op(op.SerializeAsString());
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

void Encode(const Team& from, state::Team* to) {
  Encode(from.info, to->mutable_info());
  to->mutable_position()->Assign(from.position.begin(), from.position.end());
  to->set_next_k(from.next_k);
  if (from.op.has_value()) Encode(*from.op, to->mutable_op());
  for (const Outcome& outcome : from.history) Encode(outcome, to->add_history());
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

void Encode(const Job& from, state::Job* to) {
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
  for (const Member& member : from.ranks) Encode(member, to->add_ranks());
  for (const auto& [offset, allocation] : from.allocations) {
    Encode(offset, allocation, to->add_allocations());
  }
  for (const auto& [id, team] : from.teams) Encode(team, to->add_teams());
  for (const Team& team : from.past_teams) Encode(team, to->add_past_teams());
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

// Those of a map by their keys, in order.
template <typename Map>
std::vector<const typename Map::mapped_type*> InOrder(const Map& map) {
  std::vector<std::pair<typename Map::key_type, const typename Map::mapped_type*>> sorted;
  for (const auto& [key, value] : map) sorted.emplace_back(key, &value);
  std::sort(sorted.begin(), sorted.end());
  std::vector<const typename Map::mapped_type*> values;
  for (const auto& [key, value] : sorted) values.push_back(value);
  return values;
}

}  // namespace

std::string MachineState::Encode(const JobMachine& machine) {
  const JobMachine::Impl& impl = *machine.impl_;
  state::MachineState to;
  to.set_version(1);
  for (const Ledger::DeviceAccount& device : impl.ledger_.devices()) {
    state::Device* one = to.add_devices();
    one->set_uuid(device.uuid);
    one->set_memory_bytes(device.memory_bytes);
    one->set_granularity_bytes(device.granularity_bytes);
    if (device.driver_free_bytes.has_value()) one->set_driver_free_bytes(*device.driver_free_bytes);
  }
  for (const auto* session : InOrder(impl.sessions_)) {
    state::Session* one = to.add_sessions();
    one->set_id(session->id.value);
    server::Encode(session->caller, one->mutable_caller());
    one->set_ending(session->ending);
    if (session->lease.has_value()) server::Encode(*session->lease, one->mutable_lease());
    one->set_created_ns(Nanoseconds(session->created));
    one->set_past_job(session->past_job.value);
    server::Encode(session->past_status, one->mutable_past_status());
    one->set_join_number(session->join_number);
    one->set_process_began_ns(Nanoseconds(session->process_began));
  }
  for (const auto& [id, job] : impl.jobs_) {
    state::Job* one = to.add_jobs();
    server::Encode(*job, one);
    for (Rank rank = 0; rank < job->n_ranks(); ++rank) {
      one->mutable_ranks(static_cast<int>(rank))->set_starved(impl.starved_.contains({id, rank}));
    }
  }
  for (const auto* segment : InOrder(impl.segments_)) {
    state::Segment* one = to.add_segments();
    one->set_id(segment->info.id.value);
    one->set_rank(segment->info.rank);
    one->set_index(segment->info.index);
    one->set_offset_bytes(segment->info.offset_bytes);
    one->set_bytes(segment->info.bytes);
    one->set_job(segment->job.value);
    one->set_job_name(segment->holder.job);
    server::Encode(segment->holder.party, one->mutable_party());
    one->set_device_index(segment->device_index);
    one->set_created(segment->created);
    one->set_dropping(segment->dropping);
    one->set_registered(segment->registered);
  }
  for (const auto& [key, when] : impl.deadlines_.all()) {
    state::Deadline* one = to.add_deadlines();
    one->set_job(key.job.value);
    one->set_kind(static_cast<uint32_t>(key.kind));
    one->set_index(key.index);
    one->set_when_ns(Nanoseconds(when));
  }
  for (const auto& [account, parts] : impl.kept_.all()) {
    for (const auto& [holders, bytes] : parts) {
      state::KeptMemory* one = to.add_kept();
      server::Encode(account, one->mutable_party());
      for (const KeptMemory::Process& process : holders) {
        server::Encode(
            CallerInfo{.pid = process.pid, .party = account, .process_start = process.start},
            one->add_holders());
      }
      one->set_bytes(bytes);
    }
  }
  for (const auto& [key, abandoned] : impl.abandoned_) {
    state::AbandonedJob* one = to.add_abandoned();
    server::Encode(key.first, one->mutable_party());
    one->set_name(key.second);
    one->set_n_ranks(abandoned.n_ranks);
    one->set_when_ns(Nanoseconds(abandoned.when));
    for (const auto& [rank, gave_up] : abandoned.gave_up) {
      server::Encode(rank, gave_up, one->add_gave_up());
    }
  }
  for (const auto& [key, refused] : impl.refused_) {
    state::RefusedJoin* one = to.add_refused();
    server::Encode(key.first, one->mutable_party());
    one->set_name(key.second);
    server::Encode(refused.told, one->mutable_told());
    one->set_rank(refused.rank);
    one->set_when_ns(Nanoseconds(refused.when));
    one->set_until_ns(Nanoseconds(refused.until));
    one->mutable_untold()->Assign(refused.untold.begin(), refused.untold.end());
  }
  to.set_next_job(impl.next_job_);
  to.set_next_segment(impl.next_segment_);
  to.set_next_grow(impl.next_grow_);
  to.set_stopping(impl.stopping_);
  // There is no map in the message, so its bytes are the same each time.
  return to.SerializeAsString();
}

}  // namespace iris::server
