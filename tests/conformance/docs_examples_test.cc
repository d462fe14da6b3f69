// The examples of docs/programming_model.md, run as they stand there: tests/docs/snippets.py makes
// programming_model.h from the text of the page.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/collective/tile.h"
#include "iris/device.h"
#include "tests/conformance/world.h"
#include "tests/docs/programming_model.h"

namespace iris::conformance {
namespace {

using namespace docs::programming_model;

// Shared memory, warps and blocks.

TEST(DocsTest, SharedMemory) {
  World(1).Run([](Rank& rank) {
    const uint32_t n = 2 * backend::WarpSize();
    float* x = rank.New<float>(3 * n);
    float* sums = rank.New<float>(3);
    rank.Write(x, std::vector<float>(3 * n, 2.0f));
    rank.Launch({3, n}, BlockSum, static_cast<const float*>(x), sums);
    EXPECT_EQ(rank.Read(sums, 3), std::vector<float>(3, 2.0f * static_cast<float>(n)));
  });
}

// Reaching a peer.

TEST(DocsTest, Reach) {
  World(3).Run([](Rank& rank) {
    int* mine = rank.New<int>(1);
    int* theirs = rank.New<int>(1);
    float* a = rank.New<float>(77);
    float* b = rank.New<float>(77);
    rank.Write(mine, static_cast<int>(rank.rank()));
    rank.Write(a, std::vector<float>(77, static_cast<float>(rank.rank())));
    rank.HostBarrier();
    rank.Launch({}, RotateValues, rank.ctx, static_cast<const int*>(mine), theirs);
    rank.Launch({1, 64}, RotateRange, rank.ctx, static_cast<const float*>(a), b, uint64_t{77});
    rank.Synchronize();
    rank.HostBarrier();
    const uint32_t before = (rank.rank() + 2) % 3;
    EXPECT_EQ(rank.Read(theirs), static_cast<int>(before));
    EXPECT_EQ(rank.Read(b, 77), std::vector<float>(77, static_cast<float>(before)));
  });
}

// Signals.

TEST(DocsTest, Signals) {
  World(2).Run([](Rank& rank) {
    float* edge = rank.New<float>(50);
    float* ghost = rank.New<float>(50);
    uint64_t* ready = rank.New<uint64_t>(1);
    uint64_t* taken = rank.New<uint64_t>(1);
    WaitFailure* failure = rank.New<WaitFailure>(1);
    rank.Write(edge, std::vector<float>(50, 1.0f));
    rank.HostBarrier();
    rank.Launch({1, 32}, Steps, rank.ctx, edge, ghost, uint64_t{50}, ready, taken, uint64_t{10},
                WaitReport{failure});
    EXPECT_EQ(rank.Read(failure).state, WaitFailure::kNone);
    EXPECT_EQ(rank.Read(edge, 50), std::vector<float>(50, 1024.0f));  // both double each step
  });
}

// Whole grids, and rows of a matrix.

TEST(DocsTest, SumOfEdges) {
  World(3).Run([](Rank& rank) {
    constexpr uint64_t kRows = 100, kColumns = 7;
    float* tile = rank.New<float>(kRows * kColumns);
    float* edges = rank.New<float>(3 * kRows);
    float* sums = rank.New<float>(kRows);
    std::vector<float> values(kRows * kColumns, -1000.0f);
    for (uint64_t i = 0; i < kRows; ++i) {
      values[i * kColumns + kColumns - 1] = static_cast<float>(i * 10 + rank.rank());
    }
    rank.Write(tile, values);
    rank.HostBarrier();
    const float* t = tile;
    rank.Launch({2, 32}, SumOfEdges, rank.ctx, t, kRows, kColumns, edges, sums);
    const std::vector<float> got = rank.Read(sums, kRows);
    for (uint64_t i = 0; i < kRows; ++i) ASSERT_EQ(got[i], static_cast<float>(i * 30 + 3));
  });
}

// Atomics.

TEST(DocsTest, Atomics) {
  World(3).Run([](Rank& rank) {
    uint32_t* tickets = rank.New<uint32_t>(1);
    uint32_t* owner = rank.New<uint32_t>(500);
    rank.HostBarrier();
    rank.Launch({2, 16}, TakeTickets, rank.ctx, tickets, owner, 500u);
    rank.Synchronize();
    rank.HostBarrier();
    if (rank.rank() == 0) {
      for (uint32_t who : rank.Read(owner, 500)) ASSERT_TRUE(who >= 1 && who <= 3);
      EXPECT_EQ(rank.Read(tickets), 500u + 3 * 32);  // each thread looked once in vain
    }
  });
}

// The device barrier.

TEST(DocsTest, DeviceBarrier) {
  World(4).Run([](Rank& rank) {
    float* value = rank.New<float>(1);
    float* maximum = rank.New<float>(1);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.Write(value, static_cast<float>(rank.rank() * 3 % 4));
    rank.HostBarrier();
    rank.Launch({1, 32}, AllMaximum, rank.ctx, rank.ctx.world, value, maximum, failed);
    EXPECT_EQ(rank.Read(maximum), 3.0f);
    EXPECT_EQ(rank.Read(failed), 0u);
  });
}

// Collectives of tiles. What the page shows of hosts is run by tests/integration/docs_test.cc.

TEST(DocsTest, Tiles) {
  World(3).Run([](Rank& rank) {
    float* tiles = rank.New<float>(3 * 70);
    uint32_t* failed = rank.New<uint32_t>(1);
    rank.Write(tiles, std::vector<float>(3 * 70, static_cast<float>(2 * rank.rank())));
    rank.HostBarrier();
    rank.Launch({3, 64}, NormalizeTiles, rank.ctx, tiles, uint64_t{70}, failed);
    EXPECT_EQ(rank.Read(tiles, 3 * 70), std::vector<float>(3 * 70, 1.0f));
    EXPECT_EQ(rank.Read(failed), 0u);
  });
}

}  // namespace
}  // namespace iris::conformance
