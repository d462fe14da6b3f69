// Teams of a job: each has a barrier slot and an area in the heap. Not thread-safe: inside the
// JobMachine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/job/job.h"

namespace iris::server {

// A barrier slot for a new team: nobody's, and not worn out.
std::optional<uint32_t> FreeSlot(const Job& job);

// Makes the job's next team, with a free slot. An error leaves the job as it was: there is no room
// for the team's area (see Place).
absl::StatusOr<TeamInfo> MakeTeam(Job& job, const std::vector<Rank>& ranks, uint32_t slot,
                                  absl::Time wall);

// Takes back the team that MakeTeam made last, before anybody knows of it.
void UnmakeLastTeam(Job& job);

// Frees the barrier slot and the area of a team that ends.
void GiveBackSlotAndArea(Job& job, const TeamInfo& team);

// Makes the team of every rank alone.
void MakeOwnTeams(Job& job);

}  // namespace iris::server
