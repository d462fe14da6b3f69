#include "server/job/operations/create_team.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/limits.h"
#include "server/job/job_teams.h"
#include "server/job/operations/operation.h"

namespace iris::server {

std::string OperationOf<CreateTeamOp>::Arguments(const CreateTeamOp& op) {
  return absl::StrCat("(ranks=[", absl::StrJoin(op.ranks, ","), "])");
}

absl::Status OperationOf<CreateTeamOp>::Check(const CreateTeamOp& op, const Team& team) {
  if (op.ranks.empty()) return absl::InvalidArgumentError("a team has at least one rank");
  if (op.ranks.size() > team.info.ranks.size()) {
    return absl::InvalidArgumentError(absl::StrCat(op.ranks.size(), " ranks are more than the ",
                                                   team.info.ranks.size(), " of team ",
                                                   team.info.id));
  }
  std::set<Rank> seen;
  for (const Rank rank : op.ranks) {
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

Executed OperationOf<CreateTeamOp>::Execute(const CreateTeamOp& op, Run& run) {
  Job& job = run.job;
  const std::optional<uint32_t> slot = FreeSlot(job);
  if (!slot.has_value() || IsOwnTeam(job.next_team)) {
    return Concluded{run.Error(absl::ResourceExhaustedError(absl::StrCat(
        "the job has ", job.n_teams(), " teams and no slot for another: destroy some")))};
  }
  const auto made = MakeTeam(job, op.ranks, *slot, run.wall);
  if (made.ok()) {
    run.events.push_back(event::TeamCreated{made->id, made->barrier_slot, made->ranks});
    return Concluded{absl::OkStatus(), {.team = *made}};
  }
  const absl::Status failed = run.Error(made.status());
  const uint64_t needed =
      job.allocator.ShortfallBytes(job.team_sync_bytes, wire::kMinAlignmentBytes);
  if (needed == 0) return Concluded{failed};  // not for want of room
  return NeedsGrowth{needed, std::max(needed, job.heap_bytes_initial), failed};
}

}  // namespace iris::server
