// MachineState::Encode, and EncodeChange for the changes of one input.

#include "google/protobuf/arena.h"
#include "server/job/job_machine_impl.h"
#include "server/state/machine_state.h"
#include "server/state/machine_state.pb.h"
#include "server/state/node_proto.h"
#include "server/state/operation_proto.h"
#include "server/state/state_fields.h"

namespace iris::server {
namespace {

void WriteArguments(const PendingOp& from, state::PendingOp* to) {
  v1::OperateRequest op;
  ToProto(from.op, &op);
  to->set_op(op.SerializeAsString());
}

// Writes a team without outcomes and the arguments of its operation.
void WriteHead(const Team& from, state::Team* to) {
  Write(from, to);
  if (!from.op.has_value()) return;
  Write(*from.op, to->mutable_op());
  for (size_t i = 0; i < from.op->asked.size(); ++i) {
    state::PendingOp::Asked* const member = to->mutable_op()->add_members();
    member->set_asked(from.op->asked[i]);
    for (const CallId call : from.op->calls[i]) member->add_calls(call.value);
    Write(from.op->given[i], member);
    member->set_asked_alone(from.op->asked_alone[i]);
  }
}

void WriteTeam(const Team& from, state::Team* to) {
  WriteHead(from, to);
  if (from.op.has_value()) WriteArguments(*from.op, to->mutable_op());
  for (const Outcome& outcome : from.history) Write(outcome, to->add_history());
}

void WriteChange(const Team& from, state::TeamChange* to) {
  WriteHead(from, to->mutable_team());
  if (from.op.has_value() && from.op->op.changed()) {
    WriteArguments(*from.op, to->mutable_team()->mutable_op());
  }
  to->set_n_outcomes(from.history.size());
  for (size_t i = from.history.size() - from.history.n_new(); i < from.history.size(); ++i) {
    Write(from.history[i], to->add_added());
  }
}

void WriteAllocation(const HeapAllocations::value_type& from, state::Allocation* to) {
  const auto& [offset_bytes, allocation] = from;
  to->set_offset_bytes(offset_bytes);
  to->set_alignment_bytes(allocation.alignment_bytes());
  to->set_name(std::string(allocation.label.name()));
  Write(allocation.label.tensor(), to->mutable_tensor());
  Write(allocation, to);
  Write(*allocation.registered, to);
  for (const auto& opens : *allocation.opens) Write(opens, to->add_opens());
}

// Writes the messages from `begin` on.
void WriteOutbox(const Job& job, size_t begin,
                 google::protobuf::RepeatedPtrField<state::Sent>* to) {
  for (size_t i = begin; i < job.nodes->outbox.size(); ++i) {
    const SendToNode& from = job.nodes->outbox[i];
    state::Sent* const one = to->Add();
    one->set_node(from.node);
    one->set_all(from.all);
    one->set_message(EncodeNodeMessage(from.message));
  }
}

// Writes a job without ranks, allocations, teams, past teams and the outbox.
void WriteHead(const Job& from, state::Job* to) {
  Write(from, to);
  if (from.last_growth.grow.value != 0) Write(from.last_growth, to->mutable_last_growth());
}

void WriteKept(const KeptMemory& from, google::protobuf::RepeatedPtrField<state::KeptMemory>* to) {
  for (const auto& [account, parts] : from.all()) {
    for (const auto& [holders, bytes] : parts) {
      state::KeptMemory* const one = to->Add();
      Write(account, one->mutable_party());
      for (const KeptMemory::Process& process : holders) {
        Write(CallerInfo{.pid = process.pid, .party = account, .process_start = process.start},
              one->add_holders());
      }
      one->set_bytes(bytes);
    }
  }
}

// Calls `changed(entry)` for each marked entry that is in the map, and `gone(key)` for the others.
template <typename Map, typename Changed, typename Gone>
void ForMarked(const Map& map, Changed changed, Gone gone) {
  for (const auto& key : map.marks().All()) {
    const auto found = map.find(key);
    if (found == map.end()) {
      gone(key);
    } else {
      changed(*found);
    }
  }
}

}  // namespace

class MachineState::Encoder {
 public:
  explicit Encoder(const JobMachine::Impl& impl) : impl_(impl) {}

