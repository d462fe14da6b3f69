// MachineState::Decode. Whatever the bytes say is checked before anything relies on it: what
// indexes something and what the machine's code takes for granted here, the rest by
// CheckInvariants.
#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/arena.h"
#include "proto/status/code.h"
#include "proto/wire/limits.h"
#include "server/job/job_machine_impl.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"
#include "server/state/machine_state.h"
#include "server/state/machine_state.pb.h"
#include "server/state/operation_proto.h"

namespace iris::server {
namespace {

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat("state of irisd: ", parts...));
}

constexpr uint64_t kMaxKeptBytes = 1ull << 60;  // of a user
constexpr uint64_t kMaxNextId = 1ull << 53;     // of a job, a segment or a growth

absl::Time TimeOf(int64_t ns) { return absl::FromUnixNanos(ns); }

Party Decode(const state::Party& from) { return {from.uid(), from.container(), from.maker()}; }

CallerInfo Decode(const state::Process& from) {
  return {.pid = from.pid(),
          .party = Decode(from.party()),
          .gid = from.gid(),
          .process_start = from.start()};
}

absl::Status Decode(const state::Status& from) {
  return absl::Status(proto::CodeOf(from.code()), from.text());
}

TeamInfo Decode(const state::TeamInfo& from) {
  TeamInfo to;
  to.id = from.id();
  to.ranks.assign(from.ranks().begin(), from.ranks().end());
  to.barrier_slot = from.barrier_slot();
  to.barrier_start_epoch = from.barrier_start_epoch();
  to.sync_offset_bytes = from.sync_offset_bytes();
  return to;
}

Member Decode(const state::Member& from) {
  Member to;
  to.state = static_cast<RankState>(from.state());
  to.lease.process = Decode(from.lease().process());
  to.lease.held = from.lease().held();
  to.lease.session = SessionId{from.lease().session()};
  to.device_index = from.device_index();
  to.prealloc = from.prealloc();
  to.base = from.base();
  to.joined = TimeOf(from.joined_ns());
  to.keeps_memory = from.keeps_memory();
  to.join_call = CallId{from.join_call()};
  to.answered_join = CallId{from.answered_join()};
  for (const uint64_t call : from.mapped_calls()) to.mapped_calls.push_back(CallId{call});
  for (const uint64_t segment : from.segments()) to.segments.push_back(SegmentId{segment});
  for (const state::AwaitedBarrier& one : from.barriers()) {
    to.barriers.push_back({CallId{one.call()},
                           one.team(),
                           one.epoch(),
                           {one.missing().begin(), one.missing().end()},
                           one.only_thread(),
                           one.entered(),
                           one.looked()});
  }
  return to;
}

GaveUp Decode(const state::GaveUp& from) {
  return {from.pid(), TimeOf(from.when_ns()), absl::Nanoseconds(from.waited_ns()),
          from.timed_out()};
}

Outcome Decode(const state::Outcome& from) {
  Outcome to;
  to.k = from.k();
  to.status = Decode(from.status());
  to.result.offset_bytes = from.offset_bytes();
  if (!from.value().empty()) to.result.value = SharedBytes(from.value());
  for (const state::TeamInfo& team : from.teams()) to.result.teams.push_back(Decode(team));
  to.result.heap_bytes = from.heap_bytes();
  if (from.has_opened()) {
    to.result.opened = OpenedInfo{from.opened().offset_bytes(), from.opened().bytes(),
                                  from.opened().dtype(), from.opened().registered()};
  }
  return to;
}

bool IsMemberState(uint32_t state) {
  return state >= static_cast<uint32_t>(RankState::kAbsent) &&
         state <= static_cast<uint32_t>(RankState::kLeft);
}

// One job. Everything is added to `job`, whose id is known.
class JobDecoder {
 public:
  JobDecoder(const state::Job& from, Job* job) : from_(from), job_(*job) {}

  absl::Status Run(size_t n_devices) {
    if (absl::Status s = Sizes(); !s.ok()) return s;
    if (absl::Status s = Ranks(n_devices); !s.ok()) return s;
    if (job_.state == JobState::kReady || job_.state == JobState::kBroken) {
      job_.allocator = OffsetAllocator(job_.heap_bytes);
    }
    if (absl::Status s = Teams(); !s.ok()) return s;
    if (absl::Status s = Allocations(); !s.ok()) return s;
    return GrowthOfIt();
  }

