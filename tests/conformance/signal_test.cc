// Signals, put with signal, and all waits.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

constexpr uint64_t kMillisecondNs = 1000 * 1000;

// Ping-pong and ping-all.

template <typename Coop>
IRIS_KERNEL void PingPong(DeviceContext ctx, uint64_t* signal, uint64_t rounds, uint32_t* result) {
  const uint32_t peer = 1 - ctx.rank;
  WaitResult last = WaitResult::kOk;
  for (uint64_t k = 1; k <= rounds && last == WaitResult::kOk; ++k) {
    if (ctx.rank == 0 && impl::CoopIndex(Coop{}) == 0) SignalSet(ctx, peer, signal, k);
    last = WaitUntil(ctx, signal, Compare::kEq, k, Coop{});
    if (ctx.rank == 1 && impl::CoopIndex(Coop{}) == 0) SignalSet(ctx, peer, signal, k);
  }
  if (impl::CoopIndex(Coop{}) == 0) *result = static_cast<uint32_t>(last);
}

template <typename Coop>
void CheckPingPong(uint32_t threads) {
  World(2).Run([threads](Rank& rank) {
    uint64_t* signal = rank.New<uint64_t>(1);
    uint32_t* result = rank.New<uint32_t>(1);
    rank.Write(result, 99u);
    rank.HostBarrier();
    rank.Launch({1, threads}, PingPong<Coop>, rank.ctx, signal, uint64_t{800 / kSlower}, result);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(result), 0u);
    EXPECT_EQ(rank.Read(signal), 800u / kSlower);
  });
}

TEST(PingPongTest, ByThread) { CheckPingPong<Thread>(1); }
TEST(PingPongTest, ByWarp) { CheckPingPong<Warp>(32); }
TEST(PingPongTest, ByShortWarp) { CheckPingPong<Warp>(5); }
TEST(PingPongTest, ByBlock) { CheckPingPong<Block>(64); }
TEST(PingPongTest, ByOddBlock) { CheckPingPong<Block>(33); }

// In each round everybody signals everybody, and waits for everybody.
IRIS_KERNEL void PingAll(DeviceContext ctx, uint64_t* signals, uint64_t rounds, uint32_t* result) {
  WaitResult last = WaitResult::kOk;
  for (uint64_t k = 1; k <= rounds && last == WaitResult::kOk; ++k) {
    for (uint32_t p = 0; p < ctx.n_ranks; ++p) SignalSet(ctx, p, signals + ctx.rank, k);
    last = WaitAll(ctx, signals, ctx.n_ranks, nullptr, Compare::kGe, k);
  }
  *result = static_cast<uint32_t>(last);
}

class RanksTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RanksTest, testing::Values(1, 2, 3, 4, 5, 8));

TEST_P(RanksTest, PingAll) {
  World(GetParam()).Run([](Rank& rank) {
    uint64_t* signals = rank.New<uint64_t>(rank.n());
    uint32_t* result = rank.New<uint32_t>(1);
    rank.Write(result, 99u);
    rank.HostBarrier();
    rank.Launch({}, PingAll, rank.ctx, signals, uint64_t{200 / kSlower}, result);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(result), 0u);
  });
}

// Put with signal.

// Each round, every rank puts `bytes` bytes of its round's fill to every rank, then waits for all,
// and checks what came from the highest byte down: the last byte written is the first one read.
template <typename Coop>
IRIS_KERNEL void FanOut(DeviceContext ctx, uint8_t* src, uint8_t* dst, uint64_t bytes,
                        uint64_t* ready, uint64_t* done, uint64_t rounds, uint64_t* bad) {
  const uint32_t n = ctx.n_ranks;
  const uint32_t index = impl::CoopIndex(Coop{});
  const uint32_t size = impl::CoopSize(Coop{});
  for (uint64_t k = 1; k <= rounds; ++k) {
    for (uint64_t i = index; i < bytes; i += size) {
      src[i] = static_cast<uint8_t>(k * 37 + i * 11 + ctx.rank * 5);
    }
    impl::CoopSyncBeforePublish(Coop{});
    for (uint32_t step = 0; step < n; ++step) {
      const uint32_t peer = (ctx.rank + step) % n;
      PutSignal(ctx, peer, dst + ctx.rank * bytes, src, bytes, {ready + ctx.rank, k}, Coop{});
    }
    for (uint32_t p = 0; p < n; ++p) {
      if (WaitUntil(ctx, ready + p, Compare::kGe, k, Coop{}) != WaitResult::kOk) {
        if (index == 0) *bad = ~0ull;
        return;
      }
      for (uint64_t i = bytes; i-- > 0;) {
        if (i % size != index) continue;
        const uint8_t expected = static_cast<uint8_t>(k * 37 + i * 11 + p * 5);
        if (dst[p * bytes + i] != expected) {
          (void)AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, ctx.rank, bad, 1);
        }
      }
    }
    // Tell all senders that their data has been read: ready is not consumed.
    impl::CoopSyncBeforePublish(Coop{});
    if (index == 0) {
      for (uint32_t p = 0; p < n; ++p) SignalAdd(ctx, p, done, 1);
    }
    if (WaitUntil(ctx, done, Compare::kGe, k * n, Coop{}) != WaitResult::kOk) {
      if (index == 0) *bad = ~0ull;
      return;
    }
  }
}

