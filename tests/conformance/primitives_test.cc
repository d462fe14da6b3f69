// What primitives.h promises of kernels, primitive by primitive, within one rank: accesses of every
// type, narrow atomics, threads and warps of every shape, shared memory, conversions, the clock.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using backend::BlockIndex;
using backend::BlockSize;
using backend::BlockSync;
using backend::GridSize;
using backend::LaneIndex;
using backend::ThreadIndex;
using backend::ThreadOfGrid;
using backend::ThreadsOfGrid;
using backend::WarpIndex;
using backend::WarpSize;

// A World of one rank is memory and a stream.
void OnOneRank(const std::function<void(Rank&)>& body) { World(1, 8 << 20).Run(body); }

// Accesses.

template <typename T, Scope S>
IRIS_KERNEL void LoadAndStore(T* to, const T* from) {
  const uint32_t i = ThreadIndex();
  backend::Store<S, Order::kRelaxed>(to + i, backend::Load<S, Order::kRelaxed>(from + i));
  const uint32_t k = BlockSize() + i;
  backend::Store<S, Order::kRelease>(to + k, backend::Load<S, Order::kAcquire>(from + k));
  const uint32_t p = 2 * BlockSize() + i;
  backend::StorePlain(to + p, backend::LoadPlain(from + p));
}

template <typename T>
class AccessTest : public testing::Test {};
using AccessTypes = testing::Types<bool, int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t,
                                   int64_t, uint64_t, float, double, Half, Bfloat16, void*>;
TYPED_TEST_SUITE(AccessTest, AccessTypes);

template <typename T, Scope S>
void CheckAccess() {
  OnOneRank([](Rank& rank) {
    constexpr uint32_t kThreads = 70;
    std::vector<uint8_t> bytes(3 * kThreads * sizeof(T));
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = std::is_same_v<T, bool> ? i % 2 : static_cast<uint8_t>(i * 41 + 3);
    }
    uint8_t* from = rank.New<uint8_t>(bytes.size());
    uint8_t* to = rank.New<uint8_t>(bytes.size());
    rank.Write(from, bytes);
    rank.Launch({1, kThreads}, LoadAndStore<T, S>, reinterpret_cast<T*>(to),
                reinterpret_cast<const T*>(from));
    EXPECT_EQ(rank.Read(to, bytes.size()), bytes);
  });
}

TYPED_TEST(AccessTest, AtBlockScope) { CheckAccess<TypeParam, Scope::kBlock>(); }
TYPED_TEST(AccessTest, AtDeviceScope) { CheckAccess<TypeParam, Scope::kDevice>(); }
TYPED_TEST(AccessTest, AtSystemScope) { CheckAccess<TypeParam, Scope::kSystem>(); }

template <CacheHint H>
IRIS_KERNEL void Move16(uint8_t* to, const uint8_t* from) {
  backend::Store16<H>(to + 16 * ThreadIndex(), backend::Load16<H>(from + 16 * ThreadIndex()));
}

template <CacheHint H>
void CheckMove16() {
  OnOneRank([](Rank& rank) {
    std::vector<uint8_t> bytes(16 * 50);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 256);
    uint8_t* from = rank.New<uint8_t>(bytes.size());
    uint8_t* to = rank.New<uint8_t>(bytes.size());
    rank.Write(from, bytes);
    rank.Launch({1, 50}, Move16<H>, to, static_cast<const uint8_t*>(from));
    EXPECT_EQ(rank.Read(to, bytes.size()), bytes);
  });
}

TEST(SixteenBytesTest, Default) { CheckMove16<CacheHint::kDefault>(); }
TEST(SixteenBytesTest, Streaming) { CheckMove16<CacheHint::kStreaming>(); }
TEST(SixteenBytesTest, Volatile) { CheckMove16<CacheHint::kVolatile>(); }