 private:
  template <typename... Parts>
  absl::Status Broken(const Parts&... parts) const {
    return Bad("job ", job_.id.value, ": ", parts...);
  }

  absl::Status Sizes() {
    job_.name = from_.name();
    if (!CheckText("name", job_.name, 1, wire::kMaxJobNameBytes).ok()) return Broken("its name");
    job_.party = Decode(from_.party());
    if (from_.state() < static_cast<uint32_t>(JobState::kForming) ||
        from_.state() > static_cast<uint32_t>(JobState::kBroken)) {
      return Broken("its state");
    }
    job_.state = static_cast<JobState>(from_.state());
    job_.broken_reason = from_.broken_reason();
    job_.epoch = from_.epoch();
    job_.heap_bytes_initial = from_.heap_bytes_initial();
    job_.heap_bytes = from_.heap_bytes();
    job_.stride_bytes = from_.stride_bytes();
    job_.team_sync_bytes = from_.team_sync_bytes();
    job_.same_address = from_.same_address();
    job_.created = TimeOf(from_.created_ns());
    const bool sizes = job_.heap_bytes > 0 && job_.heap_bytes <= job_.stride_bytes &&
                       job_.stride_bytes <= wire::kMaxWindowBytes &&
                       job_.heap_bytes_initial <= job_.heap_bytes &&
                       job_.team_sync_bytes <= job_.heap_bytes_initial;
    return sizes ? absl::OkStatus() : Broken("sizes of its heap");
  }

  absl::Status Ranks(size_t n_devices) {
    if (from_.ranks_size() == 0 || from_.ranks_size() > static_cast<int>(wire::kMaxRanks)) {
      return Broken("its ranks");
    }
    for (const state::Member& member : from_.ranks()) {
      if (!IsMemberState(member.state())) return Broken("a rank's state");
      if (member.device_index() >= n_devices) return Broken("a rank's device");
      for (const uint64_t call : member.mapped_calls()) {
        if (call == 0) return Broken("a call without a name");
      }
      for (const state::AwaitedBarrier& barrier : member.barriers()) {
        if (barrier.call() == 0) return Broken("a call without a name");
      }
      job_.ranks.push_back(Decode(member));
    }
    for (const state::GaveUp& gave_up : from_.gave_up()) {
      if (gave_up.rank() >= job_.n_ranks()) return Broken("a rank that gave up");
      job_.gave_up[gave_up.rank()] = Decode(gave_up);
    }
    return absl::OkStatus();
  }

  absl::Status Teams() {
    job_.next_team = from_.next_team();
    for (const state::Team& one : from_.teams()) {
      auto team = TeamOf(one);
      if (!team.ok()) return team.status();
      if (!IsOwnTeam(team->info.id)) job_.slots_in_use.insert(team->info.barrier_slot);
      const TeamId id = team->info.id;
      if (!job_.teams.emplace(id, *std::move(team)).second) return Broken("two teams ", id);
    }
    for (const state::Team& one : from_.past_teams()) {
      auto team = TeamOf(one);
      if (!team.ok()) return team.status();
      if (team->op.has_value()) return Broken("a past team that asks");
      if (IsOwnTeam(team->info.id)) return Broken("a past team of one rank alone");
      job_.past_teams.Change().push_back(*std::move(team));
    }
    for (const state::SlotEpoch& slot : from_.slot_epochs()) {
      if (slot.slot() >= wire::kMaxTeamsPerJob) return Broken("a barrier slot");
      job_.slot_epochs[slot.slot()] = slot.epoch();
    }
    if (job_.value_bytes > kMaxValueBytesPerJob) return Broken("values of broadcasts");
    return absl::OkStatus();
  }

