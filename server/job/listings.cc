// Listings for iris-ctl: jobs and sessions, and which ranks wait for which.
#include <algorithm>
#include <utility>

#include "server/job/job_machine_impl.h"
#include "server/job/snapshots.h"

namespace iris::server {
namespace {

using Impl = JobMachine::Impl;
using Kind = PendingSnapshot::Kind;

// Returns the node that has the rank, or null if it is not known yet.
const std::pair<const NodeId, JobNodes::Node>* NodeThatHas(const JobNodes& nodes, Rank rank) {
  if (const auto* const found = nodes.NodeOf(rank); found != nullptr) return found;
  const auto exact = nodes.all.find(rank);
  return exact == nodes.all.end() ? nullptr : &*exact;
}

// Returns the state of a rank. Its own node tells that of another node's rank when the job is
// ready; before, the leader knows how far its node is.
RankState StateOf(const Job& job, Rank rank) {
  const RankState state = job.ranks[rank].state;
  if (job.IsLocal(rank) || !job.is_starting()) return state;
  if (!job.nodes->leads()) return RankState{};
  const auto* const node = job.nodes->NodeOf(rank);
  if (node == nullptr) return state;
  if (node->second.state == NodeState::kMapped) return RankState::kMapped;
  return node->second.state == NodeState::kJoined ? RankState::kJoined : state;
}

std::vector<NodeSnapshot> NodesOf(const Job& job) {
  const JobNodes& nodes = *job.nodes;
  std::vector<NodeSnapshot> shots;
  Rank next = 0;
  bool gapless = false;  // the number of ranks of the last node is not known
  // Adds the ranks before `end` that no known node has.
  const auto close_gap = [&](Rank end) {
    if (next >= end || gapless) return;
    const bool of_leader = !nodes.leads() && next == kLeader;
    const bool known = nodes.leads() || of_leader;
    shots.push_back({.part = {.node = next, .n_ranks = of_leader ? 0 : end - next},
                     .state = known ? NodeState::kAwaited : NodeState::kUnknown,
                     .address = of_leader ? nodes.rendezvous : ""});
  };
  for (const auto& [id, node] : nodes.all) {
    close_gap(id);
    const bool starts = id == nodes.own && nodes.random == 0 && node.state != NodeState::kLost;
    shots.push_back({JobNodes::PartOf(id, node), starts ? NodeState::kAwaited : node.state,
                     node.lost_because, id == kLeader ? nodes.rendezvous : "", job.IsMapped(id)});
    next = id + node.n_ranks;
    gapless = node.n_ranks == 0;
  }
  close_gap(job.n_ranks());
  return shots;
}

// Returns the job without its ranks and allocations.
JobSnapshot HeadOf(const Job& job) {
  JobSnapshot head{job};
  head.n_ranks = job.n_ranks();
  head.first_local = job.first_local();
  head.n_local = job.end_local() - job.first_local();
  head.spans_nodes = job.nodes.has_value();
  if (head.spans_nodes) {
    head.run = job.nodes->epoch;
    if (!job.nodes->leads()) {
      const auto* const leader = NodeThatHas(*job.nodes, kLeader);
      head.leader = leader == nullptr ? "" : leader->second.name;
    }
  }
  head.n_teams = static_cast<uint32_t>(job.n_teams());
  head.n_allocations = static_cast<uint32_t>(job.allocations.size());
  head.allocated_bytes = job.allocator.used_bytes();
  head.largest_free_bytes = job.allocator.largest_free_bytes();
  return head;
}

AllocationSnapshot SnapshotOf(uint64_t offset_bytes, const HeapAllocation& allocation) {
  return {
      offset_bytes,
      allocation.bytes,
      allocation.alignment_bytes(),
      std::string(allocation.label.name()),
      allocation.label.tensor(),
      allocation.team,
      allocation.k,
      allocation.created,
      static_cast<uint32_t>(allocation.opens->size()),
      allocation.freed,
      allocation.is_registered(),
  };
}

RankSnapshot SnapshotOf(const Job& job, Rank rank) {
  const Member& member = job.ranks[rank];
  RankSnapshot shot{.rank = rank,
                    .state = StateOf(job, rank),
                    .pid = member.lease.process.pid,
                    .session = member.lease.session,
                    .device_index = member.device_index,
                    .base = member.base};
  if (job.IsLocal(rank)) return shot;
  const auto* const node = NodeThatHas(*job.nodes, rank);
  shot.node = node == nullptr ? "" : node->second.name;
  if (node != nullptr) shot.node_rank = node->first;
  return shot;
}

JobSnapshot WithRanks(const Job& job) {
  JobSnapshot shot = HeadOf(job);
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) shot.ranks.push_back(SnapshotOf(job, rank));
  return shot;
}

JobSnapshot WithSegments(const Impl& impl, const Job& job) {
  JobSnapshot shot = WithRanks(job);
  for (const SegmentInfo& info : impl.OwnSegmentsOf(job)) {
    shot.ranks[info.rank].segments.push_back(info);
  }
  return shot;
}

SessionSnapshot SnapshotOf(const Impl& impl, const Impl::Session& session) {
  SessionSnapshot shot{.id = session.id,
                       .caller = session.caller,
                       .ending = session.ending,
                       .created = session.created};
  if (session.lease.has_value()) {
    shot.job = impl.jobs_.at(session.lease->job)->name;
    shot.rank = static_cast<int32_t>(session.lease->rank);
  }
  return shot;
}

// Visits the jobs that the query selects, from `from` on, in order; bool visit(const Job&).
template <typename Visit>
void ForJobs(const Impl& impl, const JobQuery& query, JobId from, Visit visit) {
  if (query.party.has_value()) {
    if (!query.name.empty()) {
      const auto named = impl.jobs_by_name_.find({*query.party, query.name});
      if (named != impl.jobs_by_name_.end() && named->second >= from)
        visit(*impl.jobs_.at(named->second));
      return;
    }
    const std::set<JobId>& mine = impl.JobsOf(query.party->Account());
    for (auto id = mine.lower_bound(from); id != mine.end(); ++id) {
      const Job& job = *impl.jobs_.at(*id);
      if (job.party == *query.party && !visit(job)) return;
    }
    return;
  }
  for (auto entry = impl.jobs_.lower_bound(from); entry != impl.jobs_.end(); ++entry) {
    if (!query.name.empty() && entry->second->name != query.name) continue;
    if (!visit(*entry->second)) return;
  }
}

// Describes a job that is not ready: the ranks that have done a step wait for those that have not.
PendingSnapshot PendingOf(const Job& job, Kind kind) {
  PendingSnapshot pending{.kind = kind, .n_members = job.n_ranks()};
  pending.call = kind == Kind::kJoin ? "join" : "map the peers' memory";
  pending.since = kind == Kind::kJoin ? absl::InfiniteFuture() : absl::InfinitePast();
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const Member& member = job.ranks[rank];
    const bool local = job.IsLocal(rank);
    const RankState state = StateOf(job, rank);
    const bool done = kind == Kind::kJoin
                          ? (local ? member.lease.held : state == RankState::kJoined)
                      : local ? state != RankState::kJoined
                              : state == RankState::kMapped;
    (done ? pending.waiting : pending.missing).push_back(rank);
    if (!member.lease.held) continue;
    // Mapping begins when the last rank has joined.
    pending.since = kind == Kind::kJoin ? std::min(pending.since, member.joined)
                                        : std::max(pending.since, member.joined);
  }
  return pending;
}

