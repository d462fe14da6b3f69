// Who waits for whom in the control plane: joins, mapping, and the operations of teams.
#include <algorithm>
#include <utility>

#include "server/job/job_machine_impl.h"
#include "server/job/operations/operation.h"
#include "server/job/snapshots.h"

namespace iris::server {
namespace {

using Kind = PendingSnapshot::Kind;

// A job that is not ready: the ranks that have done a step wait for those that have not.
PendingSnapshot OfJob(const Job& job, Kind kind) {
  PendingSnapshot pending{.kind = kind, .n_members = job.n_ranks()};
  pending.call = kind == Kind::kJoin ? "join" : "map the peers' memory";
  pending.since = kind == Kind::kJoin ? absl::InfiniteFuture() : absl::InfinitePast();
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const Member& member = job.ranks[rank];
    const bool done = kind == Kind::kJoin ? member.lease.held : member.state != RankState::kJoined;
    (done ? pending.waiting : pending.missing).push_back(rank);
    if (!member.lease.held) continue;
    // Mapping begins when the last rank has joined.
    pending.since = kind == Kind::kJoin ? std::min(pending.since, member.joined)
                                        : std::max(pending.since, member.joined);
  }
  return pending;
}

PendingSnapshot OfTeam(const Job& job, const Team& team) {
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
  // All have asked, so it waits for a growth: its own, or that of another team before it.
  pending.kind = Kind::kGrowth;
  if (job.growth.has_value()) pending.missing = job.growth->Missing();
  return pending;
}

}  // namespace

void JobMachine::VisitWaits(const JobQuery& query, ListPosition after, VisitWait visit) const {
  const ListPosition before{.id = after.id == 0 ? 0 : after.id - 1};
  VisitJobs(query, before, [&](const JobSnapshot& head) {
    const Job& job = *impl_->jobs_.at(head.id);
    JobSnapshot shot = head;
    for (RankSnapshot& rank : shot.ranks) rank.segments = impl_->SegmentsOf(job.ranks[rank.rank]);
    WaitsSnapshot waits;
    if (job.state == JobState::kForming) waits.pending.push_back(OfJob(job, Kind::kJoin));
    if (job.state == JobState::kMapping) waits.pending.push_back(OfJob(job, Kind::kMap));
    for (const auto& [id, team] : job.teams) {
      if (!IsOwnTeam(id)) waits.teams.push_back(team.info);
      if (team.op.has_value()) waits.pending.push_back(OfTeam(job, team));
    }
    return visit(shot, waits);
  });
}

}  // namespace iris::server