  absl::StatusOr<Team> TeamOf(const state::Team& from) {
    Team team;
    team.info = Decode(from.info());
    const TeamId id = team.info.id;
    if (id >= job_.next_team && !IsOwnTeam(id)) return Broken("team ", id, " is from the future");
    const std::set<Rank> distinct(team.info.ranks.begin(), team.info.ranks.end());
    if (distinct.empty() || distinct.size() != team.info.ranks.size() ||
        *distinct.rbegin() >= job_.n_ranks()) {
      return Broken("ranks of team ", id);
    }
    if (team.info.barrier_slot >= wire::kMaxTeamsPerJob) return Broken("the slot of team ", id);
    team.position.assign(from.position().begin(), from.position().end());
    if (team.position.size() != team.info.ranks.size()) return Broken("positions of team ", id);
    team.next_k = from.next_k();
    const uint64_t n_outcomes = static_cast<uint64_t>(from.history_size());
    if (n_outcomes > std::min<uint64_t>(team.next_k, kMaxOutcomesPerTeam)) {
      return Broken("outcomes of team ", id);
    }
    for (const state::Outcome& outcome : from.history()) {
      if (outcome.k() != team.next_k - n_outcomes + team.history.size()) {
        return Broken("outcomes of team ", id, " have a gap");
      }
      team.history.push_back(Decode(outcome));
      job_.value_bytes += outcome.value().size();
    }
    if (!from.has_op()) return team;
    auto op = OpOf(from.op(), team);
    if (!op.ok()) return op.status();
    team.op = *std::move(op);
    job_.value_bytes += HeldBytes(team.op->op);
    for (const GivenMemory& given : team.op->given) job_.n_pieces += given.pieces.size();
    return team;
  }

  absl::StatusOr<PendingOp> OpOf(const state::PendingOp& from, const Team& team) const {
    const size_t n = team.info.ranks.size();
    v1::OperateRequest request;
    if (!request.ParseFromString(from.op())) return Broken("an operation of team ", team.info.id);
    auto op = OperationOfRequest(std::move(request));
    if (!op.ok()) return Broken("team ", team.info.id, ": ", op.status().message());
    PendingOp pending;
    pending.op = *std::move(op);
    if (absl::Status s = Check(pending.op, team); !s.ok()) {
      return Broken("team ", team.info.id, ": ", s.message());
    }
    if (from.first() >= n || static_cast<size_t>(from.members_size()) != n) {
      return Broken("team ", team.info.id, ": who asked");
    }
    pending.first = from.first();
    for (const state::PendingOp::Asked& member : from.members()) {
      pending.asked.push_back(member.asked());
      std::vector<CallId>& calls = pending.calls.emplace_back();
      for (const uint64_t call : member.calls()) {
        if (call == 0) return Broken("a call without a name");
        calls.push_back(CallId{call});
      }
      GivenMemory& given = pending.given.emplace_back();
      given.lead_bytes = member.lead_bytes();
      for (const uint64_t piece : member.pieces()) given.pieces.push_back(SegmentId{piece});
      pending.asked_alone.push_back(member.asked_alone());
    }
    if (!pending.asked[pending.first]) return Broken("team ", team.info.id, ": who asked first");
    pending.grown = from.grown();
    if (from.hurried() >= n || from.hurried_timeout_ns() < 0) {
      return Broken("team ", team.info.id, ": whose timeout ends an operation");
    }
    pending.hurried = from.hurried();
    pending.hurried_timeout = absl::Nanoseconds(from.hurried_timeout_ns());
    pending.since = TimeOf(from.since_ns());
    return pending;
  }

  absl::Status Allocations() {
    if (static_cast<uint64_t>(from_.allocations_size()) > wire::kMaxAllocationsPerJob) {
      return Broken("too many allocations");
    }
    for (const state::Allocation& from : from_.allocations()) {
      HeapAllocation allocation;
      allocation.bytes = from.bytes();
      if (!std::has_single_bit(from.alignment_bytes())) return Broken("an alignment");
      allocation.alignment_log2 = Log2(from.alignment_bytes());
      const TensorInfo tensor{from.tensor().dtype(),
                              {from.tensor().shape().begin(), from.tensor().shape().end()}};
      if (from.name().size() > wire::kMaxAllocationNameBytes || !CheckTensor(tensor).ok()) {
        return Broken("an allocation's name, dtype or shape");
      }
      allocation.label = AllocationLabel(from.name(), tensor);
      allocation.team = from.team();
      allocation.k = from.k();
      allocation.created = TimeOf(from.created_ns());
      allocation.sync = from.sync();
      allocation.freed = from.freed();
      for (const state::Opens& open : from.opens()) {
        allocation.opens.Change()[open.rank()] = open.n();
      }
      if (!job_.teams.contains(allocation.team)) return Broken("an allocation of no team");
      if (from.pieces_size() > 0) {
        if (allocation.sync || from.lead_bytes() > from.offset_bytes() ||
            from.offset_bytes() > wire::kMaxWindowBytes || from.bytes() > wire::kMaxWindowBytes ||
            from.piece_bytes() > wire::kMaxWindowBytes ||
            job_.allocations.contains(from.offset_bytes())) {
          return Broken("registered memory");
        }
        RegisteredMemory registered{{}, from.lead_bytes(), from.piece_bytes()};
        for (const uint64_t piece : from.pieces()) registered.pieces.push_back(SegmentId{piece});
        job_.n_pieces += registered.pieces.size();
        allocation.registered = std::move(registered);
        job_.Keep(from.offset_bytes(), std::move(allocation));
        continue;
      }
      if (absl::Status s = job_.allocator.Occupy(from.offset_bytes(), from.bytes()); !s.ok()) {
        return Broken(s.message());
      }
      job_.Keep(from.offset_bytes(), std::move(allocation));
    }
    return absl::OkStatus();
  }