// Each half of a volatile access arrives whole: a writer counts in both, a reader checks both.
IRIS_KERNEL void CountInHalves(uint8_t* cell, uint64_t rounds, uint32_t* torn) {
  constexpr uint64_t kTwice = (uint64_t{1} << 32) + 1;  // the same number in both words
  if (BlockIndex() == 0) {
    for (uint64_t k = 1; k <= rounds; ++k) {
      backend::Store16<CacheHint::kVolatile>(cell, {k * kTwice, k * kTwice});
    }
    return;
  }
  uint64_t seen = 0;
  const uint64_t start = backend::ClockNanoseconds();
  while (seen != rounds * kTwice && backend::ClockNanoseconds() - start < kTestTimeoutNs) {
    const Bytes16 both = backend::Load16<CacheHint::kVolatile>(cell);
    if (both.lo % kTwice != 0 || both.hi % kTwice != 0) *torn = 1;
    seen = both.lo;
    backend::Pause();
  }
  if (seen != rounds * kTwice) *torn = 2;
}

TEST(SixteenBytesTest, HalvesOfVolatileAccessesAreWhole) {
  OnOneRank([](Rank& rank) {
    uint8_t* cell = rank.New<uint8_t>(16);
    uint32_t* torn = rank.New<uint32_t>(1);
    rank.Launch({2, 1}, CountInHalves, cell, uint64_t{20000} / kSlower, torn);
    EXPECT_EQ(rank.Read(torn), 0u);
  });
}

// Atomics that the device API does not offer: 8 and 16 bits.

template <typename T>
IRIS_KERNEL void ContendNarrow(T* x, uint32_t op, uint32_t rounds) {
  const uint32_t id = BlockIndex() * BlockSize() + ThreadIndex();
  for (uint32_t k = 0; k < rounds; ++k) {
    const T number = T(static_cast<float>((id * rounds + k) % 64));
    if (op == 0) {
      (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(x, T(1.0f));
    } else if (op == 1) {
      (void)backend::FetchOp<AtomicOp::kSub, Scope::kDevice, Order::kAcqRel>(x, T(1.0f));
    } else if (op == 2) {
      (void)backend::FetchOp<AtomicOp::kMax, Scope::kSystem, Order::kRelease>(x, number);
    } else if (op == 3) {
      (void)backend::FetchOp<AtomicOp::kMin, Scope::kSystem, Order::kAcquire>(x, number);
    } else {
      for (T old = backend::Load<Scope::kDevice, Order::kRelaxed>(x);;) {
        const T next = T(static_cast<float>(old) + 1.0f);
        const T seen = backend::CompareExchange<Scope::kDevice, Order::kAcqRel>(x, old, next);
        if (seen == old) break;
        old = seen;
      }
    }
  }
}

template <typename T>
class NarrowTest : public testing::Test {};
using NarrowTypes = testing::Types<int8_t, uint8_t, int16_t, uint16_t, Half, Bfloat16>;
TYPED_TEST_SUITE(NarrowTest, NarrowTypes);

// All threads work on one element, at each place of a 32-bit word; its neighbours must not change.
template <typename T>
void CheckNarrow(uint32_t op, float initial, float expected) {
  OnOneRank([=](Rank& rank) {
    T* elements = rank.New<T>(4);
    for (uint32_t at = 0; at < 4; ++at) {
      rank.Write(elements, std::vector<T>(4, T(77.0f)));
      rank.Write(elements + at, T(initial));
      rank.Launch({2, 24}, ContendNarrow<T>, elements + at, op, 2u);
      const std::vector<T> got = rank.Read(elements, 4);
      for (uint32_t i = 0; i < 4; ++i) {
        EXPECT_EQ(static_cast<float>(got[i]), i == at ? expected : 77.0f) << at << ' ' << i;
      }
    }
  });
}

TYPED_TEST(NarrowTest, Add) { CheckNarrow<TypeParam>(0, 3, 99); }
TYPED_TEST(NarrowTest, Sub) { CheckNarrow<TypeParam>(1, 99, 3); }
TYPED_TEST(NarrowTest, Max) { CheckNarrow<TypeParam>(2, 5, 63); }
TYPED_TEST(NarrowTest, Min) { CheckNarrow<TypeParam>(3, 50, 0); }
TYPED_TEST(NarrowTest, CompareExchange) { CheckNarrow<TypeParam>(4, 1, 97); }

template <typename T>
IRIS_KERNEL void MinAndMaxWithNan(T* x, T operand) {
  (void)backend::FetchOp<AtomicOp::kMin, Scope::kDevice, Order::kRelaxed>(x, operand);
  (void)backend::FetchOp<AtomicOp::kMax, Scope::kDevice, Order::kRelaxed>(x + 1, operand);
}

template <typename T>
class NanTest : public testing::Test {};
using FloatTypes = testing::Types<float, double, Half, Bfloat16>;
TYPED_TEST_SUITE(NanTest, FloatTypes);

TYPED_TEST(NanTest, MinAndMaxKeepANanInMemoryAndIgnoreANanOperand) {
  using T = TypeParam;
  OnOneRank([](Rank& rank) {
    const T nan = T(std::numeric_limits<float>::quiet_NaN());
    T* x = rank.New<T>(2);
    rank.Write(x, std::vector<T>{T(2.0f), T(3.0f)});
    rank.Launch({}, MinAndMaxWithNan<T>, x, nan);
    EXPECT_EQ(static_cast<float>(rank.Read(x)), 2.0f);
    EXPECT_EQ(static_cast<float>(rank.Read(x + 1)), 3.0f);
    rank.Write(x, std::vector<T>{nan, nan});
    rank.Launch({}, MinAndMaxWithNan<T>, x, T(1.0f));
    EXPECT_TRUE(std::isnan(static_cast<float>(rank.Read(x))));
    EXPECT_TRUE(std::isnan(static_cast<float>(rank.Read(x + 1))));
  });
}

// Threads and warps.

struct Place {
  uint32_t thread, block, block_size, grid_size, lane, warp, warp_size;
  uint64_t thread_of_grid, threads_of_grid;
};

IRIS_KERNEL void WhereAmI(Place* places) {
  places[BlockIndex() * BlockSize() + ThreadIndex()] = {
      ThreadIndex(), BlockIndex(), BlockSize(),    GridSize(),     LaneIndex(),
      WarpIndex(),   WarpSize(),   ThreadOfGrid(), ThreadsOfGrid()};
}

class ShapeTest : public testing::TestWithParam<LaunchConfig> {};
INSTANTIATE_TEST_SUITE_P(Shapes, ShapeTest,
                         testing::Values(LaunchConfig{1, 1}, LaunchConfig{3, 5},
                                         LaunchConfig{2, 32}, LaunchConfig{2, 33},
                                         LaunchConfig{1, 64}, LaunchConfig{2, 100},
                                         LaunchConfig{1, 1024}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.grid) + "x" +
                                  std::to_string(shape.param.block);
                         });

