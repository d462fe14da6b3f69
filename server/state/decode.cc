// MachineState::Decode. It checks indexes, and everything that the machine's code assumes.
// CheckInvariants checks the rest.
#include <algorithm>
#include <bit>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/arena.h"
#include "proto/wire/limits.h"
#include "server/job/job_machine_impl.h"
#include "server/job/teams.h"
#include "server/job/text.h"
#include "server/state/machine_state.h"
#include "server/state/machine_state.pb.h"
#include "server/state/node_proto.h"
#include "server/state/operation_proto.h"
#include "server/state/state_fields.h"

namespace iris::server {
namespace {

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat("state of irisd: ", parts...));
}

constexpr uint64_t kMaxKeptBytes = 1ull << 60;  // of a user
constexpr uint64_t kMaxNextId = 1ull << 53;     // id of a job, a segment or a growth

bool IsMemberState(uint32_t state) {
  return state >= static_cast<uint32_t>(RankState::kAbsent) &&
         state <= static_cast<uint32_t>(RankState::kLeft);
}

// Fills one job, whose id is known.
class JobDecoder {
 public:
  JobDecoder(const state::Job& from, Job* job) : from_(from), job_(*job) {}

  absl::Status Run(size_t n_devices) {
    if (absl::Status s = Sizes(); !s.ok()) return s;
    if (absl::Status s = Ranks(n_devices); !s.ok()) return s;
    if (job_.state == JobState::kReady || job_.state == JobState::kBroken) {
      job_.allocator = OffsetAllocator(job_.heap_bytes);
    }
    if (absl::Status s = Outbox(); !s.ok()) return s;
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
    Read(from_, &job_);
    if (!CheckText("name", job_.name, 1, wire::kMaxJobNameBytes).ok()) return Broken("its name");
    if (from_.state() < static_cast<uint32_t>(JobState::kForming) ||
        from_.state() > static_cast<uint32_t>(JobState::kBroken)) {
      return Broken("its state");
    }
    const bool sizes = job_.heap_bytes > 0 && job_.heap_bytes <= job_.stride_bytes &&
                       job_.stride_bytes <= wire::kMaxWindowBytes &&
                       job_.heap_bytes_initial <= job_.heap_bytes &&
                       job_.team_sync_bytes <= job_.heap_bytes_initial;
    return sizes ? absl::OkStatus() : Broken("sizes of its heap");
  }