  absl::Status GrowthOfIt() {
    job_.last_growth = {GrowId{from_.last_growth().grow()}, from_.last_growth().published(),
                        from_.last_growth().reason()};
    job_.last_published = GrowId{from_.last_published_grow()};
    job_.moment = from_.moment();
    std::set<TeamId> growing;
    if (from_.has_growth()) growing.insert(from_.growth().team());
    for (const TeamId team : from_.growth_queue()) {
      if (!growing.insert(team).second) return Broken("team ", team, " waits for growth twice");
      job_.growth_queue.push_back(team);
    }
    if (!from_.has_growth()) return absl::OkStatus();
    const state::Growth& from = from_.growth();
    const int n = from_.ranks_size();
    if (from.segments_size() != n || from.created_size() != n || from.mapped_size() != n) {
      return Broken("ranks of its growth");
    }
    Growth& growth = job_.growth.emplace();
    growth.id = GrowId{from.id()};
    growth.team = from.team();
    growth.bytes = from.bytes();
    growth.mapping = from.mapping();
    for (const uint64_t segment : from.segments()) growth.segments.push_back(SegmentId{segment});
    growth.created.assign(from.created().begin(), from.created().end());
    growth.mapped.assign(from.mapped().begin(), from.mapped().end());
    return absl::OkStatus();
  }

  const state::Job& from_;
  Job& job_;
};

// The devices are those that the state speaks of; takes over what is known of each.
absl::Status TakeDevices(const state::MachineState& from, Ledger* ledger) {
  if (static_cast<size_t>(from.devices_size()) != ledger->devices().size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("state of irisd: it is of ", from.devices_size(), " devices, and there are ",
                     ledger->devices().size()));
  }
  for (int i = 0; i < from.devices_size(); ++i) {
    const state::Device& was = from.devices(i);
    const Ledger::DeviceAccount& is = ledger->devices()[static_cast<size_t>(i)];
    if (was.uuid() != is.uuid || was.memory_bytes() != is.memory_bytes ||
        was.granularity_bytes() != is.granularity_bytes) {
      return absl::FailedPreconditionError(absl::StrCat(
          "state of irisd: device ", i, " is another one, or its memory changed: now ", is.uuid));
    }
    if (was.has_driver_free_bytes()) {
      ledger->SetDriverFree(static_cast<uint32_t>(i), was.driver_free_bytes());
    }
  }
  return absl::OkStatus();
}

// A ledger of the devices that the state speaks of. kDataLoss: no heap could be made of them.
absl::StatusOr<Ledger> LedgerOf(const state::MachineState& from) {
  constexpr uint64_t kMaxGranularityBytes = 1ull << 40;
  std::vector<Ledger::DeviceAccount> devices;
  uint64_t common = 1;
  for (const state::Device& device : from.devices()) {
    const uint64_t granularity = std::max<uint64_t>(device.granularity_bytes(), 1);
    // In this order, so that the multiple cannot overflow.
    if (granularity > kMaxGranularityBytes ||
        common / std::gcd(common, granularity) > kMaxGranularityBytes / granularity) {
      return Bad("the granularity of a device");
    }
    common = std::lcm(common, granularity);
    devices.push_back({device.uuid(), device.memory_bytes(), device.granularity_bytes()});
  }
  return Ledger(std::move(devices));
}

}  // namespace

// Fills a new machine from a parsed state.
class MachineState::Decoder {
 public:
  Decoder(const state::MachineState& from, JobMachine::Impl* impl)
      : from_(from), impl_(*impl), follows_memory_(impl->limits_.max_heap_bytes_per_uid != 0) {}

