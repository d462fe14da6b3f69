// ShareOf partitions work evenly, even if the number of workers does not divide it.
//
//   // This block's share of n floats. That of a rank would be ShareOf(n, ctx.n_ranks, ctx.rank).
//   const Share mine = ShareOf(n, backend::GridSize(), backend::BlockIndex());
//   Put(ctx, peer, inbox + mine.begin, from + mine.begin, mine.count, Block{});
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

// Returns share `part`, from 0, of n elements in parts >= 1 shares. Shares follow each other; the
// first (n mod parts) have one element more, so later ones may be empty.
IRIS_HOST_DEVICE constexpr Share ShareOf(uint64_t n, uint32_t parts, uint32_t part) {
  const uint64_t each = n / parts;
  const uint64_t longer = n % parts;
  return {part * each + (part < longer ? part : longer), each + (part < longer ? 1 : 0)};
}

}  // namespace iris