  absl::Status Nodes(uint32_t n_ranks) const {
    if (!job_.nodes.has_value()) {
      return n_ranks <= wire::kMaxRanks ? absl::OkStatus() : Broken("its ranks");
    }
    const JobNodes& nodes = *job_.nodes;
    if (nodes.n_local == 0 || nodes.n_local > wire::kMaxRanks || nodes.own >= n_ranks ||
        nodes.n_local > n_ranks - nodes.own || !nodes.all.contains(nodes.own)) {
      return Broken("its nodes");
    }
    for (const state::Nodes::Node& node : from_.nodes().all()) {
      if (node.state() < static_cast<uint32_t>(JobNodes::Node::State::kConnected) ||
          node.state() > static_cast<uint32_t>(JobNodes::Node::State::kLost) ||
          node.id() >= n_ranks || node.n_ranks() > wire::kMaxRanks) {
        return Broken("a node of it");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Outbox() {
    const uint64_t n = static_cast<uint64_t>(from_.outbox_size());
    if (n > (job_.nodes.has_value() ? job_.nodes->sent : 0)) return Broken("its messages to nodes");
    for (const state::Sent& sent : from_.outbox()) {
      absl::StatusOr<NodeMessage> message = DecodeNodeMessage(sent.message());
      if (!message.ok()) return Broken("a message to nodes: ", message.status().message());
      TrackedQueue<SendToNode>& outbox = job_.nodes->outbox;
      outbox.push_back({job_.id, sent.node(), sent.all(), *std::move(message),
                        job_.nodes->sent - n + outbox.size() + 1});
    }
    return absl::OkStatus();
  }

  absl::Status Ranks(size_t n_devices) {
    if (from_.ranks_size() == 0 || from_.ranks_size() > static_cast<int>(wire::kMaxWorldRanks)) {
      return Broken("its ranks");
    }
    if (absl::Status s = Nodes(static_cast<uint32_t>(from_.ranks_size())); !s.ok()) return s;
    for (const state::Member& member : from_.ranks()) {
      if (!IsMemberState(member.state())) return Broken("a rank's state");
      if (member.device_index() >= n_devices) return Broken("a rank's device");
      const bool unnamed =
          absl::c_any_of(member.barriers(),
                         [](const state::AwaitedBarrier& barrier) { return barrier.call() == 0; });
      if (unnamed || absl::c_linear_search(member.mapped_calls(), 0)) {
        return Broken("a call without a name");
      }
      job_.ranks.push_back(ReadElement<Member>(member));
    }
    if (!job_.gave_up.empty() && job_.gave_up.rbegin()->first >= job_.n_ranks()) {
      return Broken("a rank that gave up");
    }
    return absl::OkStatus();
  }

  absl::Status Teams() {
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
    if (!job_.slot_epochs.empty() && job_.slot_epochs.rbegin()->first >= wire::kMaxTeamsPerJob) {
      return Broken("a barrier slot");
    }
    if (job_.value_bytes > job_.MaxValueBytes()) return Broken("values of broadcasts");
    return absl::OkStatus();
  }

  absl::StatusOr<Team> TeamOf(const state::Team& from) {
    Team team;
    Read(from, &team);
    const TeamId id = team.info.id;
    if (id >= job_.next_team && !IsOwnTeam(id)) return Broken("team ", id, " is from the future");
    const std::set<Rank> distinct(team.info.ranks.begin(), team.info.ranks.end());
    if (distinct.empty() || distinct.size() != team.info.ranks.size() ||
        *distinct.rbegin() >= job_.n_ranks()) {
      return Broken("ranks of team ", id);
    }
    if (team.info.barrier_slot >= wire::kMaxTeamsPerJob) return Broken("the slot of team ", id);
    if (team.position.size() != team.info.ranks.size()) return Broken("positions of team ", id);
    const uint64_t n_outcomes = static_cast<uint64_t>(from.history_size());
    if (n_outcomes > std::min<uint64_t>(team.next_k, kMaxOutcomesPerTeam)) {
      return Broken("outcomes of team ", id);
    }
    for (const state::Outcome& outcome : from.history()) {
      if (outcome.k() != team.next_k - n_outcomes + team.history.size()) {
        return Broken("outcomes of team ", id, " have a gap");
      }
      team.history.push_back(ReadElement<Outcome>(outcome));
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
    Read(from, &pending);
    pending.op = *std::move(op);
    if (absl::Status s = Check(pending.op, team); !s.ok()) {
      return Broken("team ", team.info.id, ": ", s.message());
    }
    if (from.first() >= n || static_cast<size_t>(from.members_size()) != n) {
      return Broken("team ", team.info.id, ": who asked");
    }
    for (const state::PendingOp::Asked& member : from.members()) {
      pending.asked.push_back(member.asked());
      std::vector<CallId>& calls = pending.calls.emplace_back();
      for (const uint64_t call : member.calls()) {
        if (call == 0) return Broken("a call without a name");
        calls.push_back(CallId{call});
      }
      Read(member, &pending.given.emplace_back());
      pending.asked_alone.push_back(member.asked_alone());
    }
    if (!pending.asked[pending.first]) return Broken("team ", team.info.id, ": who asked first");
    if (from.hurried() >= n || from.hurried_timeout_ns() < 0) {
      return Broken("team ", team.info.id, ": whose timeout ends an operation");
    }
    return pending;
  }

  absl::Status Allocations() {
    if (static_cast<uint64_t>(from_.allocations_size()) > wire::kMaxAllocationsPerJob) {
      return Broken("too many allocations");
    }
    for (const state::Allocation& from : from_.allocations()) {
      auto allocation = ReadElement<HeapAllocation>(from);
      if (!std::has_single_bit(from.alignment_bytes())) return Broken("an alignment");
      allocation.alignment_log2 = Log2(from.alignment_bytes());
      const auto tensor = ReadElement<TensorInfo>(from.tensor());
      if (from.name().size() > wire::kMaxAllocationNameBytes || !CheckTensor(tensor).ok()) {
        return Broken("an allocation's name, dtype or shape");
      }
      allocation.label = AllocationLabel(from.name(), tensor);
      for (const state::Opens& open : from.opens()) {
        allocation.opens.Change()[open.rank()] = open.n();
      }
      if (!job_.teams.contains(allocation.team)) return Broken("an allocation of no team");
      if (from.piece_bytes() > 0) {
        if (allocation.sync || from.lead_bytes() > from.offset_bytes() ||
            from.offset_bytes() > wire::kMaxWindowBytes || from.bytes() > wire::kMaxWindowBytes ||
            from.piece_bytes() > wire::kMaxWindowBytes) {
          return Broken("registered memory");
        }
        auto registered = ReadElement<RegisteredMemory>(from);
        job_.n_pieces += registered.pieces.size();
        allocation.registered = std::move(registered);
      } else if (absl::Status s = job_.allocator.Occupy(from.offset_bytes(), from.bytes());
                 !s.ok()) {
        return Broken(s.message());
      }
      if (job_.allocations.contains(from.offset_bytes())) {
        return Broken("two allocations at one offset");
      }
      job_.Keep(from.offset_bytes(), std::move(allocation));
    }
    return absl::OkStatus();
  }

  absl::Status GrowthOfIt() {
    Read(from_.last_growth(), &job_.last_growth);
    std::set<TeamId> growing;
    if (job_.growth.has_value()) growing.insert(job_.growth->team);
    for (const TeamId team : job_.growth_queue) {
      if (!growing.insert(team).second) return Broken("team ", team, " waits for growth twice");
    }
    if (!job_.growth.has_value()) return absl::OkStatus();
    const size_t n = job_.n_ranks();
    if (job_.growth->segments.size() != n || job_.growth->created.size() != n ||
        job_.growth->mapped.size() != n) {
      return Broken("ranks of its growth");
    }
    return absl::OkStatus();
  }

  const state::Job& from_;
  Job& job_;
};

// Compares the devices with those of the state, and copies the driver's numbers.
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

// Returns a ledger of the devices that the state names. kDataLoss if no heap could be made of them.
absl::StatusOr<Ledger> LedgerOf(const state::MachineState& from) {
  constexpr uint64_t kMaxGranularityBytes = 1ull << 40;
  std::vector<Ledger::DeviceAccount> devices;
  uint64_t common = 1;
  for (const state::Device& device : from.devices()) {
    const uint64_t granularity = std::max<uint64_t>(device.granularity_bytes(), 1);
    // Checked in this order, so that the multiple cannot overflow.
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
    // Ids only grow, and are never 0.
    for (const uint64_t next : {from_.next_job(), from_.next_segment(), from_.next_grow()}) {
      if (next == 0 || next > kMaxNextId) return Bad("its next id would be ", next);
    }
    Read(from_, &impl_);
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
      const auto session = ReadElement<JobMachine::Impl::Session>(from);
      if (session.lease.has_value() && session.lease->job.value == 0) {
        return Bad("a lease of no job");
      }
      impl_.sessions_by_account_[session.caller.party.Account()].insert(session.id);
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
    impl_.CountDescriptors(job.party, job.n_pages());
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
      if (from.n_ranks() > wire::kMaxWorldRanks) {
        return Bad("the ranks of a job that was given up");
      }
      auto [name, job] = ReadElement<AbandonedEntry>(from);
      if (!job.gave_up.empty() && job.gave_up.rbegin()->first >= job.n_ranks) {
        return Bad("a rank that gave up");
      }
      if (!impl_.abandoned_.emplace(name, std::move(job)).second) {
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
      auto [name, refused] = ReadElement<RefusedEntry>(from);
      if (refused.told.ok() || refused.untold.empty() ||
          *refused.untold.rbegin() >= wire::kMaxWorldRanks) {
        return Bad("the ranks of a join that was refused");
      }
      if (!impl_.refused_.emplace(name, std::move(refused)).second) {
        return Bad("a join that was refused is there twice");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Segment(const state::Segment& from) {
    auto segment = ReadElement<JobMachine::Impl::Segment>(from);
    segment.holder.rank = segment.info.rank;
    if (from.id() == 0 || from.id() >= impl_.next_segment_) return Bad("the id of a segment");
    if (segment.device_index >= impl_.ledger_.devices().size()) return Bad("a segment's device");
    // An empty segment would leave no entry in its account, but the drop of the segment needs one.
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
    if (!segment.is_booked()) return absl::OkStatus();  // counts on no account
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

  // Checks that each segment of a rank or a growth belongs only to that rank.
  absl::Status Owners() const {
    std::set<SegmentId> owned;
    for (const auto& [id, job] : impl_.jobs_) {
      for (Rank rank = 0; rank < job->n_ranks(); ++rank) {
        std::vector<SegmentId> segments = job->ranks[rank].segments;
        if (job->growth.has_value()) segments.push_back(job->growth->segments[rank]);
        std::erase(segments, SegmentId());  // of a growth, of a rank that is not mapped here
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

  // Returns pieces that ranks have registered or are registering. CheckInvariants checks the ranks.
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
        holders.insert(KeptMemory::ProcessOf(ReadElement<CallerInfo>(process)));
      }
      if (holders.empty() || from.bytes() == 0) return Bad("memory that nobody keeps");
      const auto party = ReadElement<Party>(from.party());
      if (from.bytes() > kMaxKeptBytes ||
          impl_.kept_->bytes(party) > kMaxKeptBytes - from.bytes()) {
        return Bad("more memory is kept than there can be");
      }
      impl_.kept_.Change().Add(party, std::move(holders), from.bytes());
    }
    return absl::OkStatus();
  }

  absl::Status Deadlines() {
    for (const state::Deadline& from : from_.deadlines()) {
      if (from.kind() > static_cast<uint32_t>(DeadlineKey::kLastKind)) return Bad("a deadline");
      const auto [key, when] = ReadElement<DeadlineEntry>(from);
      if (impl_.deadlines_.Get(key).has_value()) return Bad("a deadline is there twice");
      impl_.deadlines_.Set(key, when);
    }
    return absl::OkStatus();
  }

  const state::MachineState& from_;
  JobMachine::Impl& impl_;
  // True if users have a quota. The writer of the state may have had another setting.
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
