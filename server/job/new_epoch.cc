#include "server/job/new_epoch.h"

#include <algorithm>
#include <vector>

#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/job_teams.h"

namespace iris::server {
namespace {

void CarryOver(Team& team) {
  IRIS_CHECK(!team.op.has_value(), "no operation is under way between two epochs");
  std::fill(team.position.begin(), team.position.end(), team.next_k);
  team.history.clear();
  team.info.barrier_start_epoch = 0;
}

}  // namespace

void NewEpoch(Job& job, absl::Time wall) {
  IRIS_CHECK(!job.growth.has_value() && job.growth_queue.empty(),
             "no growth is under way between two epochs");
  job.slot_epochs.clear();
  job.past_teams.Change().clear();
  job.value_bytes = 0;
  job.last_growth = GrowDone();
  job.last_published = GrowId();
  if (job.teams.empty()) {
    job.allocator = OffsetAllocator(job.heap_bytes);
    std::vector<Rank> everyone(job.n_ranks());
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) everyone[rank] = rank;
    IRIS_CHECK(MakeTeam(job, everyone, 0, wall).ok(),
               "an empty heap holds the world's barrier area");
    MakeOwnTeams(job);
  } else {
    for (const auto& [id, team] : job.teams) CarryOver(job.teams.at(id));
  }
  job.same_address = std::all_of(job.ranks.begin(), job.ranks.end(), [](const Member& member) {
    return member.base == wire::kProposedBase;
  });
  job.broken_reason.clear();
  job.state = JobState::kReady;
}

}  // namespace iris::server
