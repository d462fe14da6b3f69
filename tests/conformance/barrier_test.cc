// The device barrier: what it orders, over teams, blocks, the wrap of its epochs and failures.
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

constexpr uint64_t kMillisecondNs = 1000 * 1000;

// Each round, all threads write into their own heap, and after a barrier read what their
// counterparts wrote in all others. The second barrier keeps the fast from overwriting what the
// slow still read.
template <typename Meet>
IRIS_DEVICE void ExchangeRounds(const DeviceContext& ctx, const DeviceTeam& team, uint32_t* x,
                                uint32_t rounds, uint64_t* bad, Meet meet) {
  const uint32_t id = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
  const uint32_t reversed = backend::BlockIndex() * backend::BlockSize() + backend::BlockSize() -
                            1 - backend::ThreadIndex();
  for (uint32_t k = 1; k <= rounds; ++k) {
    x[id] = k * 1000 + team.index;
    if (meet() != WaitResult::kOk) {
      *bad = ~0ull;
      return;
    }
    for (uint32_t m = 0; m < team.size; ++m) {
      if (Load(ctx, team.members[m], x + reversed) != k * 1000 + m) {
        (void)AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, ctx.rank, bad, 1);
      }
    }
    if (meet() != WaitResult::kOk) {
      *bad = ~0ull;
      return;
    }
  }
}

IRIS_KERNEL void Exchange(DeviceContext ctx, DeviceTeam team, uint32_t* x, uint32_t rounds,
                          uint64_t* bad) {
  ExchangeRounds(ctx, team, x, rounds, bad, [&] { return Barrier(ctx, team); });
}

// Series and single barriers in turn: they count the same epochs.
IRIS_KERNEL void ExchangeInSeries(DeviceContext ctx, DeviceTeam team, uint32_t* x, uint32_t rounds,
                                  uint64_t* bad) {
  for (uint32_t k = 0; k < rounds; ++k) {
    {
      BarrierSeries barriers(ctx, team);
      ExchangeRounds(ctx, team, x, k % 3, bad, [&] { return barriers.Wait(); });
    }
    ExchangeRounds(ctx, team, x, k % 2, bad, [&] { return Barrier(ctx, team); });
  }
}

using ExchangeParam = std::tuple<uint32_t, uint32_t, uint32_t>;  // ranks, blocks, threads
class ExchangeTest : public testing::TestWithParam<ExchangeParam> {};

