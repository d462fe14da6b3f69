// How the room of a device is divided among Comms.
#include "iris/rounds/residency.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace iris::ccl {
namespace {

uint32_t ShareOfEach(uint32_t slots, const std::vector<Claim>& claims) {
  uint32_t share = 0;
  return DivideSlots(slots, slots / 32, claims, &share) ? share : 0;
}

Claim Plain(uint32_t most) {
  Claim claim;
  claim.most = most;
  return claim;
}
Claim Whole(uint32_t most) {
  Claim claim = Plain(most);
  claim.whole = true;
  return claim;
}

// On a GPU of 132 multiprocessors, one and two Comms lose nothing.
TEST(ResidencyTest, OneAndTwoHaveAll) {
  EXPECT_EQ(ShareOfEach(132, {Plain(128)}), 128u);
  EXPECT_EQ(ShareOfEach(132, {Plain(128), Plain(128)}), 128u);
  EXPECT_EQ(ShareOfEach(132, {Plain(66), Plain(66)}), 66u);
  EXPECT_EQ(ShareOfEach(132, {Plain(44), Plain(44), Plain(44)}), 44u);
}

TEST(ResidencyTest, MoreShareTheRoom) {
  EXPECT_EQ(ShareOfEach(132, {Plain(128), Plain(128), Plain(128)}), 64u);
  EXPECT_EQ(ShareOfEach(132, std::vector<Claim>(9, Plain(128))), 16u);
  EXPECT_EQ(ShareOfEach(132, std::vector<Claim>(33, Plain(128))), 4u);
  EXPECT_EQ(ShareOfEach(132, std::vector<Claim>(132, Plain(128))), 1u);
  EXPECT_EQ(ShareOfEach(132, std::vector<Claim>(133, Plain(128))), 0u);
  // The third begins while the others have all that they may.
  EXPECT_EQ(ShareOfEach(132, {Plain(128), Plain(128), Plain(16)}), 64u);
}

TEST(ResidencyTest, ProductsNeedAllOfTheirBlocksAtOnce) {
  EXPECT_EQ(ShareOfEach(132, {Whole(132)}), 132u);
  EXPECT_EQ(ShareOfEach(132, {Whole(132), Plain(128)}), 66u);
  EXPECT_EQ(ShareOfEach(132, {Whole(132), Plain(16)}), 116u);
  EXPECT_EQ(ShareOfEach(132, {Whole(66), Whole(66)}), 66u);
}

TEST(ResidencyTest, WhoNeedsBlocksAtOnceGetsThem) {
  Claim norm = Plain(128);
  norm.together = 32;
  EXPECT_EQ(ShareOfEach(132, {norm, Plain(128)}), 100u);
  // Even where the others have less.
  std::vector<Claim> many(17, Plain(128));
  many[0].together = 8;
  const uint32_t share = ShareOfEach(132, many);
  EXPECT_EQ(share, 7u);
  EXPECT_EQ(PieceOf(many[0], share), 8u);
  EXPECT_EQ(PieceOf(many[1], share), 7u);
}

TEST(ResidencyTest, WhatIsCapturedStays) {
  Claim captured = Plain(128);
  captured.kept = 128;
  EXPECT_EQ(ShareOfEach(132, {captured, Plain(128)}), 128u);
  EXPECT_EQ(ShareOfEach(132, {captured, Plain(128), Plain(128)}), 3u);
  EXPECT_EQ(ShareOfEach(132, {captured, captured, Plain(128)}), 0u);
  captured.kept = 64;
  EXPECT_EQ(ShareOfEach(132, {captured, Plain(128), Plain(128)}), 64u);
}

TEST(ResidencyTest, ATeamOfOneTakesRoomOnlyWhereItsBlocksWaitForEachOther) {
  Claim own;
  own.own = true;
  own.most = own.together = 0;
  EXPECT_EQ(ShareOfEach(132, {Whole(132), own}), 132u);
  EXPECT_EQ(ShareOfEach(132, {Plain(128), Plain(128), own, own}), 128u);
  own.together = 8;
  EXPECT_EQ(ShareOfEach(132, {Whole(132), own}), 124u);
  EXPECT_EQ(ShareOfEach(132, {Plain(128), own}), 124u);
}

// A model of devices and of Comms on streams of their own, that start in another order on each
// rank. A device starts the blocks of a launch in their order, then those of the next launch, as
// long as it has a slot. A block ends when the same block of all other ranks has begun and, if
// blocks wait for each other, its neighbours have. The model returns true if all blocks end.
struct Call {
  uint32_t blocks;
  uint32_t together;
};
bool AllEnd(uint32_t n_ranks, uint32_t slots, const std::vector<Call>& calls,
            const std::vector<uint32_t>& pieces, const std::vector<std::vector<uint32_t>>& orders) {
  const size_t n = calls.size();
  // Counts, for each rank and Comm, the blocks that have begun, and those that have ended.
  std::vector<std::vector<uint32_t>> begun(n_ranks, std::vector<uint32_t>(n));
  std::vector<std::vector<uint32_t>> ended = begun;
  for (;;) {
    bool moved = false;
    for (uint32_t r = 0; r < n_ranks; ++r) {
      uint32_t used = 0;
      for (size_t c = 0; c < n; ++c) used += begun[r][c] - ended[r][c];
      // The device looks at the launches in the order in which they came to it.
      for (const uint32_t c : orders[r]) {
        const uint32_t piece_end =
            std::min(calls[c].blocks, ended[r][c] / pieces[c] * pieces[c] + pieces[c]);
        while (begun[r][c] < piece_end && used < slots) {
          ++begun[r][c];
          ++used;
          moved = true;
        }
        if (begun[r][c] < piece_end) break;
      }
    }
    for (uint32_t r = 0; r < n_ranks; ++r) {
      for (size_t c = 0; c < n; ++c) {
        while (ended[r][c] < begun[r][c]) {
          const uint32_t block = ended[r][c];
          const uint32_t group_end =
              std::min(calls[c].blocks, (block / calls[c].together + 1) * calls[c].together);
          const bool all = std::all_of(begun.begin(), begun.end(),
                                       [&](const auto& rank) { return rank[c] >= group_end; });
          if (!all) break;
          ++ended[r][c];
          moved = true;
        }
      }
    }
    bool done = true;
    for (uint32_t r = 0; r < n_ranks; ++r) {
      for (size_t c = 0; c < n; ++c) done = done && ended[r][c] == calls[c].blocks;
    }
    if (done) return true;
    if (!moved) return false;
  }
}

TEST(ResidencyTest, AnyOrderEndsInTheModel) {
  std::mt19937 random(7);
  const auto up_to = [&](uint32_t most) {
    return std::uniform_int_distribution<uint32_t>(1, most)(random);
  };
  uint32_t stuck_without = 0;
  for (int turn = 0; turn < 4000; ++turn) {
    const uint32_t n_ranks = 1 + up_to(3);
    const uint32_t slots = 3 + up_to(20);
    const uint32_t n = 1 + up_to(4);
    std::vector<Claim> claims(n);
    std::vector<Call> calls(n);
    for (uint32_t c = 0; c < n; ++c) {
      calls[c].together = up_to(3);
      calls[c].blocks = calls[c].together * up_to(24 / calls[c].together);
      claims[c].most = calls[c].blocks;
      claims[c].together = calls[c].together;
      if (up_to(6) == 1) {  // all wait for each other
        calls[c].blocks = std::min(calls[c].blocks, slots / n);
        if (calls[c].blocks == 0) calls[c].blocks = 1;
        calls[c].together = calls[c].blocks;
        claims[c] = {calls[c].blocks, calls[c].blocks, 0, true};
      }
    }
    uint32_t share = 0;
    if (!DivideSlots(slots, up_to(4), claims, &share)) continue;
    std::vector<uint32_t> pieces;
    std::vector<uint32_t> whole;
    for (uint32_t c = 0; c < n; ++c) {
      const uint32_t room = PieceOf(claims[c], share);
      pieces.push_back(room / calls[c].together * calls[c].together);
      whole.push_back(calls[c].blocks);
    }
    std::vector<std::vector<uint32_t>> orders(n_ranks);
    for (auto& order : orders) {
      for (uint32_t c = 0; c < n; ++c) order.push_back(c);
      std::shuffle(order.begin(), order.end(), random);
    }
    ASSERT_TRUE(AllEnd(n_ranks, slots, calls, pieces, orders)) << "turn " << turn;
    stuck_without += AllEnd(n_ranks, slots, calls, whole, orders) ? 0 : 1;
  }
  // The model is one in which Comms do stop each other.
  EXPECT_GT(stuck_without, 100u);
}

}  // namespace
}  // namespace iris::ccl
