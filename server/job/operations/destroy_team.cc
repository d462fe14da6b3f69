#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/job/operations/operation.h"

namespace iris::server {
namespace {

// How many epochs the word has gone on since the team began; what lies before counts as none.
uint64_t Ahead(uint32_t epoch, const Team& team) {
  const int32_t ahead = static_cast<int32_t>(epoch - team.info.barrier_start_epoch);
  return static_cast<uint64_t>(std::max(ahead, 0));
}

}  // namespace

absl::Status DestroyTeamOp::Check(const Team& team) const {
  if (team.info.id != kWorldTeam) return absl::OkStatus();
  return absl::InvalidArgumentError("the world is not destroyed: leave the job");
}

void DestroyTeamOp::Merge(const DestroyTeamOp& asked, const Team& team) {
  if (Ahead(asked.last_barrier_epoch, team) > Ahead(last_barrier_epoch, team)) {
    last_barrier_epoch = asked.last_barrier_epoch;
  }
}

Executed DestroyTeamOp::Execute(Run& run) const {
  const Team& team = run.team;
  if (team.n_allocations > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("its ", team.n_allocations, " live allocations come first"));
  }
  // Words of the slot only count up: the next team starts behind what any member says it has
  // reached.
  run.job.slot_epochs[team.info.barrier_slot] =
      uint64_t{team.info.barrier_start_epoch} + Ahead(last_barrier_epoch, team) + 1;
  run.job.GiveBackSlotAndArea(team.info);
  run.events.push_back(event::TeamDestroyed{team.info.id});
  return Concluded{.ends_team = true};
}

}  // namespace iris::server
