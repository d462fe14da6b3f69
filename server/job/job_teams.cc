#include "server/job/job_teams.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/job_heap.h"

namespace iris::server {

std::optional<uint32_t> FreeSlot(const Job& job) {
  for (uint32_t slot = 0; slot < wire::kMaxTeamsPerJob; ++slot) {
    const auto epoch = job.slot_epochs.find(slot);
    const bool worn_out = epoch != job.slot_epochs.end() && epoch->second >= kMaxSlotEpoch;
    if (!worn_out && !job.slots_in_use.contains(slot)) return slot;
  }
  return std::nullopt;
}

absl::StatusOr<TeamInfo> MakeTeam(Job& job, const std::vector<Rank>& ranks, uint32_t slot,
                                  absl::Time wall) {
  const auto epoch = job.slot_epochs.find(slot);
  Team team;
  team.info.id = job.next_team;
  team.info.ranks = ranks;
  team.info.barrier_slot = slot;
  team.info.barrier_start_epoch =
      epoch == job.slot_epochs.end() ? 0 : static_cast<uint32_t>(epoch->second);
  team.position.resize(ranks.size());
  if (job.team_sync_bytes > 0) {
    const auto offset =
        Place(job, {.bytes = job.team_sync_bytes,
                    .created = wall,
                    .label = AllocationLabel(absl::StrCat("iris.sync.", team.info.id), {}),
                    .team = team.info.id,
                    .alignment_log2 = Log2(wire::kMinAlignmentBytes),
                    .sync = true});
    if (!offset.ok()) return offset.status();
    team.info.sync_offset_bytes = *offset;
  }
  ++job.next_team;
  job.slots_in_use.insert(slot);
  return job.teams.emplace(team.info.id, std::move(team)).first->second.info;
}

void UnmakeLastTeam(Job& job) {
  GiveBackSlotAndArea(job, job.teams.at(--job.next_team).info);
  job.teams.erase(job.next_team);
}

void GiveBackSlotAndArea(Job& job, const TeamInfo& team) {
  job.slots_in_use.erase(team.barrier_slot);
  if (job.team_sync_bytes == 0) return;
  const absl::Status freed = Unplace(job, team.sync_offset_bytes);
  IRIS_CHECK(freed.ok(), "a team's barrier area is allocated");
}

void MakeOwnTeams(Job& job) {
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    Team team;
    team.info.id = OwnTeam(rank);
    team.info.ranks = {rank};
    team.position.resize(1);
    job.teams.emplace(team.info.id, std::move(team));
  }
}

}  // namespace iris::server