PendingSnapshot PendingOf(const Job& job, const Team& team) {
  const PendingOp& op = *team.op;
  PendingSnapshot pending{.kind = Kind::kOperation,
                          .team = team.info.id,
                          .n_members = static_cast<uint32_t>(team.info.ranks.size()),
                          .k = team.next_k,
                          .call = Describe(op.op),
                          .since = op.since};
  for (size_t index = 0; index < team.info.ranks.size(); ++index) {
    (op.asked[index] ? pending.waiting : pending.missing).push_back(team.info.ranks[index]);
  }
  if (!pending.missing.empty()) return pending;
  // All ranks have asked, so the operation waits for its own growth or an earlier team's.
  pending.kind = Kind::kGrowth;
  if (job.growth.has_value()) pending.missing = job.growth->Missing();
  return pending;
}

}  // namespace

AccountSnapshot JobMachine::AccountOf(const Party& account) const {
  AccountSnapshot shot{.jobs = impl_->JobsOf(account).size(),
                       .descriptors = ValueOf(impl_->descriptors_by_account_, account),
                       .heap_bytes = ValueOf(impl_->booked_bytes_by_account_, account) +
                                     impl_->kept_->bytes(account)};
  for (const JobId id : impl_->JobsOf(account)) {
    const Job& job = *impl_->jobs_.at(id);
    shot.teams += job.n_teams();
    shot.allocations += job.allocations.size();
    shot.registered_pieces += job.n_pieces;
    shot.value_bytes += job.value_bytes;
  }
  return shot;
}

const JobLimits& JobMachine::limits() const { return impl_->limits_; }

size_t JobMachine::n_jobs() const { return impl_->jobs_.size(); }

size_t JobMachine::n_sessions() const { return impl_->sessions_.size(); }

uint64_t JobMachine::kept_bytes() const {
  uint64_t sum = 0;
  for (const auto& [account, parts] : impl_->kept_->all()) sum += impl_->kept_->bytes(account);
  return sum;
}

