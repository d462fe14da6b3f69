// ShareOf: how work is dealt out evenly that the number of workers need not divide.
//
//   // This block's share of n floats. That of a rank would be ShareOf(n, ctx.n_ranks, ctx.rank).
//   const Share mine = ShareOf(n, backend::GridSize(), backend::BlockIndex());
//   Put(ctx, peer, inbox + mine.begin, from + mine.begin, mine.count, Block{});
//
// On hosts and in kernels. It is how iris::ops and iris::norm deal out rows and columns, too.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"

namespace iris {

// The elements from `begin` on, before `end()`.
struct Share {
  uint64_t begin = 0;
  uint64_t count = 0;

  IRIS_HOST_DEVICE constexpr uint64_t end() const { return begin + count; }
};

// The share of one of `parts`, at least one, in `n` elements: `part` counts from 0. The shares lie
// one behind the other, and the first (n mod parts) have an element more than the others, so that a
// share is empty where there are fewer elements than parts.
IRIS_HOST_DEVICE constexpr Share ShareOf(uint64_t n, uint32_t parts, uint32_t part) {
  const uint64_t each = n / parts;
  const uint64_t longer = n % parts;
  return {part * each + (part < longer ? part : longer), each + (part < longer ? 1 : 0)};
}

}  // namespace iris