TEST_P(ShapeTest, EveryThreadKnowsItsPlace) {
  const LaunchConfig config = GetParam();
  OnOneRank([config](Rank& rank) {
    const uint32_t n = config.grid * config.block;
    Place* places = rank.New<Place>(n);
    rank.Launch(config, WhereAmI, places);
    const std::vector<Place> got = rank.Read(places, n);
    const uint32_t warp = got[0].warp_size;
    EXPECT_TRUE(warp == 32 || warp == 64);
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT_EQ(got[i].thread, i % config.block);
      EXPECT_EQ(got[i].block, i / config.block);
      EXPECT_EQ(got[i].block_size, config.block);
      EXPECT_EQ(got[i].grid_size, config.grid);
      EXPECT_EQ(got[i].lane, i % config.block % warp);
      EXPECT_EQ(got[i].warp, i % config.block / warp);
      EXPECT_EQ(got[i].thread_of_grid, i);
      EXPECT_EQ(got[i].threads_of_grid, n);
    }
  });
}

template <uint32_t kBytes>
struct Sized {
  uint8_t bytes[kBytes];
};

template <typename T>
IRIS_DEVICE T Marked(uint32_t thread) {
  T value;
  for (uint32_t i = 0; i < sizeof(T); ++i) value.bytes[i] = static_cast<uint8_t>(thread * 3 + i);
  return value;
}

// Counts what is wrong: a lane must get what the lane that it names has, or its own value.
template <typename T>
IRIS_KERNEL void ShuffleAll(uint32_t* wrong) {
  const uint32_t n = BlockSize();
  const uint32_t first = WarpIndex() * WarpSize();
  const T mine = Marked<T>(ThreadIndex());
  uint32_t bad = 0;
  const auto check = [&](const T& got, uint32_t lane) {
    const bool there = lane < WarpSize() && first + lane < n;
    const T expected = Marked<T>(there ? first + lane : ThreadIndex());
    for (uint32_t i = 0; i < sizeof(T); ++i) bad += got.bytes[i] != expected.bytes[i] ? 1 : 0;
  };
  for (uint32_t lane = 0; lane < WarpSize() + 2; ++lane) {
    check(backend::Shuffle(mine, lane), lane);
    const uint32_t mixed = (LaneIndex() * 5 + lane) % WarpSize();
    check(backend::Shuffle(mine, mixed), mixed);
  }
  for (uint32_t mask = 0; mask < WarpSize(); ++mask) {
    check(backend::ShuffleXor(mine, mask), LaneIndex() ^ mask);
  }
  for (uint32_t delta = 0; delta < WarpSize() + 2; ++delta) {
    check(backend::ShuffleDown(mine, delta), LaneIndex() + delta);
  }
  wrong[BlockIndex() * n + ThreadIndex()] = bad;
}

