// The arguments of collective kernels besides Common, and how messages share a Comm.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/rounds/layout.h"

namespace iris::ccl::impl {

// Messages that a launch moves at once.
inline constexpr uint32_t kMaxMessages = 8;

// How messages share the blocks and stages of a Comm: a launch has messages of so many distances in
// the team, one from and one to each member. The same on all members.
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

// The pattern of rows that members send. A row is the data of one member for one other.
enum class Pattern : uint32_t { kAllGather, kAllToAll, kBroadcast, kGather, kScatter };

// A reduction. Row r of `in` begins at element r * count and ends before `limit`. This member
// reduces row `row` and gives it to itself (kSelf), to all (kAll), or to a member.
struct ReduceCall {
  const uint8_t* in;
  uint8_t* out;
  uint64_t count;  // elements of a row
  uint64_t limit;
  uint32_t rows;
  uint32_t row;
  uint32_t target;
  uint32_t divide;  // the result, by this
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

// Messages of one launch, which has `count` blocks of each from `first` on.
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
