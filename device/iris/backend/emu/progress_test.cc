// Tests that no wait starves its cause: threads, blocks, launches and streams make progress
// together, however few workers there are. It runs with the default workers, and with a single one.
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/emu/testing/test_util.h"
#include "iris/backend/select.h"

namespace iris::backend {
namespace {

void WaitFor(const uint32_t* word, uint32_t value) {
  while (Load<Scope::kSystem, Order::kAcquire>(word) < value) Pause();
}

void FirstThreadWaitsForTheLast(uint32_t* flag) {
  if (ThreadIndex() == 0) WaitFor(flag, 1);
  if (ThreadIndex() == BlockSize() - 1) Store<Scope::kBlock, Order::kRelease>(flag, 1u);
}

TEST(ThreadProgressTest, AThreadMayWaitForOneThatHasNotBegun) {
  uint32_t flag = 0;
  RunKernel({1, 1024, 0}, &FirstThreadWaitsForTheLast, &flag);
  EXPECT_EQ(flag, 1u);
}

void TakeTurns(uint32_t rounds, uint32_t* turn) {
  for (uint32_t round = 0; round < rounds; ++round) {
    const uint32_t mine = round * BlockSize() + ThreadIndex();
    while (Load<Scope::kBlock, Order::kAcquire>(turn) != mine) Pause();
    Store<Scope::kBlock, Order::kRelease>(turn, mine + 1);
  }
}

TEST(ThreadProgressTest, ThreadsOfABlockTakeTurnsThroughAWord) {
  uint32_t turn = 0;
  RunKernel({1, 40, 0}, &TakeTurns, 20u, &turn);
  EXPECT_EQ(turn, 800u);
}

void SpinWithoutPause(uint32_t* flag) {
  if (ThreadIndex() == 0) {
    while (Load<Scope::kBlock, Order::kRelaxed>(flag) == 0) {
    }
  } else {
    Store<Scope::kBlock, Order::kRelaxed>(flag, 1u);
  }
}

TEST(ThreadProgressTest, ALoopOfLoadsWithoutPauseLetsOthersRun) {
  uint32_t flag = 0;
  RunKernel({1, 2, 0}, &SpinWithoutPause, &flag);
  EXPECT_EQ(flag, 1u);
}

void SpinWithCompareExchange(uint32_t* lock, uint32_t* counter) {
  for (int i = 0; i < 20; ++i) {
    while (CompareExchange<Scope::kDevice, Order::kAcquire>(lock, 0u, 1u) != 0) {
    }
    const uint32_t value = *counter;
    Pause();  // with the lock held: the others spin meanwhile
    *counter = value + 1;
    Store<Scope::kDevice, Order::kRelease>(lock, 0u);
  }
}

TEST(ThreadProgressTest, ASpinLockOfCompareExchangeLetsItsHolderRun) {
  uint32_t lock = 0;
  uint32_t counter = 0;
  RunKernel({3, 8, 0}, &SpinWithCompareExchange, &lock, &counter);
  EXPECT_EQ(counter, 3u * 8 * 20);
}

void SpinWithExchange(uint32_t* lock, uint32_t* counter) {
  for (int i = 0; i < 20; ++i) {
    while (FetchOp<AtomicOp::kExchange, Scope::kDevice, Order::kAcquire>(lock, 1u) != 0) {
    }
    const uint32_t value = *counter;
    Pause();
    *counter = value + 1;
    Store<Scope::kDevice, Order::kRelease>(lock, 0u);
  }
}

TEST(ThreadProgressTest, ASpinLockOfExchangesLetsItsHolderRun) {
  uint32_t lock = 0;
  uint32_t counter = 0;
  RunKernel({3, 8, 0}, &SpinWithExchange, &lock, &counter);
  EXPECT_EQ(counter, 3u * 8 * 20);
}

void PingPong(uint32_t rounds, uint32_t* words) {
  const uint32_t me = BlockIndex();
  for (uint32_t round = 1; round <= rounds; ++round) {
    if (me == 0) Store<Scope::kDevice, Order::kRelease>(&words[1], round);
    WaitFor(&words[me], round);
    if (me == 1) Store<Scope::kDevice, Order::kRelease>(&words[0], round);
  }
}

TEST(BlockProgressTest, TwoBlocksAnswerEachOther) {
  uint32_t words[2] = {};
  RunKernel({2, 1, 0}, &PingPong, 500u, &words[0]);
  EXPECT_EQ(words[0], 500u);
}

void MeetAtCounter(uint32_t rounds, uint32_t* arrived) {
  for (uint32_t round = 1; round <= rounds; ++round) {
    BlockSync();
    if (ThreadIndex() == 0) {
      CountUp(arrived);
      WaitFor(arrived, round * GridSize());
    }
    BlockSync();
  }
}

class GridProgressTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Blocks, GridProgressTest, testing::Values(2u, 3u, 16u, 64u, 200u));

TEST_P(GridProgressTest, TheWholeGridIsCoResident) {
  uint32_t arrived = 0;
  RunKernel({GetParam(), kSlow ? 4u : 32u, 0}, &MeetAtCounter, 3u, &arrived);
  EXPECT_EQ(arrived, 3 * GetParam());
}

// The blocks keep syncing while they wait, so that something in them always moves.
void SyncWhileWaiting(uint32_t* arrived) {
  IRIS_SHARED(uint32_t[1], go);
  if (ThreadIndex() == 0) {
    go[0] = 0;
    CountUp(arrived);
  }
  BlockSync();
  while (go[0] == 0) {
    BlockSync();
    if (ThreadIndex() == 0 && Load<Scope::kDevice, Order::kAcquire>(arrived) == GridSize()) {
      go[0] = 1;
    }
    BlockSync();
  }
}

TEST(BlockProgressTest, ALoopOfSyncsStillLetsOtherBlocksBegin) {
  uint32_t arrived = 0;
  RunKernel({12, 8, 0}, &SyncWhileWaiting, &arrived);
  EXPECT_EQ(arrived, 12u);
}

void SpinForLastBlock(uint32_t* flag) {
  if (BlockIndex() == GridSize() - 1) {
    Store<Scope::kDevice, Order::kRelaxed>(flag, 1u);
  } else {
    while (Load<Scope::kDevice, Order::kRelaxed>(flag) == 0) {
    }
  }
}

TEST(BlockProgressTest, BlocksThatSpinWithoutPauseLetTheLastOneBegin) {
  uint32_t flag = 0;
  RunKernel({10, 1, 0}, &SpinForLastBlock, &flag);
  EXPECT_EQ(flag, 1u);
}

TEST(StreamProgressTest, KernelsOfTwoStreamsAnswerEachOther) {
  Stream streams[2];
  uint32_t words[2] = {};
  for (Stream& stream : streams) ASSERT_TRUE(Stream::Create(&stream).ok());
  auto one_side = +[](uint32_t me, uint32_t* both) {
    for (uint32_t round = 1; round <= 300; ++round) {
      if (me == 0) Store<Scope::kDevice, Order::kRelease>(&both[1], round);
      WaitFor(&both[me], round);
      if (me == 1) Store<Scope::kDevice, Order::kRelease>(&both[0], round);
    }
  };
  ASSERT_TRUE(Launch({1, 1, 0}, streams[0], one_side, 0u, &words[0]).ok());
  ASSERT_TRUE(Launch({1, 1, 0}, streams[1], one_side, 1u, &words[0]).ok());
  for (Stream& stream : streams) ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(words[0], 300u);
}

void MeetOfAll(uint32_t n_blocks, uint32_t* arrived) {
  for (uint32_t round = 1; round <= 3; ++round) {
    BlockSync();
    if (ThreadIndex() == 0) {
      CountUp(arrived);
      WaitFor(arrived, round * n_blocks);
    }
    BlockSync();
  }
}

TEST(StreamProgressTest, GridsLargerThanTheWorkersMeetAcrossStreams) {
  constexpr uint32_t kStreams = 4;
  const uint32_t grid = MultiprocessorCount() + 5;
  std::vector<Stream> streams(kStreams);
  uint32_t arrived = 0;
  for (Stream& stream : streams) {
    ASSERT_TRUE(Stream::Create(&stream).ok());
    ASSERT_TRUE(Launch({grid, 8, 0}, stream, &MeetOfAll, kStreams * grid, &arrived).ok());
  }
  for (Stream& stream : streams) ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(arrived, 3 * kStreams * grid);
}

TEST(StreamProgressTest, ALaterLaunchFreesASpinningOne) {
  Stream waiting, setting;
  ASSERT_TRUE(Stream::Create(&waiting).ok());
  ASSERT_TRUE(Stream::Create(&setting).ok());
  uint32_t flag = 0;
  ASSERT_TRUE(Launch(
                  {MultiprocessorCount() * 3, 4, 0}, waiting,
                  +[](const uint32_t* word) { WaitFor(word, 1); },
                  static_cast<const uint32_t*>(&flag))
                  .ok());
  EXPECT_FALSE(waiting.Idle());
  ASSERT_TRUE(Launch(
                  {1, 1, 0}, setting,
                  +[](uint32_t* word) { Store<Scope::kDevice, Order::kRelease>(word, 1u); }, &flag)
                  .ok());
  ASSERT_TRUE(setting.Synchronize().ok());
  ASSERT_TRUE(waiting.Synchronize().ok());
}

TEST(StreamProgressTest, RanksAsThreadsMeetInTheirKernels) {
  constexpr uint32_t kRanks = 8;
  uint32_t arrived = 0;
  std::vector<std::thread> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&] {
      for (int launch = 0; launch < 3; ++launch) {
        RunKernel(
            {2, 16, 0},
            +[](uint32_t* word) {
              BlockSync();
              if (ThreadIndex() == 0) {
                const uint32_t ticket = CountUp(word);
                WaitFor(word, (ticket / (2 * kRanks) + 1) * 2 * kRanks);
              }
              BlockSync();
            },
            &arrived);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(arrived, kRanks * 2 * 3);
}

TEST(HostProgressTest, AKernelWaitsForTheHostAndTheHostForTheKernel) {
  Stream stream;
  ASSERT_TRUE(Stream::Create(&stream).ok());
  uint32_t words[2] = {};
  ASSERT_TRUE(Launch(
                  {1, 8, 0}, stream,
                  +[](uint32_t* both) {
                    if (ThreadIndex() == 0) {
                      Store<Scope::kSystem, Order::kRelease>(&both[0], 1u);
                      WaitFor(&both[1], 1);
                    }
                    BlockSync();
                  },
                  &words[0])
                  .ok());
  WaitFor(&words[0], 1);
  EXPECT_FALSE(stream.Idle());
  Store<Scope::kSystem, Order::kRelease>(&words[1], 1u);
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_TRUE(stream.Idle());
}

// Long enough for the workers to go from yielding to sleeping.
TEST(HostProgressTest, AKernelThatHasWaitedForLongStillNotices) {
  Stream stream;
  ASSERT_TRUE(Stream::Create(&stream).ok());
  uint32_t flag = 0;
  ASSERT_TRUE(Launch(
                  {3, 4, 0}, stream, +[](const uint32_t* word) { WaitFor(word, 1); },
                  static_cast<const uint32_t*>(&flag))
                  .ok());
  const uint64_t until = ClockNanoseconds() + 20 * 1000 * 1000;
  while (ClockNanoseconds() < until) Pause();
  Store<Scope::kSystem, Order::kRelease>(&flag, 1u);
  EXPECT_TRUE(stream.Synchronize().ok());
}

}  // namespace
}  // namespace iris::backend
