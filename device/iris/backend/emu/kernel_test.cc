// Tests the view of one block's threads: indices, syncs, shuffles, ballots, shared memory.
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/emu/testing/test_util.h"
#include "iris/backend/select.h"

namespace iris::backend {
namespace {

struct Indices {
  uint32_t runs, thread, block, block_size, grid, lane, warp, warp_size;
};

void WriteIndices(Indices* out) {
  Indices& mine = out[BlockIndex() * BlockSize() + ThreadIndex()];
  ++mine.runs;
  mine.thread = ThreadIndex();
  mine.block = BlockIndex();
  mine.block_size = BlockSize();
  mine.grid = GridSize();
  mine.lane = LaneIndex();
  mine.warp = WarpIndex();
  mine.warp_size = WarpSize();
}

class ShapeTest : public testing::TestWithParam<std::pair<uint32_t, uint32_t>> {};
INSTANTIATE_TEST_SUITE_P(Shapes, ShapeTest,
                         testing::Values(std::pair(1u, 1u), std::pair(1u, 32u), std::pair(1u, 33u),
                                         std::pair(7u, 100u), std::pair(2u, 1024u),
                                         std::pair(300u, 1u)));

TEST_P(ShapeTest, EveryThreadRunsOnceAndKnowsItsPlace) {
  const auto [grid, block] = GetParam();
  std::vector<Indices> seen(grid * block);
  RunKernel({grid, block, 0}, &WriteIndices, seen.data());
  for (uint32_t b = 0; b < grid; ++b) {
    for (uint32_t t = 0; t < block; ++t) {
      const Indices& it = seen[b * block + t];
      ASSERT_EQ(it.runs, 1u) << "block " << b << ", thread " << t;
      ASSERT_EQ(it.thread, t);
      ASSERT_EQ(it.block, b);
      ASSERT_EQ(it.block_size, block);
      ASSERT_EQ(it.grid, grid);
      ASSERT_EQ(it.lane, t % 32);
      ASSERT_EQ(it.warp, t / 32);
      ASSERT_EQ(it.warp_size, 32u);
    }
  }
}

void IndicesAfterSwitches(uint32_t* wrong) {
  const uint32_t thread = ThreadIndex();
  const uint32_t block = BlockIndex();
  for (int i = 0; i < 20; ++i) {
    if (i % 3 == 0) BlockSync();
    if (i % 3 == 1) Pause();
    if (i % 3 == 2) WarpSync();
    if (ThreadIndex() != thread || BlockIndex() != block) CountUp(wrong);
  }
}

TEST(IndexTest, StayAcrossSwitchesOfThreadsAndBlocks) {
  uint32_t wrong = 0;
  RunKernel({9, 70, 0}, &IndicesAfterSwitches, &wrong);
  EXPECT_EQ(wrong, 0u);
}

TEST(IndexTest, HostIsTheOnlyThreadOfAGridOfOne) {
  EXPECT_EQ(ThreadIndex(), 0u);
  EXPECT_EQ(BlockIndex(), 0u);
  EXPECT_EQ(BlockSize(), 1u);
  EXPECT_EQ(GridSize(), 1u);
}

// Each round, each thread reads what its right neighbour has just written.
void PassAround(uint32_t rounds, uint32_t* wrong) {
  IRIS_SHARED(uint32_t[1024], words);
  const uint32_t t = ThreadIndex();
  const uint32_t neighbour = (t + 1) % BlockSize();
  for (uint32_t round = 0; round < rounds; ++round) {
    words[t] = round * 5000 + t;
    BlockSync();
    if (words[neighbour] != round * 5000 + neighbour) CountUp(wrong);
    BlockSync();
  }
}

class BlockSizeTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Threads, BlockSizeTest,
                         testing::Values(1u, 2u, 3u, 31u, 32u, 33u, 64u, 100u, 255u, 256u, 512u,
                                         1000u, 1023u, 1024u));

TEST_P(BlockSizeTest, BlockSyncSeparatesWritesFromReads) {
  uint32_t wrong = 0;
  RunKernel({3, GetParam(), 0}, &PassAround, 10u, &wrong);
  EXPECT_EQ(wrong, 0u);
}

void SyncInsideBranches(uint32_t* wrong) {
  IRIS_SHARED(uint32_t[2], words);
  if (ThreadIndex() % 2 == 0) {
    if (ThreadIndex() == 0) words[0] = 17;
    BlockSync();
  } else {
    if (ThreadIndex() == 1) words[1] = 18;
    BlockSync();
  }
  if (words[0] != 17 || words[1] != 18) CountUp(wrong);
}

TEST(BlockSyncTest, CallsAtDifferentPlacesMeet) {
  uint32_t wrong = 0;
  RunKernel({2, 64, 0}, &SyncInsideBranches, &wrong);
  EXPECT_EQ(wrong, 0u);
}

void ReturnEarly(uint32_t stay, bool return_late, uint32_t* passed) {
  if (ThreadIndex() >= stay) {
    // The others may already wait when these threads end.
    for (int i = 0; return_late && i < 50; ++i) Pause();
    return;
  }
  for (int i = 0; i < 5; ++i) BlockSync();
  CountUp(passed);
}

TEST(BlockSyncTest, DoesNotWaitForThreadsThatHaveReturned) {
  uint32_t passed = 0;
  RunKernel({2, 100, 0}, &ReturnEarly, 10u, false, &passed);
  EXPECT_EQ(passed, 20u);
}

TEST(BlockSyncTest, GoesOnWhenTheLastMissingThreadReturns) {
  uint32_t passed = 0;
  RunKernel({2, 100, 0}, &ReturnEarly, 10u, true, &passed);
  EXPECT_EQ(passed, 20u);
}

void FirstReturns(uint32_t* passed) {
  if (ThreadIndex() == 0) return;
  BlockSync();
  CountUp(passed);
}

TEST(BlockSyncTest, TheFirstThreadMayReturnBeforeTheOthersBegin) {
  uint32_t passed = 0;
  RunKernel({1, 1024, 0}, &FirstReturns, &passed);
  EXPECT_EQ(passed, 1023u);
}

void PassAroundWarp(uint32_t* wrong) {
  IRIS_SHARED(uint32_t[1024], words);
  const uint32_t t = ThreadIndex();
  const uint32_t first = WarpIndex() * WarpSize();
  const uint32_t in_warp = BlockSize() - first < WarpSize() ? BlockSize() - first : WarpSize();
  const uint32_t neighbour = first + (LaneIndex() + 1) % in_warp;
  for (uint32_t round = 0; round < 10; ++round) {
    words[t] = round * 5000 + t;
    WarpSync();
    if (words[neighbour] != round * 5000 + neighbour) CountUp(wrong);
    WarpSync();
  }
}

TEST_P(BlockSizeTest, WarpSyncSeparatesWritesFromReads) {
  uint32_t wrong = 0;
  RunKernel({2, GetParam(), 0}, &PassAroundWarp, &wrong);
  EXPECT_EQ(wrong, 0u);
}

void WarpsAlone(uint32_t* order) {
  IRIS_SHARED(uint32_t[1], turn);
  if (ThreadIndex() == 0) turn[0] = 0;
  BlockSync();
  // The last warp goes first: the others spin without any sync of the block.
  const uint32_t my_turn = BlockSize() / WarpSize() - 1 - WarpIndex();
  if (LaneIndex() == 0) {
    while (Load<Scope::kBlock, Order::kAcquire>(&turn[0]) != my_turn) Pause();
  }
  WarpSync();
  order[ThreadIndex()] = Load<Scope::kBlock, Order::kRelaxed>(&turn[0]);
  WarpSync();
  if (LaneIndex() == 0) Store<Scope::kBlock, Order::kRelease>(&turn[0], my_turn + 1);
}

TEST(WarpSyncTest, WarpsSyncIndependently) {
  std::vector<uint32_t> order(128);
  RunKernel({1, 128, 0}, &WarpsAlone, order.data());
  for (uint32_t t = 0; t < 128; ++t) EXPECT_EQ(order[t], 3 - t / 32) << t;
}

void WarpReturnEarly(uint32_t* passed) {
  if (LaneIndex() % 2 == 1) return;
  for (int i = 0; i < 5; ++i) WarpSync();
  CountUp(passed);
}

TEST(WarpSyncTest, DoesNotWaitForThreadsThatHaveReturned) {
  uint32_t passed = 0;
  RunKernel({1, 75, 0}, &WarpReturnEarly, &passed);
  EXPECT_EQ(passed, 16u + 16 + 6);
}

void ShuffleAll(uint32_t* indexed, uint32_t* exchanged, uint32_t* down) {
  const uint32_t t = ThreadIndex();
  const uint32_t value = 1000 + t;
  for (uint32_t k = 0; k < 40; ++k) {
    indexed[k * BlockSize() + t] = Shuffle(value, k);
    exchanged[k * BlockSize() + t] = ShuffleXor(value, k);
    down[k * BlockSize() + t] = ShuffleDown(value, k);
  }
}

class ShuffleTest : public testing::TestWithParam<uint32_t> {
 protected:
  void SetUp() override {
    const uint32_t n = GetParam();
    indexed_.resize(40 * n);
    exchanged_.resize(40 * n);
    down_.resize(40 * n);
    RunKernel({1, n, 0}, &ShuffleAll, indexed_.data(), exchanged_.data(), down_.data());
  }
  // Returns the value that thread t must get from lane `lane` of its warp.
  uint32_t From(uint32_t t, uint32_t lane) const {
    const uint32_t source = t / 32 * 32 + lane;
    return 1000 + (lane < 32 && source < GetParam() ? source : t);
  }
  std::vector<uint32_t> indexed_, exchanged_, down_;
};
INSTANTIATE_TEST_SUITE_P(Threads, ShuffleTest, testing::Values(1u, 5u, 32u, 33u, 64u, 95u));

TEST_P(ShuffleTest, ByIndexGivesThatLanesValueAndTheOwnOneOutsideTheWarp) {
  for (uint32_t k = 0; k < 40; ++k) {
    for (uint32_t t = 0; t < GetParam(); ++t) {
      ASSERT_EQ(indexed_[k * GetParam() + t], From(t, k)) << "lane " << k << ", thread " << t;
    }
  }
}

TEST_P(ShuffleTest, XorExchangesPairs) {
  for (uint32_t k = 0; k < 40; ++k) {
    for (uint32_t t = 0; t < GetParam(); ++t) {
      ASSERT_EQ(exchanged_[k * GetParam() + t], From(t, (t % 32) ^ k)) << k << ", thread " << t;
    }
  }
}

TEST_P(ShuffleTest, DownTakesFromHigherLanes) {
  for (uint32_t k = 0; k < 40; ++k) {
    for (uint32_t t = 0; t < GetParam(); ++t) {
      ASSERT_EQ(down_[k * GetParam() + t], From(t, t % 32 + k)) << k << ", thread " << t;
    }
  }
}

void ShuffleDownFar(uint32_t* out) { out[ThreadIndex()] = ShuffleDown(ThreadIndex(), 0xffffffffu); }

TEST(ShuffleEdgeTest, AHugeDeltaGivesTheOwnValue) {
  std::vector<uint32_t> out(32);
  RunKernel({1, 32, 0}, &ShuffleDownFar, out.data());
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(out[t], t);
}

template <typename T>
void ShuffleOne(T* out, const T* in) {
  out[ThreadIndex()] = ShuffleXor(in[ThreadIndex()], 1);
}

template <typename T>
class ShuffleTypeTest : public testing::Test {};
struct Three {
  uint8_t a, b, c;
  bool operator==(const Three& o) const { return a == o.a && b == o.b && c == o.c; }
};
struct Sixteen {
  uint64_t a;
  double b;
  bool operator==(const Sixteen& o) const { return a == o.a && b == o.b; }
};
using ShuffleTypes =
    testing::Types<uint8_t, int16_t, uint32_t, int64_t, float, double, Three, Sixteen>;
TYPED_TEST_SUITE(ShuffleTypeTest, ShuffleTypes);

TYPED_TEST(ShuffleTypeTest, PassesEveryByte) {
  std::vector<TypeParam> in(32), out(32);
  for (size_t i = 0; i < in.size() * sizeof(TypeParam); ++i) {
    reinterpret_cast<unsigned char*>(in.data())[i] = static_cast<unsigned char>(i % 113 + 1);
  }
  RunKernel({1, 32, 0}, &ShuffleOne<TypeParam>, out.data(),
            static_cast<const TypeParam*>(in.data()));
  for (size_t i = 0; i < 32; ++i) EXPECT_TRUE(out[i] == in[i ^ 1]) << i;
}

void ReduceWarp(uint32_t* sums) {
  uint32_t sum = ThreadIndex();
  for (uint32_t delta = 16; delta > 0; delta /= 2) sum += ShuffleXor(sum, delta);
  sums[ThreadIndex()] = sum;
}

TEST(ShuffleEdgeTest, ButterflySumReachesEveryLane) {
  std::vector<uint32_t> sums(64);
  RunKernel({1, 64, 0}, &ReduceWarp, sums.data());
  for (uint32_t t = 0; t < 64; ++t) EXPECT_EQ(sums[t], t < 32 ? 496u : 1520u) << t;
}

void ShuffleAfterReturn(uint32_t* out) {
  if (LaneIndex() == 3) return;
  out[ThreadIndex()] = Shuffle(100 + ThreadIndex(), 3);
}

TEST(ShuffleEdgeTest, ALaneThatHasReturnedGivesNothing) {
  std::vector<uint32_t> out(32);
  RunKernel({1, 32, 0}, &ShuffleAfterReturn, out.data());
  for (uint32_t t = 0; t < 32; ++t) {
    EXPECT_EQ(out[t], t == 3 ? 0 : 100 + t);
  }
}

void Vote(uint64_t* ballots, uint32_t* any, uint32_t* all) {
  const uint32_t t = ThreadIndex();
  ballots[t] = Ballot(t % 3 == 0);
  // Two in a row: nothing of the first remains.
  ballots[BlockSize() + t] = Ballot(t % 3 == 1);
  any[t] = (WarpAny(false) ? 1 : 0) | (WarpAny(LaneIndex() == 2) ? 2 : 0);
  all[t] = (WarpAll(true) ? 1 : 0) | (WarpAll(LaneIndex() != 2) ? 2 : 0);
}

TEST(BallotTest, HasOneBitPerThreadThatSaysYes) {
  constexpr uint32_t kThreads = 70;  // the last warp has 6
  std::vector<uint64_t> ballots(2 * kThreads);
  std::vector<uint32_t> any(kThreads), all(kThreads);
  RunKernel({1, kThreads, 0}, &Vote, ballots.data(), any.data(), all.data());
  for (uint32_t t = 0; t < kThreads; ++t) {
    for (uint32_t vote = 0; vote < 2; ++vote) {
      uint64_t expected = 0;
      for (uint32_t u = t / 32 * 32; u < t / 32 * 32 + 32 && u < kThreads; ++u) {
        if (u % 3 == vote) expected |= uint64_t{1} << (u % 32);
      }
      EXPECT_EQ(ballots[vote * kThreads + t], expected) << t;
    }
    EXPECT_EQ(any[t], 2u) << t;
    EXPECT_EQ(all[t], 1u) << t;
  }
}

void VoteWithoutReturned(uint64_t* ballots) {
  if (LaneIndex() < 4) return;
  ballots[ThreadIndex()] = Ballot(true);
}

TEST(BallotTest, ThreadsThatHaveReturnedDoNotVote) {
  std::vector<uint64_t> ballots(32);
  RunKernel({1, 32, 0}, &VoteWithoutReturned, ballots.data());
  EXPECT_EQ(ballots[31], 0xfffffff0u);
}

void OwnCopy(uint32_t* wrong) {
  IRIS_SHARED(uint32_t[64], words);
  words[ThreadIndex()] = BlockIndex() * 1000 + ThreadIndex();
  // Lets the other blocks write theirs.
  for (int i = 0; i < 10; ++i) Pause();
  BlockSync();
  for (uint32_t i = 0; i < BlockSize(); ++i) {
    if (words[i] != BlockIndex() * 1000 + i) CountUp(wrong);
  }
}

TEST(SharedTest, EachBlockHasItsOwn) {
  uint32_t wrong = 0;
  RunKernel({20, 64, 0}, &OwnCopy, &wrong);
  EXPECT_EQ(wrong, 0u);
}

template <int kTag>
uint32_t* SharedOfInstantiation() {
  IRIS_SHARED(uint32_t[1], word);
  return &word[0];
}

void DistinctVariables(uint32_t* wrong) {
  IRIS_SHARED(uint8_t[3], odd);
  IRIS_SHARED(double[5], numbers);
  IRIS_SHARED(Bytes16[2], wide);
  uint32_t* one = SharedOfInstantiation<1>();
  uint32_t* two = SharedOfInstantiation<2>();
  if (reinterpret_cast<uintptr_t>(&numbers[0]) % alignof(double) != 0) CountUp(wrong);
  if (reinterpret_cast<uintptr_t>(&wide[0]) % 16 != 0) CountUp(wrong);
  if (one == two || one != SharedOfInstantiation<1>()) CountUp(wrong);
  if (ThreadIndex() == 0) {
    for (uint8_t& byte : odd) byte = 0xff;
    for (double& number : numbers) number = 1.5;
    for (Bytes16& unit : wide) unit = {7, 8};
    *one = 1;
    *two = 2;
  }
  BlockSync();
  for (uint8_t byte : odd) {
    if (byte != 0xff) CountUp(wrong);
  }
  for (double number : numbers) {
    if (number != 1.5) CountUp(wrong);
  }
  for (const Bytes16& unit : wide) {
    if (unit.lo != 7 || unit.hi != 8) CountUp(wrong);
  }
  if (*one != 1 || *two != 2) CountUp(wrong);
}

TEST(SharedTest, VariablesAreAlignedAndDoNotOverlap) {
  uint32_t wrong = 0;
  RunKernel({3, 40, 0}, &DistinctVariables, &wrong);
  EXPECT_EQ(wrong, 0u);
}

void LargeShared(uint32_t* wrong) {
  IRIS_SHARED(uint32_t[15000], words);
  for (uint32_t i = ThreadIndex(); i < 15000; i += BlockSize()) words[i] = i;
  BlockSync();
  for (uint32_t i = ThreadIndex(); i < 15000; i += BlockSize()) {
    if (words[14999 - i] != 14999 - i) CountUp(wrong);
  }
}

TEST(SharedTest, HasRoomForSixtyThousandBytes) {
  uint32_t wrong = 0;
  RunKernel({2, 64, 0}, &LargeShared, &wrong);
  EXPECT_EQ(wrong, 0u);
}

void Dynamic(uint32_t n_words, uint32_t* wrong) {
  IRIS_SHARED(uint32_t[16], fixed);
  uint32_t* words = static_cast<uint32_t*>(DynamicShared());
  if (reinterpret_cast<uintptr_t>(words) % 16 != 0) CountUp(wrong);
  if (ThreadIndex() < 16) fixed[ThreadIndex()] = 99;
  for (uint32_t i = ThreadIndex(); i < n_words; i += BlockSize()) words[i] = BlockIndex() + i;
  Pause();
  BlockSync();
  for (uint32_t i = 0; i < n_words; ++i) {
    if (words[i] != BlockIndex() + i) CountUp(wrong);
  }
  for (uint32_t word : fixed) {
    if (word != 99) CountUp(wrong);
  }
}

class DynamicSharedTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Words, DynamicSharedTest, testing::Values(1u, 3u, 100u, 40960u));