std::vector<JobSnapshot> JobMachine::Jobs(const JobQuery& query) const {
  std::vector<JobSnapshot> snapshots;
  ForJobs(*impl_, query, JobId(), [&](const Job& job) {
    JobSnapshot& shot = snapshots.emplace_back(WithSegments(*impl_, job));
    if (query.allocations) shot.allocations.reserve(job.allocations.size());
    for (const auto& [offset, allocation] : job.allocations) {
      for (const SegmentInfo& info : impl_->InfosOf(allocation.registered->pieces)) {
        shot.ranks[info.rank].registered.push_back(info);
      }
      if (query.allocations) shot.allocations.push_back(SnapshotOf(offset, allocation));
    }
    return true;
  });
  return snapshots;
}

std::vector<SessionSnapshot> JobMachine::Sessions() const {
  std::vector<SessionSnapshot> snapshots;
  VisitSessions(std::nullopt, {}, [&](const SessionSnapshot& shot) {
    snapshots.push_back(shot);
    return true;
  });
  return snapshots;
}

std::vector<Segment> JobMachine::Segments() const {
  std::vector<Segment> all;
  for (const auto& [id, segment] : impl_->segments_) all.push_back(segment);
  return all;
}

void JobMachine::VisitJobs(const JobQuery& query, ListPosition after, VisitJob visit) const {
  ForJobs(*impl_, query, JobId{after.id},
          [&](const Job& job) { return job.id.value == after.id || visit(WithRanks(job)); });
}

void JobMachine::VisitRanks(const JobQuery& query, ListPosition after, VisitRank visit) const {
  ForJobs(*impl_, query, JobId{after.id}, [&](const Job& job) {
    const bool entered = job.id.value == after.id;
    if (entered && after.item >= job.n_ranks()) return true;
    const JobSnapshot head = HeadOf(job);
    for (Rank rank = entered ? static_cast<Rank>(after.item) + 1 : 0; rank < job.n_ranks();
         ++rank) {
      RankSnapshot shot = SnapshotOf(job, rank);
      if (job.IsLocal(rank)) shot.segments = impl_->InfosOf(job.ranks[rank].segments);
      if (!visit(head, shot)) return false;
    }
    return true;
  });
}

void JobMachine::VisitAllocations(const JobQuery& query, ListPosition after,
                                  VisitAllocation visit) const {
  ForJobs(*impl_, query, JobId{after.id}, [&](const Job& job) {
    const bool entered = job.id.value == after.id;
    auto entry = entered ? job.allocations.upper_bound(after.item) : job.allocations.begin();
    if (entry == job.allocations.end()) return true;
    const JobSnapshot head = HeadOf(job);
    for (; entry != job.allocations.end(); ++entry) {
      if (!visit(head, SnapshotOf(entry->first, entry->second))) return false;
    }
    return true;
  });
}

void JobMachine::VisitNodes(const JobQuery& query, ListPosition after, VisitNode visit) const {
  ForJobs(*impl_, query, JobId{after.id}, [&](const Job& job) {
    if (!job.nodes.has_value()) return true;
    const bool entered = job.id.value == after.id;
    const JobSnapshot head = HeadOf(job);
    for (const NodeSnapshot& node : NodesOf(job)) {
      if (entered && node.part.node <= after.item) continue;
      if (!visit(head, node)) return false;
    }
    return true;
  });
}

void JobMachine::VisitSessions(const std::optional<Party>& party, ListPosition after,
                               VisitSession visit) const {
  const SessionId from{after.id};
  if (!party.has_value()) {
    const auto& all = impl_->sessions_;
    for (auto entry = all.upper_bound(from); entry != all.end(); ++entry) {
      if (!visit(SnapshotOf(*impl_, entry->second))) return;
    }
    return;
  }
  const auto mine = impl_->sessions_by_account_.find(party->Account());
  if (mine == impl_->sessions_by_account_.end()) return;
  for (auto id = mine->second.upper_bound(from); id != mine->second.end(); ++id) {
    const Impl::Session& session = impl_->sessions_.at(*id);
    if (session.caller.party == *party && !visit(SnapshotOf(*impl_, session))) return;
  }
}

void JobMachine::VisitWaits(const JobQuery& query, ListPosition after, VisitWait visit) const {
  ForJobs(*impl_, query, JobId{after.id}, [&](const Job& job) {
    WaitsSnapshot waits;
    if (job.state == JobState::kForming) waits.pending.push_back(PendingOf(job, Kind::kJoin));
    if (job.state == JobState::kMapping) waits.pending.push_back(PendingOf(job, Kind::kMap));
    for (const auto& [id, team] : job.teams) {
      if (!IsOwnTeam(id)) waits.teams.push_back(team.info);
      if (team.op.has_value()) waits.pending.push_back(PendingOf(job, team));
    }
    return visit(WithSegments(*impl_, job), waits);
  });
}

}  // namespace iris::server