  absl::Status Run() {
    // They count up for as long as irisd runs, and an id that is zero or comes twice names nothing.
    for (const uint64_t next : {from_.next_job(), from_.next_segment(), from_.next_grow()}) {
      if (next == 0 || next > kMaxNextId) return Bad("its next id would be ", next);
    }
    impl_.next_job_ = from_.next_job();
    impl_.next_segment_ = from_.next_segment();
    impl_.next_grow_ = from_.next_grow();
    impl_.stopping_ = from_.stopping();
    if (absl::Status s = Sessions(); !s.ok()) return s;
    for (const state::Job& job : from_.jobs()) {
      if (absl::Status s = OneJob(job); !s.ok()) return s;
    }
    for (const state::Segment& segment : from_.segments()) {
      if (absl::Status s = Segment(segment); !s.ok()) return s;
    }
    if (absl::Status s = Owners(); !s.ok()) return s;
    if (absl::Status s = Kept(); !s.ok()) return s;
    if (absl::Status s = Abandoned(); !s.ok()) return s;
    if (absl::Status s = Refused(); !s.ok()) return s;
    return Deadlines();
  }

 private:
  absl::Status Sessions() {
    for (const state::Session& from : from_.sessions()) {
      JobMachine::Impl::Session session;
      session.id = SessionId{from.id()};
      session.caller = server::Decode(from.caller());
      session.ending = from.ending();
      if (from.has_lease()) {
        if (from.lease().job() == 0) return Bad("a lease of no job");
        session.lease = LeaseRef{JobId{from.lease().job()}, from.lease().rank()};
      }
      session.created = TimeOf(from.created_ns());
      session.past_job = JobId{from.past_job()};
      session.past_status = server::Decode(from.past_status());
      impl_.sessions_by_account_[session.caller.party.Account()].insert(session.id);
      session.join_number = from.join_number();
      session.process_began = TimeOf(from.process_began_ns());
      const bool is_new = impl_.sessions_.emplace(session.id, session).second;
      if (from.id() == 0 || !is_new) return Bad("session ", from.id(), " is there twice");
    }
    return absl::OkStatus();
  }