  void Run(state::MachineState* to) const {
    to->set_version(1);
    Write(impl_, to);
    for (const auto& device : impl_.ledger_.devices()) Write(device, to->add_devices());
    for (const auto& [id, session] : impl_.sessions_) Write(session, to->add_sessions());
    for (const auto& [id, job] : impl_.jobs_) {
      state::Job* const one = to->add_jobs();
      WriteHead(*job, one);
      if (job->nodes.has_value()) WriteOutbox(*job, 0, one->mutable_outbox());
      for (Rank rank = 0; rank < job->n_ranks(); ++rank) OneRank(*job, rank, one->add_ranks());
      for (const auto& entry : job->allocations) WriteAllocation(entry, one->add_allocations());
      for (const auto& [team_id, team] : job->teams) WriteTeam(team, one->add_teams());
      for (const Team& team : *job->past_teams) WriteTeam(team, one->add_past_teams());
    }
    for (const auto& entry : impl_.segments_) Write(entry.second, to->add_segments());
    for (const auto& entry : impl_.deadlines_.all()) Write(entry, to->add_deadlines());
    WriteKept(impl_.kept_, to->mutable_kept());
    for (const auto& entry : impl_.abandoned_) Write(entry, to->add_abandoned());
    for (const auto& entry : impl_.refused_) Write(entry, to->add_refused());
  }

  void RunChange(state::Change* to) const {
    Write(impl_, to->mutable_counters());
    if (impl_.driver_free_changed_) Write(impl_.ledger_, to->mutable_devices());
    ForMarked(
        impl_.sessions_, [to](const auto& entry) { Write(entry.second, to->add_sessions()); },
        [to](SessionId id) { to->add_gone_sessions(id.value); });
    ForMarked(
        impl_.jobs_, [&](const auto& entry) { ChangeOf(*entry.second, to->add_jobs()); },
        [to](JobId id) { to->add_gone_jobs(id.value); });
    ForMarked(
        impl_.segments_, [to](const auto& entry) { Write(entry.second, to->add_segments()); },
        [to](SegmentId id) { to->add_gone_segments(id.value); });
    ForMarked(
        impl_.deadlines_.all(), [to](const auto& entry) { Write(entry, to->add_deadlines()); },
        [to](const DeadlineKey& key) { Write(key, to->add_gone_deadlines()); });
    if (impl_.kept_.changed()) WriteKept(impl_.kept_, to->mutable_kept()->mutable_all());
    ForMarked(
        impl_.abandoned_, [to](const auto& entry) { Write(entry, to->add_abandoned()); },
        [to](const JobName& name) { Write(name, to->add_gone_abandoned()); });
    ForMarked(
        impl_.refused_, [to](const auto& entry) { Write(entry, to->add_refused()); },
        [to](const JobName& name) { Write(name, to->add_gone_refused()); });
  }

 private:
  void ChangeOf(const Job& job, state::JobChange* to) const {
    WriteHead(job, to->mutable_job());
    if (job.nodes.has_value()) {
      const TrackedQueue<SendToNode>& outbox = job.nodes->outbox;
      to->set_n_sent(outbox.size());
      WriteOutbox(job, outbox.size() - outbox.n_new(), to->mutable_sent());
    }
    for (const size_t rank : job.ranks.marks().All()) {
      state::RankChange* const one = to->add_ranks();
      one->set_rank(static_cast<Rank>(rank));
      OneRank(job, static_cast<Rank>(rank), one->mutable_member());
    }
    ForMarked(
        job.allocations, [to](const auto& entry) { WriteAllocation(entry, to->add_allocations()); },
        [to](uint64_t offset) { to->add_gone_allocations(offset); });
    ForMarked(
        job.teams, [to](const auto& entry) { WriteChange(entry.second, to->add_teams()); },
        [to](TeamId id) { to->add_gone_teams(id); });
    if (!job.past_teams.changed()) return;
    state::PastTeams* const past = to->mutable_past_teams();  // written even if it is empty
    for (const Team& team : *job.past_teams) WriteTeam(team, past->add_all());
  }

  void OneRank(const Job& job, Rank rank, state::Member* to) const {
    Write(job.ranks[rank], to);
    to->set_starved(impl_.starved_.contains({job.id, rank}));
  }

  const JobMachine::Impl& impl_;
};

std::string MachineState::Encode(const JobMachine& machine) {
  google::protobuf::Arena arena;
  auto* const to = google::protobuf::Arena::CreateMessage<state::MachineState>(&arena);
  Encoder(*machine.impl_).Run(to);
  // The message has no map, so its bytes are the same each time.
  return to->SerializeAsString();
}

void MachineState::EncodeChange(const JobMachine& machine, std::string* to) {
  // The first block suffices for most changes.
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