TEST_P(ExchangeTest, WhatWasWrittenBeforeIsReadAfter) {
  const auto [ranks, blocks, threads] = GetParam();
  const LaunchConfig config = {blocks, threads};
  World(ranks).Run([config](Rank& rank) {
    uint32_t* x = rank.New<uint32_t>(config.grid * config.block);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    rank.Launch(config, Exchange, rank.ctx, rank.ctx.world, x, 24u / kSlower, bad);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

std::string ExchangeName(const testing::TestParamInfo<ExchangeParam>& info) {
  return std::to_string(std::get<0>(info.param)) + "Ranks" +
         std::to_string(std::get<1>(info.param)) + "Blocks" +
         std::to_string(std::get<2>(info.param)) + "Threads";
}

INSTANTIATE_TEST_SUITE_P(Barrier, ExchangeTest,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 8), testing::Values(1, 4),
                                          testing::Values(1, 3, 64)),
                         ExchangeName);

TEST(BarrierTest, AsManyBlocksAsThereAreSlots) {
  World(2).Run([](Rank& rank) {
    const uint32_t blocks = SyncArea::kMaxBlocks;
    uint32_t* x = rank.New<uint32_t>(blocks * 2);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    rank.Launch({blocks, 2}, Exchange, rank.ctx, rank.ctx.world, x, 2u, bad);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

TEST(BarrierTest, SeriesCountTheSameEpochs) {
  World(4).Run([](Rank& rank) {
    uint32_t* x = rank.New<uint32_t>(2 * 40);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    rank.Launch({2, 40}, ExchangeInSeries, rank.ctx, rank.ctx.world, x, 24u / kSlower, bad);
    rank.Launch({2, 40}, Exchange, rank.ctx, rank.ctx.world, x, 2u, bad);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

// A series whose barrier fails has used up its epoch as a barrier does.
// Whole grids.

// Each block writes, and behind the barrier reads what all blocks of all grids wrote. `step`: ranks
// have different numbers of blocks.
template <bool kOfRanks>
IRIS_KERNEL void ExchangeOfGrids(DeviceContext ctx, DeviceTeam team, uint32_t* x, uint32_t blocks,
                                 uint32_t step, uint32_t rounds, uint64_t* bad) {
  const auto meet = [&] { return kOfRanks ? GridBarrier(ctx, team) : GridBarrier(ctx); };
  const uint32_t me = backend::BlockIndex();
  for (uint32_t k = 1; k <= rounds; ++k) {
    if (backend::ThreadIndex() + 1 == backend::BlockSize()) x[me] = k * 1000 + team.index;
    if (meet() != WaitResult::kOk) {
      *bad = ~0ull;
      return;
    }
    for (uint32_t m = 0; m < team.size; ++m) {
      if (!kOfRanks && m != team.index) continue;
      for (uint32_t b = backend::ThreadIndex(); b < blocks + m * step; b += backend::BlockSize()) {
        if (Load<CacheHint::kVolatile>(ctx, team.members[m], x + b) != k * 1000 + m) {
          (void)AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, ctx.rank, bad, 1);
        }
      }
    }
    if (meet() != WaitResult::kOk) {
      *bad = ~0ull;
      return;
    }
  }
}

using GridParam = std::tuple<uint32_t, uint32_t, uint32_t>;  // ranks, blocks, threads
class GridBarrierTest : public testing::TestWithParam<GridParam> {};
INSTANTIATE_TEST_SUITE_P(Barrier, GridBarrierTest,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(1, 2, 9, 40),
                                          testing::Values(1, 64)));

TEST_P(GridBarrierTest, WhatTheGridsWroteBeforeIsReadAfter) {
  const uint32_t n = std::get<0>(GetParam());
  const uint32_t blocks = std::get<1>(GetParam());
  const uint32_t threads = std::get<2>(GetParam());
  World(n).Run([=](Rank& rank) {
    uint32_t* x = rank.New<uint32_t>(blocks + n);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    // Grids of one launch do not disturb those of the next, of another size.
    for (const uint32_t grid : {blocks, blocks + 1}) {
      rank.Launch({grid + rank.rank(), threads}, ExchangeOfGrids<true>, rank.ctx, rank.ctx.world, x,
                  grid, 1u, 20u, bad);
      EXPECT_EQ(rank.Read(bad), 0u);
      rank.Launch({grid, threads}, ExchangeOfGrids<false>, rank.ctx, rank.ctx.world, x, grid, 0u,
                  20u, bad);
      EXPECT_EQ(rank.Read(bad), 0u);
      rank.HostBarrier();
    }
  });
}

// All blocks but `absent` meet.
IRIS_KERNEL void MeetWithout(DeviceContext ctx, uint32_t absent, uint64_t timeout_ns,
                             uint32_t* results) {
  if (backend::BlockIndex() == absent) return;
  const WaitResult result = GridBarrier(ctx, timeout_ns);
  if (backend::ThreadIndex() == 1) results[backend::BlockIndex()] = static_cast<uint32_t>(result);
}
IRIS_KERNEL void MeetRanks(DeviceContext ctx, uint64_t timeout_ns, uint32_t* results,
                           uint32_t* missing) {
  uint32_t who = 77;
  const WaitResult result = GridBarrier(ctx, ctx.world, timeout_ns, &who);
  if (backend::ThreadIndex() != 1) return;
  results[backend::BlockIndex()] = static_cast<uint32_t>(result);
  missing[backend::BlockIndex()] = who;
}

TEST(GridBarrierFailureTest, ABlockThatDoesNotComeAndThenDoes) {
  World(1).Run([](Rank& rank) {
    uint32_t* results = rank.New<uint32_t>(4);
    rank.Write(results, std::vector<uint32_t>(4, 7));
    rank.Launch({4, 32}, MeetWithout, rank.ctx, 2u, 10 * kMillisecondNs, results);
    EXPECT_EQ(rank.Read(results, 4), (std::vector<uint32_t>{1, 1, 7, 1}));  // kTimeout
    // Nobody counts as arrived.
    rank.Launch({4, 32}, MeetWithout, rank.ctx, 2u, 10 * kMillisecondNs, results);
    EXPECT_EQ(rank.Read(results, 4), (std::vector<uint32_t>{1, 1, 7, 1}));
    rank.Launch({4, 32}, MeetWithout, rank.ctx, 9u, 10'000 * kMillisecondNs, results);
    EXPECT_EQ(rank.Read(results, 4), (std::vector<uint32_t>{0, 0, 0, 0}));
  });
}

TEST(GridBarrierFailureTest, ARankThatDoesNotComeIsNamedToTheFirstBlock) {
  World(3).Run([](Rank& rank) {
    uint32_t* results = rank.New<uint32_t>(3);
    uint32_t* missing = rank.New<uint32_t>(3);
    rank.HostBarrier();
    if (rank.rank() != 1) {
      rank.Launch({3, 32}, MeetRanks, rank.ctx, 50 * kMillisecondNs, results, missing);
      EXPECT_EQ(rank.Read(results, 3), (std::vector<uint32_t>{1, 1, 1}));
      EXPECT_EQ(rank.Read(missing, 3), (std::vector<uint32_t>{1, 77, 77}));
    }
    rank.HostBarrier();
  });
}

IRIS_KERNEL void OneWait(DeviceContext ctx, uint64_t timeout_ns, uint32_t* results,
                         uint32_t* missing) {
  BarrierSeries barriers(ctx, ctx.world);
  uint32_t who = 77;
  results[backend::ThreadIndex()] = static_cast<uint32_t>(barriers.Wait(timeout_ns, &who));
  missing[backend::ThreadIndex()] = who;
}

TEST(BarrierTest, AFailureInASeriesNamesTheMissingAndStaysInStep) {
  World(3).Run([](Rank& rank) {
    constexpr uint32_t kThreads = 40;
    uint32_t* results = rank.New<uint32_t>(kThreads);
    uint32_t* missing = rank.New<uint32_t>(kThreads);
    rank.HostBarrier();
    if (rank.rank() != 2) {
      rank.Launch({1, kThreads}, OneWait, rank.ctx, 5 * kMillisecondNs, results, missing);
      EXPECT_EQ(rank.Read(results, kThreads),
                std::vector<uint32_t>(kThreads, static_cast<uint32_t>(WaitResult::kTimeout)));
      EXPECT_EQ(rank.Read(missing, kThreads), std::vector<uint32_t>(kThreads, 2));
    }
    rank.HostBarrier();
    // The late one passes, and then all meet.
    for (uint32_t k = rank.rank() == 2 ? 0 : 1; k < 3; ++k) {
      rank.Launch({1, kThreads}, OneWait, rank.ctx, uint64_t{0}, results, missing);
      EXPECT_EQ(rank.Read(results, kThreads), std::vector<uint32_t>(kThreads, 0));
    }
  });
}

TEST(BarrierTest, EpochsGoOnOverLaunchesOfDifferentGrids) {
  World(3).Run([](Rank& rank) {
    uint32_t* x = rank.New<uint32_t>(8 * 32);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    for (uint32_t k = 0; k < 30 / kSlower; ++k) {
      rank.Launch({1 + k % 5, 1 + k * 7 % 32}, Exchange, rank.ctx, rank.ctx.world, x, 1 + k % 3,
                  bad);
    }
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

// Puts all slots of the team at `epoch`, as if so many calls had been made.
void SetEpoch(Rank& rank, const DeviceTeam& team, uint32_t epoch) {
  std::vector<SyncArea::Slot> slots(SyncArea::kMaxBlocks);
  for (SyncArea::Slot& slot : slots) {
    slot = {};
    for (uint32_t& word : slot.inbox) word = epoch;
    slot.epoch = epoch;
  }
  rank.Write(AtOffset<SyncArea::Slot>(rank.ctx, rank.rank(), team.sync_offset_bytes), slots);
}

class WrapTest : public testing::TestWithParam<uint32_t> {};
TEST_P(WrapTest, EpochsWrap) {
  World(3).Run([](Rank& rank) {
    uint32_t* x = rank.New<uint32_t>(2 * 16);
    uint64_t* bad = rank.New<uint64_t>(1);
    SetEpoch(rank, rank.ctx.world, GetParam());
    rank.HostBarrier();
    rank.Launch({2, 16}, Exchange, rank.ctx, rank.ctx.world, x, 10u, bad);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
    const SyncArea::Slot* slot = AtOffset<SyncArea::Slot>(rank.ctx, rank.rank(), 0);
    EXPECT_EQ(rank.Read(&slot->epoch), static_cast<uint32_t>(GetParam() + 20));
  });
}
INSTANTIATE_TEST_SUITE_P(From, WrapTest,
                         testing::Values(0xfffffffdu, 0xfffffff0u, 0xffffffffu, 0x7ffffffdu));

// Teams.

TEST(BarrierTeamTest, MembersInAnyOrder) {
  World(4).Run([](Rank& rank) {
    const DeviceTeam team = rank.NewTeam({3, 0, 2, 1});
    uint32_t* x = rank.New<uint32_t>(2 * 32);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    rank.Launch({2, 32}, Exchange, rank.ctx, team, x, 10u, bad);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

TEST(BarrierTeamTest, OfOneRankAlone) {
  World(2).Run([](Rank& rank) {
    const DeviceTeam teams[] = {rank.NewTeam({0}), rank.NewTeam({1})};
    uint32_t* x = rank.New<uint32_t>(32);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.Launch({1, 32}, Exchange, rank.ctx, teams[rank.rank()], x, 10u, bad);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

TEST(BarrierTeamTest, OverlappingTeamsBackToBack) {
  World(4, 2 << 20).Run([](Rank& rank) {
    const std::vector<std::vector<uint32_t>> sets = {{0, 1}, {1, 2, 3}, {0, 3}, {2, 0, 1}, {3, 2}};
    std::vector<DeviceTeam> teams;
    for (const auto& set : sets) teams.push_back(rank.NewTeam(set));
    uint32_t* x = rank.New<uint32_t>(32);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    for (uint32_t k = 0; k < 40 / kSlower; ++k) {
      for (const DeviceTeam& team : teams) {
        if (team.index == team.size) continue;  // not a member
        rank.Launch({1, 32}, Exchange, rank.ctx, team, x, 1u, bad);
      }
    }
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

TEST(BarrierTeamTest, DisjointTeamsAtTheSameTime) {
  World(4).Run([](Rank& rank) {
    const DeviceTeam low = rank.NewTeam({0, 1});
    const DeviceTeam high = rank.NewTeam({2, 3});
    uint32_t* x = rank.New<uint32_t>(32);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    rank.Launch({1, 32}, Exchange, rank.ctx, rank.rank() < 2 ? low : high, x, 20u, bad);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

// Failure.

IRIS_KERNEL void OneBarrier(IRIS_PARAM DeviceContext ctx, uint64_t timeout_ns, uint32_t* results,
                            uint32_t* missing) {
  uint32_t who = 77;
  const WaitResult result = Barrier(ctx, ctx.world, timeout_ns, &who);
  results[backend::ThreadIndex()] = static_cast<uint32_t>(result) + 1;
  missing[backend::ThreadIndex()] = who;
}

class MissingTest : public testing::TestWithParam<uint32_t> {};  // who is missing

TEST_P(MissingTest, TimesOutNamesItAndTheNextCallIsInStep) {
  const uint32_t absent = GetParam();
  World(3).Run([absent](Rank& rank) {
    constexpr uint32_t kThreads = 33;
    uint32_t* results = rank.New<uint32_t>(kThreads);
    uint32_t* missing = rank.New<uint32_t>(kThreads);
    rank.HostBarrier();
    if (rank.rank() != absent) {
      rank.Launch({1, kThreads}, OneBarrier, rank.ctx, 5 * kMillisecondNs, results, missing);
      EXPECT_EQ(rank.Read(results, kThreads), std::vector<uint32_t>(kThreads, 2));
      EXPECT_EQ(rank.Read(missing, kThreads), std::vector<uint32_t>(kThreads, absent));
    }
    rank.HostBarrier();
    // The late one finds that the others have been there.
    if (rank.rank() == absent) {
      rank.Launch({1, kThreads}, OneBarrier, rank.ctx, uint64_t{0}, results, missing);
      EXPECT_EQ(rank.Read(results, kThreads), std::vector<uint32_t>(kThreads, 1));
      EXPECT_EQ(rank.Read(missing, kThreads), std::vector<uint32_t>(kThreads, 77));
    }
    rank.HostBarrier();
    // All are in step again: nobody passes alone, and together they do.
    if (rank.rank() == 0) {
      rank.Launch({1, kThreads}, OneBarrier, rank.ctx, 5 * kMillisecondNs, results, missing);
      EXPECT_EQ(rank.Read(results, kThreads), std::vector<uint32_t>(kThreads, 2));
    }
    rank.HostBarrier();
    if (rank.rank() != 0) {
      rank.Launch({1, kThreads}, OneBarrier, rank.ctx, uint64_t{0}, results, missing);
      EXPECT_EQ(rank.Read(results, kThreads), std::vector<uint32_t>(kThreads, 1));
    }
    rank.HostBarrier();
    rank.Launch({1, kThreads}, OneBarrier, rank.ctx, uint64_t{0}, results, missing);
    EXPECT_EQ(rank.Read(results, kThreads), std::vector<uint32_t>(kThreads, 1));
  });
}
INSTANTIATE_TEST_SUITE_P(Rank, MissingTest, testing::Values(0, 1, 2));

TEST(BarrierFailureTest, FewerThreadsThanMembersStillNameTheMissing) {
  World(5).Run([](Rank& rank) {
    uint32_t* results = rank.New<uint32_t>(2);
    uint32_t* missing = rank.New<uint32_t>(2);
    rank.HostBarrier();
    if (rank.rank() != 4) {
      rank.Launch({1, 2}, OneBarrier, rank.ctx, 5 * kMillisecondNs, results, missing);
      EXPECT_EQ(rank.Read(results, 2), std::vector<uint32_t>(2, 2));
      EXPECT_EQ(rank.Read(missing, 2), std::vector<uint32_t>(2, 4));
    }
  });
}

TEST(BarrierFailureTest, AbortEndsItInAllThreads) {
  World world(2);
  world.Run([&](Rank& rank) {
    uint32_t* results = rank.New<uint32_t>(64);
    uint32_t* missing = rank.New<uint32_t>(64);
    if (rank.rank() == 1) {
      world.Abort();
      return;
    }
    rank.Launch({1, 64}, OneBarrier, rank.ctx, uint64_t{0}, results, missing);
    EXPECT_EQ(rank.Read(results, 64), std::vector<uint32_t>(64, 3));
    EXPECT_EQ(rank.Read(missing, 64), std::vector<uint32_t>(64, 1));
  });
}

TEST(BarrierFailureTest, AFailureAtOneEpochIsNotOneAtTheNext) {
  World(2).Run([](Rank& rank) {
    uint32_t* results = rank.New<uint32_t>(8);
    uint32_t* missing = rank.New<uint32_t>(8);
    for (uint32_t k = 0; k < 5; ++k) {
      if (rank.rank() == 0) {
        rank.Launch({1, 8}, OneBarrier, rank.ctx, kMillisecondNs, results, missing);
        EXPECT_EQ(rank.Read(results, 8), std::vector<uint32_t>(8, 2)) << k;
      }
      rank.HostBarrier();
      if (rank.rank() == 1) {
        rank.Launch({1, 8}, OneBarrier, rank.ctx, uint64_t{0}, results, missing);
        EXPECT_EQ(rank.Read(results, 8), std::vector<uint32_t>(8, 1)) << k;
      }
      rank.HostBarrier();
      rank.Launch({1, 8}, OneBarrier, rank.ctx, uint64_t{0}, results, missing);
      EXPECT_EQ(rank.Read(results, 8), std::vector<uint32_t>(8, 1)) << k;
      rank.HostBarrier();
    }
  });
}

}  // namespace
}  // namespace iris::conformance