template <typename T>
void CheckShuffles(const LaunchConfig& config) {
  OnOneRank([config](Rank& rank) {
    const uint32_t n = config.grid * config.block;
    uint32_t* wrong = rank.New<uint32_t>(n);
    rank.Write(wrong, std::vector<uint32_t>(n, 9));
    rank.Launch(config, ShuffleAll<T>, wrong);
    EXPECT_EQ(rank.Read(wrong, n), std::vector<uint32_t>(n, 0));
  });
}

TEST_P(ShapeTest, ShufflesOf1Byte) { CheckShuffles<Sized<1>>(GetParam()); }
TEST_P(ShapeTest, ShufflesOf2Bytes) { CheckShuffles<Sized<2>>(GetParam()); }
TEST_P(ShapeTest, ShufflesOf4Bytes) { CheckShuffles<Sized<4>>(GetParam()); }
TEST_P(ShapeTest, ShufflesOf8Bytes) { CheckShuffles<Sized<8>>(GetParam()); }
TEST_P(ShapeTest, ShufflesOf13Bytes) { CheckShuffles<Sized<13>>(GetParam()); }
TEST_P(ShapeTest, ShufflesOf16Bytes) { CheckShuffles<Sized<16>>(GetParam()); }

struct Votes {
  uint64_t every_third;
  uint32_t any_last, all, all_but_last, any_none;
};

IRIS_KERNEL void VoteAll(Votes* votes) {
  const uint32_t rest = BlockSize() - WarpIndex() * WarpSize();
  const uint32_t lanes = rest < WarpSize() ? rest : WarpSize();
  const bool last = LaneIndex() == lanes - 1;
  Votes mine;
  mine.every_third = backend::Ballot(LaneIndex() % 3 == 0);
  mine.any_last = backend::WarpAny(last);
  mine.all = backend::WarpAll(true);
  mine.all_but_last = backend::WarpAll(!last);
  mine.any_none = backend::WarpAny(false);
  votes[BlockIndex() * BlockSize() + ThreadIndex()] = mine;
}

// Bits: all threads ask; one thread asks alone, in a branch; all ask again behind it.
IRIS_KERNEL void AskWhoIsTogether(uint32_t* answers) {
  uint32_t mine = backend::WarpIsTogether() ? 1 : 0;
  if (LaneIndex() == 0) mine |= backend::WarpIsTogether() ? 2 : 0;
  mine |= backend::WarpIsTogether() ? 4 : 0;
  answers[BlockIndex() * BlockSize() + ThreadIndex()] = mine;
}

// That a warp is together is never promised. That one is which is not must not be said.
TEST_P(ShapeTest, OneThreadOrHalfAWarpIsNotTogether) {
  const LaunchConfig config = GetParam();
  OnOneRank([config](Rank& rank) {
    const uint32_t n = config.grid * config.block;
    Place* places = rank.New<Place>(n);
    uint32_t* answers = rank.New<uint32_t>(n);
    rank.Launch(config, WhereAmI, places);
    rank.Launch(config, AskWhoIsTogether, answers);
    const uint32_t warp = rank.Read(places).warp_size;
    const std::vector<uint32_t> got = rank.Read(answers, n);
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT_EQ(got[i] & 2, 0u) << i;
      const bool whole = config.block - i % config.block / warp * warp >= warp;
      if (!whole || backend::Traits::kEmulated) {
        EXPECT_EQ(got[i], 0u) << i;
      }
    }
  });
}

