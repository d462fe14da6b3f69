#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/limits.h"
#include "server/job/operations/operation.h"

namespace iris::server {

std::string CreateTeamOp::Arguments() const {
  return absl::StrCat("(ranks=[", absl::StrJoin(ranks, ","), "])");
}

absl::Status CreateTeamOp::Check(const Team& team) const {
  if (ranks.empty()) return absl::InvalidArgumentError("a team has at least one rank");
  if (ranks.size() > team.info.ranks.size()) {
    return absl::InvalidArgumentError(absl::StrCat(ranks.size(), " ranks are more than the ",
                                                   team.info.ranks.size(), " of team ",
                                                   team.info.id));
  }
  return CheckRanksOf(ranks, team);
}

Executed CreateTeamOp::Execute(Run& run) const { return MakeTeams({ranks}, run); }

absl::Status CheckRanksOf(const std::vector<Rank>& ranks, const Team& team) {
  std::set<Rank> seen;
  for (const Rank rank : ranks) {
    if (team.IndexOf(rank) < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, " is not a member of team ", team.info.id));
    }
    if (!seen.insert(rank).second) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is named twice"));
    }
  }
  return absl::OkStatus();
}

Executed MakeTeams(const std::vector<std::vector<Rank>>& teams, Run& run) {
  Job& job = run.job;
  const size_t n_teams = job.n_teams();
  std::vector<TeamInfo> made;
  absl::Status status;
  bool has_slots = true;
  for (size_t i = 0; i < teams.size() && status.ok(); ++i) {
    const std::optional<uint32_t> slot = job.FreeSlot();
    has_slots = slot.has_value() && !IsOwnTeam(job.next_team);
    if (!has_slots) {
      status = absl::ResourceExhaustedError(absl::StrCat(
          "the job has ", n_teams, " teams and no slot for ",
          teams.size() == 1 ? "another" : absl::StrCat(teams.size(), " others"), ": destroy some"));
      break;
    }
    const auto team = job.MakeTeam(teams[i], *slot, run.wall);
    status = team.status();
    if (status.ok()) made.push_back(*team);
  }
  if (status.ok()) {
    for (const TeamInfo& team : made) {
      run.events.push_back(event::TeamCreated{team.id, team.barrier_slot, team.ranks});
    }
    return Concluded{{.teams = std::move(made)}};
  }
  for (; !made.empty(); made.pop_back()) job.UnmakeLastTeam();
  const uint64_t area = (job.team_sync_bytes + wire::kMinAlignmentBytes - 1) /
                        wire::kMinAlignmentBytes * wire::kMinAlignmentBytes;
  const uint64_t needed =
      has_slots ? job.allocator.ShortfallBytes(teams.size() * area, wire::kMinAlignmentBytes) : 0;
  if (needed == 0) return status;  // not for want of room
  return NeedsGrowth{needed, std::max(needed, job.heap_bytes_initial), status};
}

}  // namespace iris::server
