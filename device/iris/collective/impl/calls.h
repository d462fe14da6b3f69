// The arguments of collective kernels besides Common, and how messages share a Comm.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/rounds/layout.h"

namespace iris::ccl::impl {

// The most messages that a launch moves at once.
inline constexpr uint32_t kMaxMessages = 8;

// The partition of a Comm's blocks and stages among messages, the same on all ranks. A launch has
// messages of `distances` distances in the team, one from and one to each rank at each distance.
struct MessagePlaces {
  uint32_t blocks;     // of a message, at most
  uint32_t distances;  // in a launch
};
constexpr MessagePlaces PlacesOf(const Config& config) {
  const uint32_t half = config.max_blocks < 2 ? 1 : config.max_blocks / 2;
  const uint32_t blocks = half < kPairBlocks ? half : kPairBlocks;
  const uint32_t distances = half / blocks;
  return {blocks, distances < kMaxMessages / 2 ? distances : kMaxMessages / 2};
}

// The pattern of rows that ranks send. A row is the data of one rank for one other.
enum class Pattern : uint32_t { kAllGather, kAllToAll, kBroadcast, kGather, kScatter };

// A reduction. Row r of `in` begins at element r * count and ends before `limit`. This rank reduces
// row `row` and stores it to itself (kSelf), to all (kAll), or to rank `target`.
struct ReduceCall {
  const uint8_t* in;
  uint8_t* out;
  uint64_t count;  // elements of a row
  uint64_t limit;
  uint32_t rows;
  uint32_t row;
  uint32_t target;
  uint32_t divide;  // the divisor of the result
  uint32_t unroll;  // of the plan
  ReduceOp op;
  static constexpr uint32_t kAll = ~0u;
  static constexpr uint32_t kSelf = ~0u - 1;
};

// A movement of rows of `count` bytes.
struct MoveCall {
  const uint8_t* in;
  uint8_t* out;
  uint64_t count;
  Pattern pattern;
  uint32_t root;
  uint32_t unroll;
};

// A message of a launch, which has blocks `first` to `first + count` - 1 of its `blocks` blocks.
struct PairCall {
  Common common;
  MoveCall move;
  uint16_t blocks;
  uint8_t first;
  uint8_t count;
};
template <uint32_t N>
struct PairCalls {
  PairCall each[N];
};
static_assert(sizeof(PairCalls<kMaxMessages>) <= 4000, "a launch takes 4 KiB of arguments");

struct VectorCall {
  const uint8_t* in;
  uint8_t* out;
  Vector rows;
};

}  // namespace iris::ccl::impl