using FanOutParam = std::tuple<uint32_t, uint64_t, int>;  // ranks, bytes, coop
class FanOutTest : public testing::TestWithParam<FanOutParam> {};

TEST_P(FanOutTest, DataIsThereWhenTheSignalIs) {
  const uint64_t bytes = std::get<1>(GetParam());
  const int coop = std::get<2>(GetParam());
  World(std::get<0>(GetParam())).Run([=](Rank& rank) {
    uint8_t* src = rank.New<uint8_t>(bytes);
    uint8_t* dst = rank.New<uint8_t>(bytes * rank.n());
    uint64_t* ready = rank.New<uint64_t>(rank.n());
    uint64_t* done = rank.New<uint64_t>(1);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    const uint64_t rounds = 40 / kSlower;
    if (coop == 0) {
      rank.Launch({1, 1}, FanOut<Thread>, rank.ctx, src, dst, bytes, ready, done, rounds, bad);
    } else if (coop == 1) {
      rank.Launch({1, 20}, FanOut<Warp>, rank.ctx, src, dst, bytes, ready, done, rounds, bad);
    } else {
      rank.Launch({1, 64}, FanOut<Block>, rank.ctx, src, dst, bytes, ready, done, rounds, bad);
    }
    rank.Synchronize();
    EXPECT_EQ(rank.Read(bad), 0u);
    EXPECT_EQ(rank.Read(done), rounds * rank.n());
  });
}