TEST_P(ShapeTest, Votes) {
  const LaunchConfig config = GetParam();
  OnOneRank([config](Rank& rank) {
    const uint32_t n = config.grid * config.block;
    Place* places = rank.New<Place>(n);
    Votes* votes = rank.New<Votes>(n);
    rank.Launch(config, WhereAmI, places);
    rank.Launch(config, VoteAll, votes);
    const uint32_t warp = rank.Read(places).warp_size;
    const std::vector<Votes> got = rank.Read(votes, n);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t rest = config.block - i % config.block / warp * warp;
      uint64_t ballot = 0;
      for (uint32_t lane = 0; lane < std::min(rest, warp); lane += 3) ballot |= 1ull << lane;
      EXPECT_EQ(got[i].every_third, ballot) << i;
      EXPECT_EQ(got[i].any_last, 1u);
      EXPECT_EQ(got[i].all, 1u);
      EXPECT_EQ(got[i].all_but_last, 0u);
      EXPECT_EQ(got[i].any_none, 0u);
    }
  });
}

// Shared memory and syncs.

struct Initialised {
  uint64_t a = 5;
  Half b;
};

// Each thread hands a value to the one behind it, through each kind of shared memory.
IRIS_KERNEL void RoundTheBlock(uint32_t rounds, uint32_t* wrong) {
  IRIS_SHARED(uint32_t[1024], words);
  IRIS_SHARED(Initialised[8], others);
  uint32_t* dynamic = static_cast<uint32_t*>(backend::DynamicShared());
  const uint32_t t = ThreadIndex();
  const uint32_t n = BlockSize();
  uint32_t bad = reinterpret_cast<uint64_t>(dynamic) % 16 != 0 ? 1 : 0;
  for (uint32_t k = 0; k < rounds; ++k) {
    words[t] = t * 7 + k;
    dynamic[t] = t * 9 + k;
    if (t < 8) others[t].a = t + k;
    BlockSync();
    const uint32_t from = (t + 1) % n;
    if (words[from] != from * 7 + k || dynamic[from] != from * 9 + k) ++bad;
    if (others[t % (n < 8 ? n : 8)].a != t % (n < 8 ? n : 8) + k) ++bad;
    BlockSync();
  }
  wrong[BlockIndex() * n + t] = bad;
}

TEST_P(ShapeTest, SharedMemoryGoesRoundTheBlock) {
  LaunchConfig config = GetParam();
  config.shared_bytes = config.block * 4;
  OnOneRank([config](Rank& rank) {
    const uint32_t n = config.grid * config.block;
    uint32_t* wrong = rank.New<uint32_t>(n);
    rank.Write(wrong, std::vector<uint32_t>(n, 9));
    rank.Launch(config, RoundTheBlock, 20u, wrong);
    EXPECT_EQ(rank.Read(wrong, n), std::vector<uint32_t>(n, 0));
  });
}

IRIS_KERNEL void FillDynamic(uint32_t n, uint32_t* sum) {
  uint32_t* words = static_cast<uint32_t*>(backend::DynamicShared());
  for (uint32_t i = ThreadIndex(); i < n; i += BlockSize()) words[i] = i;
  BlockSync();
  uint32_t mine = 0;
  for (uint32_t i = (ThreadIndex() + 1) % BlockSize(); i < n; i += BlockSize()) mine += words[i];
  (void)backend::FetchOp<AtomicOp::kAdd, Scope::kBlock, Order::kRelaxed>(sum, mine);
}

TEST(DynamicSharedTest, SixtyThousandBytes) {
  OnOneRank([](Rank& rank) {
    constexpr uint32_t kWords = 15000;
    uint32_t* sum = rank.New<uint32_t>(1);
    rank.Launch({1, 128, kWords * 4}, FillDynamic, kWords, sum);
    EXPECT_EQ(rank.Read(sum), kWords * (kWords - 1) / 2);
  });
}

// The same between the lanes of a warp.
IRIS_KERNEL void RoundTheWarp(uint32_t* words, uint32_t* wrong) {
  const uint32_t rest = BlockSize() - WarpIndex() * WarpSize();
  const uint32_t lanes = rest < WarpSize() ? rest : WarpSize();
  uint32_t* mine = words + WarpIndex() * WarpSize();
  uint32_t bad = 0;
  for (uint32_t k = 0; k < 20; ++k) {
    backend::StorePlain(mine + LaneIndex(), LaneIndex() + k);
    backend::WarpSync();
    const uint32_t from = (LaneIndex() + 1) % lanes;
    if (backend::LoadPlain(mine + from) != from + k) ++bad;
    backend::WarpSync();
  }
  wrong[ThreadIndex()] = bad;
}

