// How the host writes the ranks of a team for kernels, which read them by MemberRank (translate.h).
#pragma once

#include <cstdint>

#include "iris/types.h"

namespace iris {

// Writes the ranks of a team, `team->size` of them. Those of one node are `n_local` from
// `first_local` on; if the team has others, `ranks` must stay where it is, in memory that kernels
// read.
inline void SetMembers(const uint32_t* ranks, uint32_t first_local, uint32_t n_local,
                       DeviceTeam* team) {
  bool local = team->size <= kMaxTeamRanks;
  bool even = team->size > 1;
  const uint32_t step = even ? ranks[1] - ranks[0] : 0;
  for (uint32_t i = 0; i < team->size; ++i) {
    local = local && ranks[i] - first_local < n_local && ranks[i] - first_local < 256;
    even = even && ranks[i] == ranks[0] + i * step;
  }
  even = even && step > 0 && step < DeviceTeam::kTable && ranks[0] < 0x10000;
  team->first = static_cast<uint16_t>(local ? first_local : even ? ranks[0] : 0);
  team->step = local  ? DeviceTeam::kListed
               : even ? static_cast<uint16_t>(step)
                      : DeviceTeam::kTable;
  if (local) {
    for (uint32_t i = 0; i < team->size; ++i) {
      team->members[i] = static_cast<uint8_t>(ranks[i] - first_local);
    }
  } else if (!even) {
    const uint64_t table = reinterpret_cast<uint64_t>(ranks);
    __builtin_memcpy(team->members, &table, sizeof(table));
  }
}

}  // namespace iris