TEST_P(DynamicSharedTest, HasTheBytesOfTheLaunchForEachBlock) {
  uint32_t wrong = 0;
  RunKernel({4, 32, GetParam() * 4}, &Dynamic, GetParam(), &wrong);
  EXPECT_EQ(wrong, 0u);
}

void Rounding(uint32_t* wrong) {
  // Each thread begins with the default, whatever the ones before it on this stack have set.
  if (std::fegetround() != FE_TONEAREST) CountUp(wrong);
  const int mine = ThreadIndex() % 2 == 0 ? FE_UPWARD : FE_DOWNWARD;
  std::fesetround(mine);
  BlockSync();
  if (std::fegetround() != mine) CountUp(wrong);
  Pause();
  if (std::fegetround() != mine) CountUp(wrong);
}

TEST(FloatingPointTest, EachThreadHasItsOwnRoundingMode) {
  uint32_t wrong = 0;
  for (int i = 0; i < 3; ++i) RunKernel({2, 64, 0}, &Rounding, &wrong);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
}

int Recurse(int depth, volatile char* from_caller) {
  volatile char frame[256];
  frame[0] = static_cast<char>(depth);
  frame[255] = from_caller[0];
  return depth == 0 ? frame[0] : Recurse(depth - 1, frame) + frame[0] - frame[0] + 1;
}