TEST(WarpSyncTest, OrdersTheWarp) {
  OnOneRank([](Rank& rank) {
    uint32_t* words = rank.New<uint32_t>(1024);
    uint32_t* wrong = rank.New<uint32_t>(1024);
    for (uint32_t threads : {1u, 31u, 64u, 70u, 200u}) {
      rank.Write(wrong, std::vector<uint32_t>(threads, 9));
      rank.Launch({1, threads}, RoundTheWarp, words, wrong);
      EXPECT_EQ(rank.Read(wrong, threads), std::vector<uint32_t>(threads, 0)) << threads;
    }
  });
}

// A thread that has returned is not waited for.
IRIS_KERNEL void LeaveOneByOne(uint32_t* steps) {
  for (uint32_t k = 0; k < BlockSize(); ++k) {
    if (ThreadIndex() == k) return;
    BlockSync();
    if (ThreadIndex() == k + 1) steps[k] = k + 1;
  }
}

TEST(BlockSyncTest, ThreadsThatReturnedAreNotWaitedFor) {
  OnOneRank([](Rank& rank) {
    uint32_t* steps = rank.New<uint32_t>(64);
    rank.Launch({1, 64}, LeaveOneByOne, steps);
    const std::vector<uint32_t> got = rank.Read(steps, 63);
    for (uint32_t k = 0; k < 63; ++k) EXPECT_EQ(got[k], k + 1);
  });
}

IRIS_KERNEL IRIS_KERNEL_BOUNDS(128, 1) void WaitForAllBlocks(uint32_t* arrived) {
  if (ThreadIndex() == 0) {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kAcqRel>(arrived, 1u);
    while (backend::Load<Scope::kDevice, Order::kAcquire>(arrived) < GridSize()) backend::Pause();
  }
  BlockSync();
}

TEST(GridTest, AsManyBlocksAsMultiprocessorsRunAtOnce) {
  OnOneRank([](Rank& rank) {
    uint32_t* arrived = rank.New<uint32_t>(1);
    const uint32_t blocks = backend::MultiprocessorCount();
    ASSERT_GE(blocks, 1u);
    rank.Launch({blocks, 128}, WaitForAllBlocks, arrived);
    EXPECT_EQ(rank.Read(arrived), blocks);
  });
}

// Conversions and the clock.

IRIS_KERNEL void ConvertAllBits(uint32_t* float_of_half, uint32_t* float_of_bfloat,
                                uint16_t* half_again, uint16_t* bfloat_again) {
  for (uint32_t i = ThreadIndex(); i < 65536; i += BlockSize()) {
    const uint16_t bits = static_cast<uint16_t>(i);
    const float h = static_cast<float>(Half::FromBits(bits));
    const float b = static_cast<float>(Bfloat16::FromBits(bits));
    float_of_half[i] = numeric::BitsOf(h);
    float_of_bfloat[i] = numeric::BitsOf(b);
    half_again[i] = Half(h).bits;
    bfloat_again[i] = Bfloat16(b).bits;
  }
}

TEST(ConversionTest, EveryNarrowFloatToFloatAndBack) {
  OnOneRank([](Rank& rank) {
    constexpr uint32_t kAll = 65536;
    uint32_t* fh = rank.New<uint32_t>(kAll);
    uint32_t* fb = rank.New<uint32_t>(kAll);
    uint16_t* h = rank.New<uint16_t>(kAll);
    uint16_t* b = rank.New<uint16_t>(kAll);
    rank.Launch({1, 256}, ConvertAllBits, fh, fb, h, b);
    const std::vector<uint32_t> got_fh = rank.Read(fh, kAll), got_fb = rank.Read(fb, kAll);
    const std::vector<uint16_t> got_h = rank.Read(h, kAll), got_b = rank.Read(b, kAll);
    for (uint32_t i = 0; i < kAll; ++i) {
      const uint16_t bits = static_cast<uint16_t>(i);
      if (std::isnan(static_cast<float>(Half::FromBits(bits)))) {
        ASSERT_TRUE(std::isnan(numeric::FloatOf(got_fh[i]))) << i;
        ASSERT_TRUE(std::isnan(static_cast<float>(Half::FromBits(got_h[i])))) << i;
      } else {
        ASSERT_EQ(got_fh[i], numeric::BitsOf(numeric::FloatOfHalf(bits))) << i;
        ASSERT_EQ(got_h[i], i);
      }
      if (std::isnan(static_cast<float>(Bfloat16::FromBits(bits)))) {
        ASSERT_TRUE(std::isnan(numeric::FloatOf(got_fb[i]))) << i;
        ASSERT_TRUE(std::isnan(static_cast<float>(Bfloat16::FromBits(got_b[i])))) << i;
      } else {
        ASSERT_EQ(got_fb[i], i << 16);
        ASSERT_EQ(got_b[i], i);
      }
    }
  });
}