std::string FanOutName(const testing::TestParamInfo<FanOutParam>& info) {
  const char* const coops[] = {"Thread", "Warp", "Block"};
  return std::to_string(std::get<0>(info.param)) + "Ranks" +
         std::to_string(std::get<1>(info.param)) + "Bytes" + coops[std::get<2>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(PutSignal, FanOutTest,
                         testing::Combine(testing::Values(1, 2, 4, 5), testing::Values(1, 31, 1000),
                                          testing::Values(0, 1, 2)),
                         FanOutName);

IRIS_KERNEL void PutAndCount(DeviceContext ctx, uint32_t* dst, const uint32_t* src, uint64_t* sum) {
  PutSignal(ctx, 0, dst + ctx.rank, src, 1, {sum, 1, SignalOp::kAdd});
}

IRIS_KERNEL void WaitAndSum(DeviceContext ctx, const uint32_t* dst, const uint64_t* sum,
                            uint32_t* total) {
  if (WaitUntil(ctx, sum, Compare::kEq, ctx.n_ranks) != WaitResult::kOk) return;
  for (uint32_t p = 0; p < ctx.n_ranks; ++p) *total += dst[p];
}

TEST_P(RanksTest, WhoSeesTheSumOfSignalsSeesAllData) {
  World(GetParam()).Run([](Rank& rank) {
    uint32_t* dst = rank.New<uint32_t>(rank.n());
    uint32_t* src = rank.New<uint32_t>(1);
    uint64_t* sum = rank.New<uint64_t>(1);
    uint32_t* total = rank.New<uint32_t>(1);
    rank.Write(src, rank.rank() + 1);
    rank.HostBarrier();
    rank.Launch({}, PutAndCount, rank.ctx, dst, static_cast<const uint32_t*>(src), sum);
    if (rank.rank() == 0) {
      rank.Launch({}, WaitAndSum, rank.ctx, static_cast<const uint32_t*>(dst),
                  static_cast<const uint64_t*>(sum), total);
      EXPECT_EQ(rank.Read(total), rank.n() * (rank.n() + 1) / 2);
    }
    rank.Synchronize();
  });
}

// The waits one by one: rank 0 alone, on words that are there or not.

struct Waits {
  uint32_t results[16];
  uint64_t numbers[64];
};

template <typename T>
IRIS_KERNEL void CompareAll(DeviceContext ctx, const T* word, T lower, T same, T higher,
                            Waits* out) {
  const uint64_t t = kMillisecondNs;
  const Compare compares[] = {Compare::kEq, Compare::kNe, Compare::kGt,
                              Compare::kGe, Compare::kLt, Compare::kLe};
  for (uint32_t i = 0; i < 6; ++i) {
    const Compare c = compares[i];
    out->numbers[3 * i] = Test(word, c, lower);
    out->numbers[3 * i + 1] = Test(word, c, same);
    out->numbers[3 * i + 2] = Test(word, c, higher);
    // A wait agrees with a test: it succeeds at once, or times out.
    out->results[i] = 0;
    for (uint32_t k = 0; k < 3; ++k) {
      const T value = k == 0 ? lower : k == 1 ? same : higher;
      const bool ok = WaitUntil(ctx, word, c, value, t) == WaitResult::kOk;
      if (ok != (out->numbers[3 * i + k] != 0)) ++out->results[i];
    }
  }
}

template <typename T>
class CompareTest : public testing::Test {};
using CompareTypes = testing::Types<uint64_t, int64_t, uint32_t, int32_t>;
TYPED_TEST_SUITE(CompareTest, CompareTypes);

TYPED_TEST(CompareTest, EveryComparisonWithLowerSameAndHigher) {
  using T = TypeParam;
  World(1).Run([](Rank& rank) {
    T* word = rank.New<T>(1);
    Waits* out = rank.New<Waits>(1);
    const T same = std::is_signed_v<T> ? static_cast<T>(-3) : static_cast<T>(5);
    const T higher = std::is_signed_v<T> ? T{2} : static_cast<T>(~T{0});
    rank.Write(word, same);
    rank.Launch({}, CompareAll<T>, rank.ctx, static_cast<const T*>(word), static_cast<T>(same - 1),
                same, higher, out);
    const Waits waits = rank.Read(out);
    const std::vector<uint64_t> expected = {0, 1, 0,   // eq
                                            1, 0, 1,   // ne
                                            1, 0, 0,   // gt lower
                                            1, 1, 0,   // ge
                                            0, 0, 1,   // lt higher
                                            0, 1, 1};  // le
    EXPECT_EQ(std::vector<uint64_t>(waits.numbers, waits.numbers + 18), expected);
    for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(waits.results[i], 0u) << "comparison " << i;
  });
}

IRIS_KERNEL void WaitMany(DeviceContext ctx, uint64_t* words, const uint8_t* skip, Waits* out) {
  const uint64_t t = kMillisecondNs;
  uint64_t index = 0;
  uint64_t count = 0;
  uint64_t found[8];
  uint32_t r = 0;
  uint64_t* numbers = out->numbers;
  // words: 0 7 0 7 0 0 7 0
  out->results[r++] = static_cast<uint32_t>(WaitAll(ctx, words, 8, nullptr, Compare::kEq, 7, t));
  out->results[r++] = static_cast<uint32_t>(WaitAll(ctx, words, 8, skip, Compare::kEq, 7, t));
  out->results[r++] = static_cast<uint32_t>(WaitAll(ctx, words, 0, nullptr, Compare::kEq, 7, t));
  for (uint32_t k = 0; k < 4; ++k) {  // fair: 1, 3, 6, then 1 again
    out->results[r++] =
        static_cast<uint32_t>(WaitAny(ctx, words, 8, nullptr, Compare::kEq, 7, &index, t));
    *numbers++ = index;
  }
  index = 5;
  out->results[r++] =
      static_cast<uint32_t>(WaitAny(ctx, words, 8, nullptr, Compare::kEq, 9, &index, t));
  *numbers++ = index;
  out->results[r++] =
      static_cast<uint32_t>(WaitAny(ctx, words, 0, nullptr, Compare::kEq, 9, &index, t));
  *numbers++ = index;
  out->results[r++] =
      static_cast<uint32_t>(WaitSome(ctx, words, 8, nullptr, Compare::kEq, 7, found, &count, t));
  *numbers++ = count;
  for (uint64_t i = 0; i < count; ++i) *numbers++ = found[i];
  out->results[r++] =
      static_cast<uint32_t>(WaitSome(ctx, words, 8, skip, Compare::kNe, 7, found, &count, t));
  *numbers++ = count;
  out->results[r++] =
      static_cast<uint32_t>(WaitSome(ctx, words, 0, skip, Compare::kEq, 7, found, &count, t));
  *numbers++ = count;
}

TEST(WaitManyTest, AllAnyAndSome) {
  World(1).Run([](Rank& rank) {
    uint64_t* words = rank.New<uint64_t>(8);
    uint8_t* skip = rank.New<uint8_t>(8);
    Waits* out = rank.New<Waits>(1);
    rank.Write(words, std::vector<uint64_t>{0, 7, 0, 7, 0, 0, 7, 0});
    rank.Write(skip, std::vector<uint8_t>{1, 0, 1, 0, 1, 1, 0, 1});
    rank.Launch({}, WaitMany, rank.ctx, words, static_cast<const uint8_t*>(skip), out);
    const Waits waits = rank.Read(out);
    const uint32_t ok = 0;
    const uint32_t timeout = 1;
    EXPECT_EQ(waits.results[0], timeout) << "all, some of them not";
    EXPECT_EQ(waits.results[1], ok) << "all that are not skipped";
    EXPECT_EQ(waits.results[2], ok) << "all of none";
    for (uint32_t k = 3; k < 7; ++k) EXPECT_EQ(waits.results[k], ok) << "any";
    EXPECT_EQ(waits.results[7], timeout) << "any, none of them";
    EXPECT_EQ(waits.results[8], ok) << "any of none";
    EXPECT_EQ(waits.results[9], ok) << "some";
    EXPECT_EQ(waits.results[10], timeout) << "some, none of them";
    EXPECT_EQ(waits.results[11], ok) << "some of none";
    EXPECT_EQ(std::vector<uint64_t>(waits.numbers, waits.numbers + 12),
              (std::vector<uint64_t>{1, 3, 6, 1, 8, 0, 3, 1, 3, 6, 0, 0}));
  });
}

// A consumer that takes messages from whoever has one.
IRIS_KERNEL void TakeFromAny(DeviceContext ctx, const uint64_t* words, uint8_t* taken,
                             uint64_t* sum) {
  for (uint32_t k = 0; k < ctx.n_ranks; ++k) {
    uint64_t i = 0;
    if (WaitAny(ctx, words, ctx.n_ranks, taken, Compare::kNe, 0, &i) != WaitResult::kOk) return;
    taken[i] = 1;
    *sum += words[i];
  }
}

IRIS_KERNEL void SendToZero(DeviceContext ctx, uint64_t* words) {
  SignalSet(ctx, 0, words + ctx.rank, ctx.rank + 100);
}

TEST_P(RanksTest, WaitAnyTakesEveryMessageOnce) {
  World(GetParam()).Run([](Rank& rank) {
    uint64_t* words = rank.New<uint64_t>(rank.n());
    uint8_t* taken = rank.New<uint8_t>(rank.n());
    uint64_t* sum = rank.New<uint64_t>(1);
    rank.HostBarrier();
    rank.Launch({}, SendToZero, rank.ctx, words);
    if (rank.rank() == 0) {
      rank.Launch({}, TakeFromAny, rank.ctx, static_cast<const uint64_t*>(words), taken, sum);
      EXPECT_EQ(rank.Read(sum), 100 * rank.n() + rank.n() * (rank.n() - 1) / 2);
    }
    rank.Synchronize();
  });
}

// Epochs.

template <typename T>
IRIS_KERNEL void EpochPingPong(DeviceContext ctx, T* word, T first, uint32_t rounds,
                               uint32_t* result) {
  const uint32_t peer = 1 - ctx.rank;
  for (uint32_t k = 1; k <= rounds; ++k) {
    const T epoch = static_cast<T>(first + k);
    AtomicStore(ctx, peer, word, epoch);
    if (WaitEpoch(ctx, word, epoch) != WaitResult::kOk || !TestEpoch(word, epoch)) {
      *result = k;
      return;
    }
  }
}

template <typename T>
void CheckEpochWrap(T first) {
  World(2).Run([first](Rank& rank) {
    T* word = rank.New<T>(1);
    uint32_t* result = rank.New<uint32_t>(1);
    rank.Write(word, first);
    rank.HostBarrier();
    rank.Launch({}, EpochPingPong<T>, rank.ctx, word, first, 300u / kSlower, result);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(result), 0u);
    EXPECT_EQ(rank.Read(word), static_cast<T>(first + 300u / kSlower));
  });
}

TEST(EpochTest, From0) { CheckEpochWrap<uint32_t>(0); }
TEST(EpochTest, Across2To32) { CheckEpochWrap<uint32_t>(0xfffffffd); }
TEST(EpochTest, Across2To31) { CheckEpochWrap<uint32_t>(0x7ffffffd); }
TEST(EpochTest, SixtyFourBitsAcross2To64) { CheckEpochWrap<uint64_t>(~2ull); }

template <typename Coop>
IRIS_KERNEL void WaitEpochAhead(DeviceContext ctx, const uint32_t* word, uint32_t epoch,
                                uint32_t* result) {
  const WaitResult r = WaitEpoch(ctx, word, epoch, Coop{}, kMillisecondNs);
  result[backend::ThreadIndex()] = static_cast<uint32_t>(r) + 1;
}

TEST(EpochTest, AnEpochThatIsAheadTimesOutAcrossTheWrap) {
  World(1).Run([](Rank& rank) {
    uint32_t* word = rank.New<uint32_t>(1);
    uint32_t* result = rank.New<uint32_t>(64);
    rank.Write(word, 0xfffffffeu);
    const uint32_t* w = word;
    rank.Launch({1, 64}, WaitEpochAhead<Block>, rank.ctx, w, 1u, result);
    EXPECT_EQ(rank.Read(result, 64), std::vector<uint32_t>(64, 2));  // all: kTimeout
    rank.Launch({1, 64}, WaitEpochAhead<Block>, rank.ctx, w, 0xfffffff0u, result);
    EXPECT_EQ(rank.Read(result, 64), std::vector<uint32_t>(64, 1));  // all: kOk
  });
}

// Timeout and abort.

template <typename Coop>
IRIS_KERNEL void WaitFor7(DeviceContext ctx, const uint64_t* word, uint64_t timeout_ns,
                          uint32_t* results) {
  const WaitResult r = WaitUntil(ctx, word, Compare::kEq, 7, Coop{}, timeout_ns);
  results[backend::ThreadIndex()] = static_cast<uint32_t>(r) + 1;
}

template <typename Coop>
void CheckTimeoutThenSuccess() {
  World(1).Run([](Rank& rank) {
    uint64_t* word = rank.New<uint64_t>(1);
    uint32_t* results = rank.New<uint32_t>(40);
    const uint64_t* w = word;
    rank.Launch({1, 40}, WaitFor7<Coop>, rank.ctx, w, kMillisecondNs, results);
    EXPECT_EQ(rank.Read(results, 40), std::vector<uint32_t>(40, 2));
    EXPECT_EQ(rank.Read(word), 0u) << "a wait changes nothing";
    rank.Write(word, uint64_t{7});
    rank.Launch({1, 40}, WaitFor7<Coop>, rank.ctx, w, uint64_t{0}, results);
    EXPECT_EQ(rank.Read(results, 40), std::vector<uint32_t>(40, 1));
  });
}

TEST(TimeoutTest, ThreadWaitsAgain) { CheckTimeoutThenSuccess<Thread>(); }
TEST(TimeoutTest, WarpWaitsAgain) { CheckTimeoutThenSuccess<Warp>(); }
TEST(TimeoutTest, BlockWaitsAgain) { CheckTimeoutThenSuccess<Block>(); }

TEST(TimeoutTest, TheContextsTimeoutCounts) {
  World(1, 1 << 20, 3 * kMillisecondNs).Run([](Rank& rank) {
    const uint64_t* word = rank.New<uint64_t>(1);
    uint32_t* results = rank.New<uint32_t>(1);
    rank.Launch({}, WaitFor7<Thread>, rank.ctx, word, uint64_t{0}, results);
    EXPECT_EQ(rank.Read(results), 2u);
  });
}

template <typename Coop>
void CheckAbort() {
  World world(2);
  world.Run([&](Rank& rank) {
    const uint64_t* word = rank.New<uint64_t>(1);
    uint32_t* results = rank.New<uint32_t>(40);
    rank.HostBarrier();
    rank.Launch({1, 40}, WaitFor7<Coop>, rank.ctx, word, uint64_t{0}, results);
    if (rank.rank() == 0) world.Abort();
    EXPECT_EQ(rank.Read(results, 40), std::vector<uint32_t>(40, 3));  // all: kAborted
  });
}

TEST(AbortTest, EndsAThreadsWait) { CheckAbort<Thread>(); }
TEST(AbortTest, EndsAWarpsWait) { CheckAbort<Warp>(); }
TEST(AbortTest, EndsABlocksWait) { CheckAbort<Block>(); }

TEST(AbortTest, WhatIsThereIsStillSeen) {
  World world(1);
  world.Abort();
  world.Run([](Rank& rank) {
    uint64_t* word = rank.New<uint64_t>(1);
    uint32_t* results = rank.New<uint32_t>(40);
    rank.Write(word, uint64_t{7});
    rank.Launch({1, 40}, WaitFor7<Block>, rank.ctx, static_cast<const uint64_t*>(word), uint64_t{0},
                results);
    EXPECT_EQ(rank.Read(results, 40), std::vector<uint32_t>(40, 1));
  });
}

TEST(AbortTest, AContextWithoutAbortWordIsNotAborted) {
  World world(1);
  world.Abort();
  world.Run([](Rank& rank) {
    DeviceContext ctx = rank.ctx;
    ctx.abort_word = nullptr;
    const uint64_t* word = rank.New<uint64_t>(1);
    uint32_t* results = rank.New<uint32_t>(1);
    rank.Launch({}, WaitFor7<Thread>, ctx, word, kMillisecondNs, results);
    EXPECT_EQ(rank.Read(results), 2u);
  });
}

// Waits that report to the host.

// In each round rank 0 raises rank 1's signal, and the other way round.
template <typename Coop>
IRIS_KERNEL void AwaitEachOther(DeviceContext ctx, uint64_t* signal, uint64_t rounds,
                                WaitReport report, uint32_t* came) {
  const uint32_t peer = 1 - ctx.rank;
  uint32_t n = 0;
  for (uint64_t k = 1; k <= rounds; ++k) {
    if (impl::CoopIndex(Coop{}) == 0) SignalSet(ctx, peer, signal, k);
    n += AwaitSignal(ctx, peer, signal, k, report, Coop{}) ? 1 : 0;
  }
  came[backend::ThreadIndex()] = n;
}

template <typename Coop>
void CheckAwaitSignal(uint32_t threads) {
  World(2).Run([threads](Rank& rank) {
    uint64_t* signal = rank.New<uint64_t>(1);
    uint32_t* came = rank.New<uint32_t>(threads);
    WaitFailure* failure = rank.New<WaitFailure>(1);
    rank.HostBarrier();
    rank.Launch({1, threads}, AwaitEachOther<Coop>, rank.ctx, signal, uint64_t{100},
                WaitReport{failure}, came);
    EXPECT_EQ(rank.Read(came, threads), std::vector<uint32_t>(threads, 100));
    EXPECT_EQ(rank.Read(failure).state, WaitFailure::kNone);
  });
}

TEST(AwaitSignalTest, ComesToAThread) { CheckAwaitSignal<Thread>(1); }
TEST(AwaitSignalTest, ComesToAWarp) { CheckAwaitSignal<Warp>(20); }
TEST(AwaitSignalTest, ComesToABlock) { CheckAwaitSignal<Block>(70); }

// Block b waits for its own signal to be `wanted`, and all of its threads write what they got.
IRIS_KERNEL void AwaitOrTell(DeviceContext ctx, uint32_t from, const uint64_t* signals,
                             uint64_t wanted, WaitReport report, uint64_t timeout_ns,
                             uint32_t* came) {
  const uint64_t* const signal = signals + backend::BlockIndex();
  const bool ok = AwaitSignal(ctx, from, signal, wanted, report, Block{}, timeout_ns);
  came[backend::ThreadOfGrid()] = ok ? 1 : 2;
}

TEST(AwaitSignalTest, TellsWhoDidNotComeAndHowLongTheWaitWas) {
  World(1).Run([](Rank& rank) {
    uint64_t* signals = rank.New<uint64_t>(3);
    uint32_t* came = rank.New<uint32_t>(3 * 40);
    WaitFailure* failure = rank.New<WaitFailure>(1);
    rank.Write(signals, std::vector<uint64_t>{9, 8, 10});
    const uint64_t* const s = signals;
    rank.Launch({3, 40}, AwaitOrTell, rank.ctx, 5u, s, uint64_t{9}, WaitReport{failure},
                3 * kMillisecondNs, came);
    std::vector<uint32_t> wanted(3 * 40, 1);
    std::fill_n(wanted.begin() + 40, 40, 2);
    EXPECT_EQ(rank.Read(came, 3 * 40), wanted);
    const WaitFailure told = rank.Read(failure);
    EXPECT_EQ(told.state, WaitFailure::kTold);
    EXPECT_EQ(told.result, WaitResult::kTimeout);
    EXPECT_EQ(told.from, 5u);
    EXPECT_EQ(told.block, 1u);
    EXPECT_EQ(told.waited_ns, 3 * kMillisecondNs);
    EXPECT_EQ(told.wanted, 9u);
    EXPECT_EQ(told.seen, 8u);
  });
}

TEST(AwaitSignalTest, TheTimeoutIsTheContexts) {
  World(1, 1 << 20, 2 * kMillisecondNs).Run([](Rank& rank) {
    const uint64_t* signals = rank.New<uint64_t>(1);
    uint32_t* came = rank.New<uint32_t>(1);
    WaitFailure* failure = rank.New<WaitFailure>(1);
    rank.Launch({}, AwaitOrTell, rank.ctx, 0u, signals, uint64_t{1}, WaitReport{failure},
                uint64_t{0}, came);
    EXPECT_EQ(rank.Read(failure).waited_ns, 2 * kMillisecondNs);
  });
}

TEST(AwaitSignalTest, AfterAFailureOthersEndAtOnceAndTheFirstStays) {
  World(1).Run([](Rank& rank) {
    uint64_t* signals = rank.New<uint64_t>(20);
    uint32_t* came = rank.New<uint32_t>(20);
    WaitFailure* failure = rank.New<WaitFailure>(1);
    WaitFailure first;
    first.state = WaitFailure::kTold;
    first.from = 3;
    rank.Write(failure, first);
    rank.Write(signals, uint64_t{1});  // that of block 0 has come
    const uint64_t* const s = signals;
    const uint64_t begin = backend::ClockNanoseconds();
    rank.Launch({20, 1}, AwaitOrTell, rank.ctx, 0u, s, uint64_t{1}, WaitReport{failure},
                uint64_t{0}, came);
    std::vector<uint32_t> wanted(20, 2);
    wanted[0] = 1;
    EXPECT_EQ(rank.Read(came, 20), wanted);
    EXPECT_LT(backend::ClockNanoseconds() - begin, kTestTimeoutNs / 2);
    EXPECT_EQ(rank.Read(failure).from, 3u);
  });
}

TEST(AwaitSignalTest, AnAbortIsTold) {
  World world(1);
  world.Abort();
  world.Run([](Rank& rank) {
    const uint64_t* signals = rank.New<uint64_t>(1);
    uint32_t* came = rank.New<uint32_t>(1);
    WaitFailure* failure = rank.New<WaitFailure>(1);
    rank.Launch({}, AwaitOrTell, rank.ctx, 0u, signals, uint64_t{1}, WaitReport{failure},
                uint64_t{0}, came);
    EXPECT_EQ(rank.Read(came), 2u);
    EXPECT_EQ(rank.Read(failure).result, WaitResult::kAborted);
  });
}

// Block b of rank 0 waits for its own signal, and says that rank `from` + b raises it. Rank 1 does.
IRIS_KERNEL void AwaitOrRaise(DeviceContext ctx, uint32_t from, uint64_t* signals, uint32_t* came) {
  const uint32_t b = backend::BlockIndex();
  if (ctx.rank == 1) {
    SignalSet(ctx, 0, signals + b, 7);
  } else {
    came[b] = AwaitSignal(ctx, from + b, signals + b, 7, WaitReport{}) ? 1 : 2;
  }
}

// The notes of a rank, as its control page has them.
class Notes {
 public:
  Notes() : notes_(static_cast<WaitNote*>(backend::MallocHost(kBytes))) {
    std::memset(static_cast<void*>(notes_), 0, kBytes);
  }
  ~Notes() { backend::FreeHost(notes_); }
  Notes(const Notes&) = delete;
  Notes& operator=(const Notes&) = delete;

  DeviceContext Of(const Rank& rank) const {
    DeviceContext ctx = rank.ctx;
    ctx.wait_notes = notes_;
    return ctx;
  }
  WaitNote* operator[](uint32_t slot) const { return notes_ + slot; }
  uint32_t State(uint32_t slot) const {
    return __atomic_load_n(&notes_[slot].state, __ATOMIC_ACQUIRE);
  }
  // As soon as a wait is noted there.
  const WaitNote* Await(uint32_t slot) const {
    const uint64_t begin = backend::ClockNanoseconds();
    while (State(slot) != WaitNote::kNoted) {
      if (backend::ClockNanoseconds() - begin > kTestTimeoutNs) {
        ADD_FAILURE() << "no wait is noted in " << slot;
        break;
      }
      std::this_thread::yield();
    }
    return notes_ + slot;
  }
  std::vector<uint32_t> States() const {
    std::vector<uint32_t> states;
    for (uint32_t i = 0; i < kWaitNotes; ++i) states.push_back(State(i));
    return states;
  }

 private:
  static constexpr uint64_t kBytes = kWaitNotes * sizeof(WaitNote);
  WaitNote* const notes_;
};

TEST(AwaitSignalTest, AWaitIsNotedWhileItLasts) {
  const Notes notes;
  notes[2]->state = WaitNote::kClaimed;  // by another wait, for a rank that uses the same note
  World(2).Run([&notes](Rank& rank) {
    uint64_t* signals = rank.New<uint64_t>(3);
    uint32_t* came = rank.New<uint32_t>(3);
    rank.Write(signals, std::vector<uint64_t>{3, 4, 5});
    rank.HostBarrier();
    if (rank.rank() == 0) {
      rank.Launch({3, 1}, AwaitOrRaise, notes.Of(rank), 9u, signals, came);
    } else {
      for (const uint32_t block : {0, 2}) {
        const WaitNote* const note = notes.Await(1 + block);
        EXPECT_EQ(note->from, 9 + block);
        EXPECT_EQ(note->block, block);
        EXPECT_EQ(note->wanted, 7u);
        EXPECT_EQ(__atomic_load_n(&note->seen, __ATOMIC_RELAXED), 3 + block);
        EXPECT_GE(__atomic_load_n(&note->waited_ms, __ATOMIC_RELAXED), 1000u);
      }
      rank.Launch({3, 1}, AwaitOrRaise, rank.ctx, 0u, signals, came);
    }
    rank.Synchronize();
    const std::vector<uint32_t> all_came(3, rank.rank() == 0 ? 1 : 0);
    EXPECT_EQ(rank.Read(came, 3), all_came);
  });
  EXPECT_EQ(notes.States(), (std::vector<uint32_t>{0, 0, WaitNote::kClaimed, 0, 0, 0, 0, 0}));
  EXPECT_EQ(notes[2]->waited_ms, 0u);
}

TEST(AwaitSignalTest, AWaitThatFailsTakesItsNoteBack) {
  const Notes notes;
  World world(1);
  world.Run([&](Rank& rank) {
    const uint64_t* signals = rank.New<uint64_t>(1);
    uint32_t* came = rank.New<uint32_t>(1);
    rank.Launch({}, AwaitOrTell, notes.Of(rank), 1u, signals, uint64_t{1}, WaitReport{},
                uint64_t{0}, came);
    (void)notes.Await(1);
    world.Abort();
    EXPECT_EQ(rank.Read(came), 2u);
  });
  EXPECT_EQ(notes.States(), std::vector<uint32_t>(kWaitNotes, WaitNote::kFree));
}

TEST(AwaitSignalTest, AShortWaitIsNotNoted) {
  const Notes notes;
  World(1).Run([&notes](Rank& rank) {
    const uint64_t* signals = rank.New<uint64_t>(1);
    uint32_t* came = rank.New<uint32_t>(1);
    rank.Launch({}, AwaitOrTell, notes.Of(rank), 1u, signals, uint64_t{1}, WaitReport{},
                3 * kMillisecondNs, came);
    EXPECT_EQ(rank.Read(came), 2u);
  });
  EXPECT_EQ(notes[1]->wanted, 0u);
}

TEST(AwaitSignalTest, MayReportToNobody) {
  World(1).Run([](Rank& rank) {
    const uint64_t* signals = rank.New<uint64_t>(1);
    uint32_t* came = rank.New<uint32_t>(1);
    rank.Launch({}, AwaitOrTell, rank.ctx, 0u, signals, uint64_t{1}, WaitReport{}, kMillisecondNs,
                came);
    EXPECT_EQ(rank.Read(came), 2u);
  });
}

}  // namespace
}  // namespace iris::conformance
