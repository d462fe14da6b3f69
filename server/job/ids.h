// Strong ids of the server. Zero is never a valid id.
#pragma once

#include <compare>
#include <cstdint>

#include "absl/hash/hash.h"

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
// One pending RPC, to be answered exactly once.
using CallId = Id<struct CallTag>;
using Rank = uint32_t;
using TeamId = uint32_t;
inline constexpr TeamId kWorldTeam = 0;

}  // namespace iris::server