IRIS_KERNEL void NarrowAll(const uint32_t* floats, uint32_t n, uint16_t* half, uint16_t* bfloat) {
  for (uint32_t i = ThreadIndex(); i < n; i += BlockSize()) {
    const float value = numeric::FloatOf(floats[i]);
    half[i] = Half(value).bits;
    bfloat[i] = Bfloat16(value).bits;
  }
}

TEST(ConversionTest, FloatsRoundAsOnTheHost) {
  OnOneRank([](Rank& rank) {
    std::vector<uint32_t> floats;
    for (uint32_t high = 0; high < 65536; high += 3) {  // around every tie
      for (uint32_t low : {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x2000u, 0x7fffu, 0x8000u, 0x8001u}) {
        floats.push_back(high << 16 | low);
      }
    }
    const uint32_t n = static_cast<uint32_t>(floats.size());
    uint32_t* in = rank.New<uint32_t>(n);
    uint16_t* half = rank.New<uint16_t>(n);
    uint16_t* bfloat = rank.New<uint16_t>(n);
    rank.Write(in, floats);
    rank.Launch({1, 256}, NarrowAll, static_cast<const uint32_t*>(in), n, half, bfloat);
    const std::vector<uint16_t> got_half = rank.Read(half, n), got_bfloat = rank.Read(bfloat, n);
    for (uint32_t i = 0; i < n; ++i) {
      const float value = numeric::FloatOf(floats[i]);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(static_cast<float>(Half::FromBits(got_half[i])))) << floats[i];
        ASSERT_TRUE(std::isnan(static_cast<float>(Bfloat16::FromBits(got_bfloat[i]))));
      } else {
        ASSERT_EQ(got_half[i], numeric::HalfBitsOf(value)) << floats[i];
        ASSERT_EQ(got_bfloat[i], numeric::BfloatBitsOf(value)) << floats[i];
      }
    }
  });
}

IRIS_KERNEL void ReadClock(uint64_t* times, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) times[i] = backend::ClockNanoseconds();
  const uint64_t start = backend::ClockNanoseconds();
  while (backend::ClockNanoseconds() - start < 2 * 1000 * 1000) backend::Pause();
  times[n] = start;
  times[n + 1] = backend::ClockNanoseconds();
}

TEST(ClockTest, NeverGoesBackAndCountsNanoseconds) {
  OnOneRank([](Rank& rank) {
    constexpr uint32_t kReads = 1000;
    uint64_t* times = rank.New<uint64_t>(kReads + 2);
    const uint64_t before = backend::ClockNanoseconds();
    rank.Launch({}, ReadClock, times, kReads);
    const std::vector<uint64_t> got = rank.Read(times, kReads + 2);
    const uint64_t took = backend::ClockNanoseconds() - before;
    for (uint32_t i = 1; i < got.size(); ++i) EXPECT_GE(got[i], got[i - 1]) << i;
    EXPECT_GE(got[kReads + 1] - got[kReads], 2000000u);
    EXPECT_GE(took, 1900000u) << "the kernel waited 2 ms by its own clock";
  });
}

// Trap.

IRIS_KERNEL void TrapIfTold(uint32_t told) {
  if (told != 0) backend::Trap("the kernel has a bug");
}

TEST(TrapDeathTest, EndsTheKernelAsABug) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        backend::Stream stream;
        if (backend::Stream::Create(&stream).ok() &&
            backend::Launch({}, stream, TrapIfTold, 1u).ok() && stream.Synchronize().ok()) {
          exit(0);
        }
        abort();
      },
      "the kernel has a bug");
}

}  // namespace
}  // namespace iris::conformance
