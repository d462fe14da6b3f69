// Strong ids of the server. Zero is never a valid id.
#pragma once

#include <compare>
#include <cstdint>

#include "absl/hash/hash.h"
#include "proto/wire/limits.h"

namespace iris::server {

template <typename Tag>
struct Id {
  uint64_t value = 0;
  friend auto operator<=>(const Id&, const Id&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Id& id) {
    return H::combine(std::move(h), id.value);
  }
};

using SessionId = Id<struct SessionTag>;
using JobId = Id<struct JobTag>;
using SegmentId = Id<struct SegmentTag>;
using GrowId = Id<struct GrowTag>;
// Names a pending RPC, which is answered exactly once.
using CallId = Id<struct CallTag>;
using Rank = uint32_t;
using TeamId = uint32_t;
inline constexpr TeamId kWorldTeam = 0;
// Returns the rank's own team, of which the rank is the only member. It exists from the job's first
// epoch to the job's end. It has no barrier and no area, and is neither counted nor listed.
constexpr TeamId OwnTeam(Rank rank) { return wire::kFirstOwnTeam + rank; }
constexpr bool IsOwnTeam(TeamId team) { return team >= wire::kFirstOwnTeam; }
constexpr Rank OwnerOf(TeamId team) { return team - wire::kFirstOwnTeam; }

}  // namespace iris::server