  absl::Status OneJob(const state::Job& from) {
    if (from.id() == 0 || from.id() >= impl_.next_job_) return Bad("job ", from.id(), ": its id");
    const JobId job_id{from.id()};
    if (impl_.jobs_.contains(job_id)) return Bad("job ", from.id(), " is there twice");
    Job& job = *impl_.jobs_[job_id];
    job.id = job_id;
    if (absl::Status s = JobDecoder(from, &job).Run(impl_.ledger_.devices().size()); !s.ok()) {
      return s;
    }
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
      job.ranks[rank].keeps_memory &= follows_memory_;
    }
    if (!impl_.jobs_by_name_.emplace(std::pair(job.party, job.name), job.id).second) {
      return Bad("job ", from.id(), ": another has its name");
    }
    impl_.jobs_by_account_[job.party.Account()].insert(job.id);
    impl_.CountDescriptors(job.party, job.n_ranks() + 1);
    using Waiting = JobMachine::Impl::WaitingCall;
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
      const Member& member = job.ranks[rank];
      if (from.ranks(static_cast<int>(rank)).starved()) {
        if (!member.lease.held) return Bad("a rank that nobody holds waits for memory");
        impl_.starved_.insert({job.id, rank});
      }
      if (member.join_call.value != 0) {
        impl_.AddWaiting(member.join_call, {Waiting::Kind::kJoin, job.id, rank});
      }
      for (const CallId call : member.mapped_calls) {
        impl_.AddWaiting(call, {Waiting::Kind::kMapped, job.id, rank});
      }
      for (const AwaitedBarrier& barrier : member.barriers) {
        impl_.AddWaiting(barrier.call, {Waiting::Kind::kBarrier, job.id, rank, barrier.team});
      }
    }
    for (const auto& [id, team] : job.teams) {
      if (!team.op.has_value()) continue;
      for (size_t i = 0; i < team.op->calls.size(); ++i) {
        for (const CallId call : team.op->calls[i]) {
          impl_.AddWaiting(call, {Waiting::Kind::kOperation, job.id, team.info.ranks[i], id});
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Abandoned() {
    if (from_.abandoned_size() > static_cast<int>(kMaxAbandonedJobs)) {
      return Bad(from_.abandoned_size(), " jobs whose ranks gave up");
    }
    for (const state::AbandonedJob& from : from_.abandoned()) {
      if (from.n_ranks() > wire::kMaxRanks) return Bad("the ranks of a job that was given up");
      AbandonedJob job{from.n_ranks(), TimeOf(from.when_ns()), {}};
      for (const state::GaveUp& gave_up : from.gave_up()) {
        if (gave_up.rank() >= job.n_ranks) return Bad("a rank that gave up");
        job.gave_up[gave_up.rank()] = server::Decode(gave_up);
      }
      if (!impl_.abandoned_
               .emplace(std::pair(server::Decode(from.party()), from.name()), std::move(job))
               .second) {
        return Bad("a job that was given up is there twice");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Refused() {
    if (from_.refused_size() > static_cast<int>(kMaxRefusedJoins)) {
      return Bad(from_.refused_size(), " joins that were refused");
    }
    for (const state::RefusedJoin& from : from_.refused()) {
      RefusedJoin refused{server::Decode(from.told()),
                          from.rank(),
                          TimeOf(from.when_ns()),
                          TimeOf(from.until_ns()),
                          {from.untold().begin(), from.untold().end()}};
      if (refused.told.ok() || refused.untold.empty() ||
          *refused.untold.rbegin() >= wire::kMaxRanks) {
        return Bad("the ranks of a join that was refused");
      }
      if (!impl_.refused_
               .emplace(std::pair(server::Decode(from.party()), from.name()), std::move(refused))
               .second) {
        return Bad("a join that was refused is there twice");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Segment(const state::Segment& from) {
    JobMachine::Impl::Segment segment;
    segment.info = {SegmentId{from.id()}, from.rank(), from.index(), from.offset_bytes(),
                    from.bytes()};
    segment.job = JobId{from.job()};
    segment.device_index = from.device_index();
    segment.holder = {from.job_name(), from.rank(), server::Decode(from.party())};
    segment.created = from.created();
    segment.dropping = from.dropping();
    segment.registered = from.registered();
    if (from.id() == 0 || from.id() >= impl_.next_segment_) return Bad("the id of a segment");
    if (segment.device_index >= impl_.ledger_.devices().size()) return Bad("a segment's device");
    // None is empty: accounts forget who has nothing, and would be asked for it when it is dropped.
    if (from.bytes() == 0 || from.bytes() > wire::kMaxWindowBytes ||
        from.offset_bytes() > wire::kMaxWindowBytes - from.bytes()) {
      return Bad("segment ", from.id(), " has ", from.bytes(), " bytes");
    }
    const Job* job = impl_.FindJob(segment.job);
    if (!segment.dropping && (job == nullptr || from.rank() >= job->n_ranks())) {
      return Bad("segment ", from.id(), " is nobody's");
    }
    const bool is_new = impl_.segments_.emplace(segment.info.id, segment).second;
    if (!is_new) return Bad("segment ", from.id(), " is there twice");
    impl_.CountDescriptors(segment.holder.party, 1);
    if (segment.registered) return absl::OkStatus();  // on nobody's account
    const absl::Status booked =
        impl_.ledger_.Reserve(segment.device_index, segment.info.bytes, segment.holder);
    if (!booked.ok()) return Bad("segment ", from.id(), ": ", booked.message());
    impl_.booked_bytes_by_account_[segment.holder.party.Account()] += segment.info.bytes;
    if (segment.dropping) {
      impl_.dropping_bytes_by_account_[segment.holder.party.Account()] += segment.info.bytes;
      impl_.dropping_bytes_by_device_[segment.device_index] += segment.info.bytes;
    }
    return absl::OkStatus();
  }

  // Each segment that a rank or a growth has is that rank's, and nobody else's.
  absl::Status Owners() const {
    std::set<SegmentId> owned;
    for (const auto& [id, job] : impl_.jobs_) {
      for (Rank rank = 0; rank < job->n_ranks(); ++rank) {
        std::vector<SegmentId> segments = job->ranks[rank].segments;
        if (job->growth.has_value()) segments.push_back(job->growth->segments[rank]);
        for (const SegmentId segment : segments) {
          const auto found = impl_.segments_.find(segment);
          if (found == impl_.segments_.end() || !owned.insert(segment).second ||
              !Owns(*job, rank, found->second)) {
            return Bad("segment ", segment.value, " is not that of rank ", rank, " of job ",
                       id.value);
          }
        }
      }
      for (const SegmentId segment : Registered(*job)) {
        const auto found = impl_.segments_.find(segment);
        if (found == impl_.segments_.end() || !owned.insert(segment).second ||
            found->second.info.rank >= job->n_ranks() ||
            !Owns(*job, found->second.info.rank, found->second)) {
          return Bad("segment ", segment.value, " is registered memory of nobody in job ",
                     id.value);
        }
      }
    }
    return absl::OkStatus();
  }

  // What its ranks have registered, and what they are about to. Whose each is, the invariants say.
  static std::vector<SegmentId> Registered(const Job& job) {
    std::vector<SegmentId> all;
    for (const auto& [offset, allocation] : job.allocations) {
      const std::vector<SegmentId>& pieces = allocation.registered->pieces;
      all.insert(all.end(), pieces.begin(), pieces.end());
    }
    for (const auto& [id, team] : job.teams) {
      if (!team.op.has_value()) continue;
      for (const GivenMemory& given : team.op->given) {
        all.insert(all.end(), given.pieces.begin(), given.pieces.end());
      }
    }
    return all;
  }

  static bool Owns(const Job& job, Rank rank, const JobMachine::Impl::Segment& segment) {
    return segment.job == job.id && segment.info.rank == rank &&
           segment.holder.party == job.party && segment.holder.job == job.name &&
           segment.device_index == job.ranks[rank].device_index;
  }

  absl::Status Kept() {
    if (!follows_memory_) return absl::OkStatus();
    for (const state::KeptMemory& from : from_.kept()) {
      std::set<KeptMemory::Process> holders;
      for (const state::Process& process : from.holders()) {
        holders.insert(KeptMemory::ProcessOf(server::Decode(process)));
      }
      if (holders.empty() || from.bytes() == 0) return Bad("memory that nobody keeps");
      if (from.bytes() > kMaxKeptBytes ||
          impl_.kept_->bytes(server::Decode(from.party())) > kMaxKeptBytes - from.bytes()) {
        return Bad("more memory is kept than there can be");
      }
      impl_.kept_.Change().Add(server::Decode(from.party()), std::move(holders), from.bytes());
    }
    return absl::OkStatus();
  }

  absl::Status Deadlines() {
    for (const state::Deadline& from : from_.deadlines()) {
      if (from.kind() > static_cast<uint32_t>(DeadlineKey::kLastKind)) return Bad("a deadline");
      const DeadlineKey key{JobId{from.job()}, static_cast<DeadlineKey::Kind>(from.kind()),
                            from.index()};
      if (impl_.deadlines_.Get(key).has_value()) return Bad("a deadline is there twice");
      impl_.deadlines_.Set(key, TimeOf(from.when_ns()));
    }
    return absl::OkStatus();
  }

  const state::MachineState& from_;
  JobMachine::Impl& impl_;
  // Users have a quota now; they may not have had one when the state was written, or the reverse.
  const bool follows_memory_;
};

absl::StatusOr<std::unique_ptr<JobMachine>> MachineState::Decode(absl::string_view bytes,
                                                                 const JobLimits& limits,
                                                                 Ledger devices,
                                                                 UnusablePairs unusable) {
  google::protobuf::Arena arena;
  auto* const from = google::protobuf::Arena::CreateMessage<state::MachineState>(&arena);
  if (!from->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Bad("these bytes are none");
  }
  return Decode(*from, limits, std::move(devices), std::move(unusable));
}

absl::StatusOr<std::unique_ptr<JobMachine>> MachineState::Decode(const state::MachineState& from,
                                                                 const JobLimits& limits,
                                                                 Ledger devices,
                                                                 UnusablePairs unusable) {
  if (from.version() != 1) return Bad("version ", from.version(), " is not known");
  if (absl::Status s = TakeDevices(from, &devices); !s.ok()) return s;
  auto machine = std::make_unique<JobMachine>(limits, std::move(devices), std::move(unusable));
  if (absl::Status s = Decoder(from, machine->impl_.get()).Run(); !s.ok()) return s;
  if (absl::Status s = machine->CheckInvariants(); !s.ok()) return Bad(s.message());
  return machine;
}

std::string MachineState::BytesOf(const state::MachineState& state) {
  return state.SerializeAsString();
}

absl::Status MachineState::Check(const state::MachineState& from, const JobLimits& limits) {
  absl::StatusOr<Ledger> devices = LedgerOf(from);
  if (!devices.ok()) return devices.status();
  return Decode(from, limits, *std::move(devices)).status();
}

}  // namespace iris::server