void DeepRecursion(int depth, uint32_t* wrong) {
  volatile char first[1] = {0};
  if (Recurse(depth, first) != depth) CountUp(wrong);
  BlockSync();
  if (Recurse(depth, first) != depth) CountUp(wrong);
}

TEST(StackTest, HoldsFortyKilobytesOfFrames) {
  uint32_t wrong = 0;
  RunKernel({2, 64, 0}, &DeepRecursion, 120, &wrong);
  EXPECT_EQ(wrong, 0u);
}

void ReadClock(uint64_t* out) {
  const uint64_t before = ClockNanoseconds();
  Pause();
  out[0] = before;
  out[1] = ClockNanoseconds();
}

TEST(ClockTest, IsMonotonicAndTheHosts) {
  const uint64_t start = ClockNanoseconds();
  uint64_t times[2] = {};
  RunKernel({1, 1, 0}, &ReadClock, &times[0]);
  EXPECT_LE(start, times[0]);
  EXPECT_LE(times[0], times[1]);
  EXPECT_LE(times[1], ClockNanoseconds());
}

struct Large {
  uint64_t words[32];
};

void TakeByValue(Large large, uint8_t byte, double number, Half half, uint32_t* wrong) {
  for (uint64_t i = 0; i < 32; ++i) {
    if (large.words[i] != i * i) CountUp(wrong);
  }
  if (byte != 7 || number != 2.5 || static_cast<float>(half) != 0.5f) CountUp(wrong);
  large.words[0] = 1;  // the thread's own copy
}

TEST(LaunchTest, ArgumentsAreCopiedBeforeLaunchReturns) {
  uint32_t wrong = 0;
  Stream stream;
  ASSERT_TRUE(Stream::Create(&stream).ok());
  {
    Large large;
    for (uint64_t i = 0; i < 32; ++i) large.words[i] = i * i;
    ASSERT_TRUE(
        Launch({4, 33, 0}, stream, &TakeByValue, large, uint8_t{7}, 2.5, Half(0.5f), &wrong).ok());
    for (uint64_t& word : large.words) word = 12345;
  }
  ASSERT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(wrong, 0u);
}

TEST(BackendTest, HasANameAndAWorker) {
  EXPECT_TRUE(Traits::kEmulated);
  EXPECT_GE(MultiprocessorCount(), 1u);
}

}  // namespace
}  // namespace iris::backend
