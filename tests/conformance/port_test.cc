// Ranks of other nodes, through the port: what kernels may rely on. The other node is simulated by
// a PortThread, which reorders all that iris/port_types.h lets it reorder.
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr uint64_t kHeapBytes = 4 << 20;

local::WorldOptions Nodes(uint32_t n_ranks, uint32_t n_nodes, uint64_t seed = 7,
                          uint32_t delay_us_max = 0) {
  local::WorldOptions options;
  options.n_ranks = n_ranks;
  options.n_nodes = n_nodes;
  options.heap_bytes = kHeapBytes;
  options.timeout_ns = kTestTimeoutNs;
  options.port = {seed, delay_us_max};
  return options;
}

class PortTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Data, which a put sends and a get fetches.

IRIS_KERNEL void PutAndGet(DeviceContext ctx, uint32_t to, uint32_t* out, uint32_t* in,
                           const uint32_t* mine, uint64_t n, uint32_t* failed) {
  Put(ctx, to, out, mine, n, Block{});
  if (backend::ThreadIndex() == 0 && Quiet(ctx) != WaitResult::kOk) *failed = 1;
  backend::BlockSync();
  Get(ctx, to, in, out, n, Block{});
}

TEST_F(PortTest, PutAndGetOfAllSizes) {
  World(Nodes(2, 2)).Run([](Rank& rank) {
    constexpr uint64_t kMost = 100 * 1000;
    auto* const out = rank.New<uint32_t>(kMost);
    auto* const in = rank.New<uint32_t>(kMost);
    auto* const mine = rank.New<uint32_t>(kMost);
    auto* const failed = rank.New<uint32_t>(1);
    for (const uint64_t n :
         {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{1000}, kMost}) {
      std::vector<uint32_t> values(kMost, 0);
      std::iota(values.begin(), values.begin() + n, rank.rank() * kMost + n);
      rank.Write(mine, values);
      rank.Write(in, std::vector<uint32_t>(kMost, 0));
      rank.HostBarrier();
      rank.Launch({1, 32}, PutAndGet, rank.ctx, 1 - rank.rank(), out, in,
                  static_cast<const uint32_t*>(mine), n, failed);
      rank.Synchronize();
      EXPECT_EQ(rank.Read(in, kMost), values) << n;
      rank.HostBarrier();
      EXPECT_EQ(rank.Read(out, n), [&] {
        std::vector<uint32_t> theirs(n);
        std::iota(theirs.begin(), theirs.end(), (1 - rank.rank()) * kMost + n);
        return theirs;
      }()) << n;
    }
    EXPECT_EQ(rank.Read(failed), 0u);
  });
}

IRIS_KERNEL void QuietAlone(DeviceContext ctx) { (void)Quiet(ctx); }

IRIS_KERNEL void ReuseTheSource(DeviceContext ctx, uint64_t* inbox, uint64_t* mine, uint32_t n) {
  if (ctx.rank != 0) return;
  for (uint32_t i = 0; i < n; ++i) {
    for (uint64_t k = backend::ThreadIndex(); k < 64; k += backend::BlockSize()) mine[k] = i;
    backend::BlockSync();
    Put(ctx, 1, inbox + 64 * i, mine, 64, Block{});
    backend::BlockSync();
  }
}

TEST_F(PortTest, TheSourceOfAPutMayBeReused) {
  World(Nodes(2, 2, 3, 20)).Run([](Rank& rank) {
    constexpr uint32_t kPuts = 300;
    auto* const inbox = rank.New<uint64_t>(64 * kPuts);
    auto* const mine = rank.New<uint64_t>(64);
    rank.Launch({1, 16}, ReuseTheSource, rank.ctx, inbox, mine, kPuts);
    rank.Launch({1, 1}, QuietAlone, rank.ctx);
    rank.Synchronize();
    rank.HostBarrier();
    if (rank.rank() != 1) return;
    const std::vector<uint64_t> got = rank.Read(inbox, 64 * kPuts);
    for (uint32_t i = 0; i < 64 * kPuts; ++i) ASSERT_EQ(got[i], i / 64);
  });
}

IRIS_KERNEL void CopyColumns(DeviceContext ctx, uint32_t to, float* theirs, float* back,
                             const float* mine, Strided rows, Strided reversed) {
  Put(ctx, to, theirs, mine, rows, Block{});
  if (backend::ThreadIndex() == 0) (void)Quiet(ctx);
  backend::BlockSync();
  Get(ctx, to, back, theirs, reversed, Block{});
}

TEST_F(PortTest, Rows) {
  World(Nodes(2, 2)).Run([](Rank& rank) {
    auto* const mine = rank.New<float>(64 * 64);
    auto* const theirs = rank.New<float>(64 * 64);
    auto* const back = rank.New<float>(64 * 64);
    std::vector<float> matrix(64 * 64);
    std::iota(matrix.begin(), matrix.end(), 1000.0f * rank.rank());
    rank.Write(mine, matrix);
    rank.HostBarrier();
    rank.Launch({1, 8}, CopyColumns, rank.ctx, 1 - rank.rank(), theirs, back,
                static_cast<const float*>(mine + 3), Strided{64, 2, 5, 64}, Strided{64, 2, 3, 5});
    rank.Synchronize();
    const std::vector<float> got = rank.Read(back, 3 * 64);
    for (uint32_t row = 0; row < 64; ++row) {
      EXPECT_EQ(got[3 * row], matrix[64 * row + 3]);
      EXPECT_EQ(got[3 * row + 1], matrix[64 * row + 4]);
      EXPECT_EQ(got[3 * row + 2], 0.0f);
    }
  });
}

// Words from and to memory outside the heap.

IRIS_KERNEL void PutAndGetLocals(DeviceContext ctx, uint32_t to, uint64_t* words, uint64_t* seen) {
  const uint64_t value = 0x0123456789abcdefull + ctx.rank;
  Put(ctx, to, words, &value, 1);
  const uint16_t narrow = 0x55aa;
  Put(ctx, to, reinterpret_cast<uint16_t*>(words + 1), &narrow, 1);
  (void)Quiet(ctx);
  uint64_t back = 0;
  Get(ctx, to, &back, words, 1);
  seen[0] = back;
  uint32_t low = 0;
  Get(ctx, to, &low, reinterpret_cast<const uint32_t*>(words + 1), 1);
  seen[1] = low;
}

TEST_F(PortTest, WordsOutsideTheHeap) {
  World(Nodes(2, 2)).Run([](Rank& rank) {
    auto* const words = rank.New<uint64_t>(2);
    auto* const seen = rank.New<uint64_t>(2);
    rank.Launch({1, 1}, PutAndGetLocals, rank.ctx, 1 - rank.rank(), words, seen);
    rank.Synchronize();
    EXPECT_THAT(rank.Read(seen, 2),
                ElementsAre(0x0123456789abcdefull + rank.rank(), uint64_t{0x55aa}));
  });
}

// Message passing: a signal is seen after its data, and after earlier puts to the same rank.

IRIS_KERNEL void PassMessages(DeviceContext ctx, uint32_t n, uint64_t* data, uint64_t* early,
                              uint64_t* ready, uint64_t* taken, const uint64_t* source,
                              uint32_t* wrong) {
  const uint32_t other = 1 - ctx.rank;
  for (uint32_t i = 1; i <= n; ++i) {
    if (ctx.rank == 0) {
      for (uint64_t k = backend::ThreadIndex(); k < 33; k += backend::BlockSize()) {
        const_cast<uint64_t*>(source)[k] = i;
      }
      backend::BlockSync();
      if (backend::ThreadIndex() == 0) Put(ctx, other, early, source, 1);
      PutSignal(ctx, other, data, source, 33, {ready, 1, SignalOp::kAdd}, Block{});
      if (WaitUntil(ctx, taken, Compare::kGe, uint64_t{i}, Block{}) != WaitResult::kOk) return;
    } else {
      if (!AwaitSignal(ctx, 0, ready, i, WaitReport{}, Block{})) return;
      bool bad = *early != i;
      for (uint64_t k = backend::ThreadIndex(); k < 33; k += backend::BlockSize()) {
        bad = bad || data[k] != i;
      }
      if (bad) *wrong = i;
      backend::BlockSync();
      if (backend::ThreadIndex() == 0) SignalSet(ctx, other, taken, i);
    }
  }
}

TEST_F(PortTest, SignalsArriveAfterTheirDataAndAfterEarlierPuts) {
  World(Nodes(2, 2, 11, 10)).Run([](Rank& rank) {
    constexpr uint32_t kRounds = 400 / kSlower;
    auto* const data = rank.New<uint64_t>(33);
    auto* const early = rank.New<uint64_t>(1);
    auto* const ready = rank.New<uint64_t>(1);
    auto* const taken = rank.New<uint64_t>(1);
    auto* const source = rank.New<uint64_t>(33);
    auto* const wrong = rank.New<uint32_t>(1);
    rank.Launch({1, 8}, PassMessages, rank.ctx, kRounds, data, early, ready, taken,
                static_cast<const uint64_t*>(source), wrong);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(wrong), 0u);
    if (rank.rank() == 0) return;
    EXPECT_EQ(rank.Read(ready), kRounds);
  });
}

// Store buffering: each rank writes to the other, is quiet, and reads its own word.

IRIS_KERNEL void BufferStores(DeviceContext ctx, uint32_t n, uint32_t* words, uint32_t* seen,
                              uint64_t* round) {
  const uint32_t other = 1 - ctx.rank;
  for (uint32_t i = 0; i < n; ++i) {
    SignalSet(ctx, other, round, i + 1);
    if (WaitUntil(ctx, round, Compare::kGe, uint64_t{i + 1}) != WaitResult::kOk) return;
    AtomicStore<Scope::kSystem, Order::kRelaxed>(ctx, other, words + i, 1u);
    if (Quiet(ctx) != WaitResult::kOk) return;
    seen[i] = AtomicLoad<Scope::kSystem, Order::kRelaxed>(ctx, ctx.rank, words + i);
  }
}

TEST_F(PortTest, StoreBufferingWithQuiet) {
  constexpr uint32_t kRounds = 1000 / kSlower;
  std::vector<uint32_t> seen[2];
  World(Nodes(2, 2, 13, 5)).Run([&](Rank& rank) {
    auto* const words = rank.New<uint32_t>(kRounds);
    auto* const mine = rank.New<uint32_t>(kRounds);
    auto* const round = rank.New<uint64_t>(1);
    rank.Launch({1, 1}, BufferStores, rank.ctx, kRounds, words, mine, round);
    rank.Synchronize();
    seen[rank.rank()] = rank.Read(mine, kRounds);
  });
  for (uint32_t i = 0; i < kRounds; ++i) EXPECT_TRUE(seen[0][i] == 1 || seen[1][i] == 1) << i;
}

// Atomics.

template <typename T>
IRIS_KERNEL void DoAtomics(DeviceContext ctx, uint32_t to, T* word, T* old) {
  AtomicStore(ctx, to, word, T(40));
  uint32_t i = 0;
  old[i++] = AtomicAdd(ctx, to, word, T(2));
  old[i++] = AtomicSub(ctx, to, word, T(10));
  old[i++] = AtomicMin(ctx, to, word, T(30));
  old[i++] = AtomicMax(ctx, to, word, T(35));
  old[i++] = AtomicExchange(ctx, to, word, T(12));
  old[i++] = AtomicCompareExchange(ctx, to, word, T(11), T(1));
  old[i++] = AtomicCompareExchange(ctx, to, word, T(12), T(-5));
  old[i++] = AtomicMax(ctx, to, word, T(3));
  if constexpr (std::is_integral_v<T>) {
    AtomicStore(ctx, to, word, T(12));
    old[i++] = AtomicAnd(ctx, to, word, T(10));
    old[i++] = AtomicOr(ctx, to, word, T(3));
    old[i++] = AtomicXor(ctx, to, word, T(1));
  }
  old[i++] = AtomicLoad(ctx, to, word);
}

template <typename T>
void TestAtomics() {
  World(Nodes(2, 2)).Run([](Rank& rank) {
    auto* const word = rank.New<T>(1);
    auto* const port = rank.New<T>(16);
    auto* const mapped = rank.New<T>(16);
    auto* const own = rank.New<T>(1);
    rank.Launch({1, 1}, DoAtomics<T>, rank.ctx, 1 - rank.rank(), word, port);
    rank.Launch({1, 1}, DoAtomics<T>, rank.ctx, rank.rank(), own, mapped);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(port, 16), rank.Read(mapped, 16));
    EXPECT_EQ(rank.Read(port + 1), T(42));
  });
}

TEST_F(PortTest, AtomicsOfAllTypesAreThoseOfMappedRanks) {
  TestAtomics<int32_t>();
  TestAtomics<uint32_t>();
  TestAtomics<int64_t>();
  TestAtomics<uint64_t>();
  TestAtomics<float>();
  TestAtomics<double>();
}

IRIS_KERNEL void AddNarrow(DeviceContext ctx, Half* half, Bfloat16* bfloat, float* old) {
  old[0] = static_cast<float>(AtomicAdd(ctx, 1 - ctx.rank, half + 1, Half(1.5f)));
  old[1] = static_cast<float>(AtomicAdd(ctx, 1 - ctx.rank, half + 1, Half(2.0f)));
  old[2] = static_cast<float>(AtomicAdd(ctx, 1 - ctx.rank, bfloat, Bfloat16(3.0f)));
  old[3] = static_cast<float>(AtomicAdd(ctx, 1 - ctx.rank, bfloat, Bfloat16(-1.0f)));
}

TEST_F(PortTest, AtomicAddOfNarrowFloats) {
  World(Nodes(2, 2)).Run([](Rank& rank) {
    auto* const half = rank.New<Half>(2);
    auto* const bfloat = rank.New<Bfloat16>(2);
    auto* const old = rank.New<float>(4);
    rank.Launch({1, 1}, AddNarrow, rank.ctx, half, bfloat, old);
    rank.Synchronize();
    rank.HostBarrier();
    EXPECT_THAT(rank.Read(old, 4), ElementsAre(0.0f, 1.5f, 0.0f, 3.0f));
    EXPECT_EQ(static_cast<float>(rank.Read(half + 1)), 3.5f);
    EXPECT_EQ(static_cast<float>(rank.Read(bfloat)), 2.0f);
  });
}

// Many threads of several ranks count in one word of rank 0, some of them mapped.

IRIS_KERNEL void TakeTickets(DeviceContext ctx, uint32_t each, uint32_t* counter, uint32_t* taken) {
  for (uint32_t i = 0; i < each; ++i) {
    const uint32_t ticket = AtomicAdd(ctx, 0, counter, 1u);
    AtomicAdd(ctx, 0, taken + ticket, 1u);
  }
}

TEST_F(PortTest, TicketsOfMappedAndOtherRanksDiffer) {
  constexpr uint32_t kEach = 20, kThreads = 2 * 16;
  World(Nodes(4, 2)).Run([](Rank& rank) {
    auto* const counter = rank.New<uint32_t>(1);
    auto* const taken = rank.New<uint32_t>(4 * kThreads * kEach);
    rank.Launch({2, 16}, TakeTickets, rank.ctx, kEach, counter, taken);
    rank.Synchronize();
    rank.HostBarrier();
    if (rank.rank() != 0) return;
    constexpr uint32_t kAll = 4 * kThreads * kEach;
    EXPECT_EQ(rank.Read(counter), kAll);
    EXPECT_THAT(rank.Read(taken, kAll), Each(1u));
  });
}

// The ring.

IRIS_KERNEL void ManySignals(DeviceContext ctx, uint32_t each, uint64_t* counter) {
  for (uint32_t i = 0; i < each; ++i) SignalAdd(ctx, 1, counter, 1);
}

TEST_F(PortTest, AFullRingWaits) {
  World world(Nodes(2, 2));
  world.port_thread()->Pause();
  std::thread resume([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    world.port_thread()->Resume();
  });
  world.Run([](Rank& rank) {
    auto* const counter = rank.New<uint64_t>(1);
    if (rank.rank() == 0) {
      rank.Launch({4, 64}, ManySignals, rank.ctx, 30, counter);  // 7,680 requests
      rank.Launch({1, 1}, QuietAlone, rank.ctx);
      rank.Synchronize();
    }
    rank.HostBarrier();
    if (rank.rank() == 0) return;
    EXPECT_EQ(rank.Read(counter), 4u * 64 * 30);
  });
  resume.join();
}

IRIS_KERNEL void Add1(DeviceContext ctx, uint32_t* words, uint32_t to, uint64_t index) {
  AtomicAdd(ctx, to, words + index, 1u);
}

TEST_F(PortTest, ASleepingPortIsWoken) {
  if (!backend::Traits::kEmulated) GTEST_SKIP() << "kernels on GPUs cannot wake a process";
  World world(Nodes(2, 2));
  world.Run([&](Rank& rank) {
    auto* const word = rank.New<uint32_t>(1);
    if (rank.rank() != 0) return;
    const uint64_t before = world.port_thread()->wakes();
    for (uint32_t i = 0; i < 200 && world.port_thread()->wakes() == before; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      rank.Launch({1, 1}, Add1, rank.ctx, word, 1u, 0ul);
      rank.Synchronize();
    }
    EXPECT_GT(world.port_thread()->wakes(), before);
  });
}

// Failures.

IRIS_KERNEL void WaitForever(DeviceContext ctx, uint32_t* word, uint32_t* results) {
  results[0] = AtomicAdd(ctx, 1, word, 1u);
  results[1] = static_cast<uint32_t>(Quiet(ctx));
}

// Lets rank 0 wait for the port, which takes no requests, and calls end().
template <typename End>
void ExpectWaitsEnd(World& world, WaitResult expected, End end) {
  world.port_thread()->Pause();
  world.Run([&](Rank& rank) {
    auto* const word = rank.New<uint32_t>(1);
    auto* const results = rank.New<uint32_t>(2);
    if (rank.rank() != 0) return;
    rank.Launch({1, 1}, WaitForever, rank.ctx, word, results);
    end();
    rank.Synchronize();
    EXPECT_THAT(rank.Read(results, 2), ElementsAre(0u, static_cast<uint32_t>(expected)));
  });
  world.port_thread()->Resume();
}

TEST_F(PortTest, AbortEndsTheWaits) {
  World world(Nodes(2, 2));
  ExpectWaitsEnd(world, WaitResult::kAborted, [&] { world.Abort(); });
}

TEST_F(PortTest, TimeoutEndsTheWaits) {
  local::WorldOptions options = Nodes(2, 2);
  options.timeout_ns = 20 * 1000 * 1000;
  World world(options);
  ExpectWaitsEnd(world, WaitResult::kTimeout, [] {});
}

TEST_F(PortTest, APortThatHasStoppedEndsTheWaits) {
  World world(Nodes(2, 2));
  world.port_thread()->Pause();
  world.port_thread()->Fail(14);
  ExpectWaitsEnd(world, WaitResult::kAborted, [] {});
}

// The barrier over nodes.

IRIS_KERNEL void MeetAndLook(DeviceContext ctx, DeviceTeam team, uint32_t rounds, uint32_t* words,
                             uint32_t* wrong) {
  words += backend::BlockIndex() * kMaxTeamRanks;
  for (uint32_t round = 1; round <= rounds; ++round) {
    // Each rank writes into the heaps of all, by puts or stores.
    for (uint32_t m = 0; m < team.size; ++m) {
      if (backend::ThreadIndex() == 0) Put(ctx, MemberRank(team, m), words + team.index, &round, 1);
    }
    if (Barrier(ctx, team) != WaitResult::kOk) {
      *wrong = 1;
      return;
    }
    for (uint32_t m = 0; m < team.size; ++m) {
      if (words[m] != round) *wrong = 2;
    }
    if (Barrier(ctx, team) != WaitResult::kOk) {
      *wrong = 1;
      return;
    }
  }
}

void TestBarrier(uint32_t n_ranks, uint32_t n_nodes, const std::vector<uint32_t>& members) {
  World(Nodes(n_ranks, n_nodes, 17, 3)).Run([&](Rank& rank) {
    const DeviceTeam team = members.empty() ? rank.ctx.world : rank.NewTeam(members);
    auto* const words = rank.New<uint32_t>(2 * kMaxTeamRanks);
    auto* const wrong = rank.New<uint32_t>(1);
    if (team.index >= team.size) return;
    for (uint32_t m = 0; m < members.size(); ++m) ASSERT_EQ(MemberRank(team, m), members[m]);
    rank.Launch({2, 4}, MeetAndLook, rank.ctx, team, 30 / kSlower, words, wrong);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(wrong), 0u) << rank.rank();
  });
}

TEST_F(PortTest, BarrierOfTheWorld) { TestBarrier(6, 3, {}); }
TEST_F(PortTest, BarrierOfEvenlySpacedRanks) { TestBarrier(6, 3, {1, 3, 5}); }
TEST_F(PortTest, BarrierOfAnyRanks) { TestBarrier(6, 2, {5, 0, 1, 3}); }
TEST_F(PortTest, BarrierOfOneNode) { TestBarrier(6, 2, {3, 5}); }

IRIS_KERNEL void MissTheBarrier(DeviceContext ctx, uint32_t* results) {
  uint32_t missing = 99;
  const WaitResult result = Barrier(ctx, ctx.world, 30 * 1000 * 1000, &missing);
  if (backend::ThreadIndex() != 0) return;
  results[0] = static_cast<uint32_t>(result);
  results[1] = missing;
}

TEST_F(PortTest, ABarrierNamesAMissingRank) {
  World(Nodes(2, 2)).Run([](Rank& rank) {
    auto* const results = rank.New<uint32_t>(2);
    if (rank.rank() == 1) return;
    rank.Launch({1, 4}, MissTheBarrier, rank.ctx, results);
    rank.Synchronize();
    EXPECT_THAT(rank.Read(results, 2),
                ElementsAre(static_cast<uint32_t>(WaitResult::kTimeout), 1u));
  });
}

// Mistakes, which emulated devices find.

class PortMistakesTest : public PortTest {
 protected:
  void SetUp() override {
    PortTest::SetUp();
    if (!backend::Traits::kEmulated) GTEST_SKIP() << "kernels on GPUs do not check their arguments";
  }
};

IRIS_KERNEL void StoreOn1(DeviceContext ctx, uint32_t* p) { Store(ctx, 1, p, 1u); }
IRIS_KERNEL void LoadOf1(DeviceContext ctx, uint32_t* p) { *p = Load(ctx, 1, p); }
IRIS_KERNEL void TranslateTo1(DeviceContext ctx, uint32_t* p) { *Translate(ctx, 1, p) = 1; }
IRIS_KERNEL void PutLocals(DeviceContext ctx, uint32_t* p) {
  const uint32_t local[4] = {1, 2, 3, 4};
  Put(ctx, 1, p, local, 4);
}

template <typename... Params, typename... Args>
void RunOn0(void (*kernel)(Params...), Args... args) {
  World(Nodes(2, 2)).Run([&](Rank& rank) {
    auto* const words = rank.New<uint32_t>(64);
    if (rank.rank() != 0) return;
    rank.Launch({1, 1}, kernel, rank.ctx, words, args...);
    rank.Synchronize();
  });
}

TEST_F(PortMistakesTest, LoadsAndStoresOfAnotherNodeAreRefused) {
  EXPECT_DEATH(RunOn0(StoreOn1),
               "rank 1 is on another node, and this call reaches the ranks of this node alone, 0 "
               "to 0: use Put, Get, PutSignal, signals or atomics");
  EXPECT_DEATH(RunOn0(LoadOf1), "Load of 4 bytes .* rank 1 is on another node");
  EXPECT_DEATH(RunOn0(TranslateTo1), "Translate .* rank 1 is on another node");
}

TEST_F(PortMistakesTest, LongSourcesOutsideTheHeapAreRefused) {
  EXPECT_DEATH(RunOn0(PutLocals),
               "Put of 16 bytes .* rank 1 is on another node, so more than 8 bytes must come from");
}

// Eight words, to the place after the first `n`.
IRIS_KERNEL void PutBehind(DeviceContext ctx, uint32_t* p, uint64_t n) {
  Put(ctx, 1, p + n, p + 4, 8);
}

// The allocation ends after 16 words at ranks that this one does not map.
void RunPutBehind(uint64_t n) {
  World(Nodes(2, 2)).Run([n](Rank& rank) {
    auto* const words = rank.New<uint32_t>(64);
    if (rank.rank() != 0) return;
    static uint64_t end = 0;
    end = reinterpret_cast<uint64_t>(words + 16) - rank.ctx.base;
    backend::HeapMap map;
    map.allowed = [](const backend::HeapMap*, uint32_t of, uint64_t offset, uint64_t bytes, char*,
                     uint64_t) { return of == 0 || offset + bytes <= end; };
    map.nearest = [](const backend::HeapMap*, uint32_t, uint64_t, backend::HeapRange*) {
      return false;
    };
    DeviceContext ctx = rank.ctx;
    ctx.heap_map = &map;
    rank.Launch({1, 1}, PutBehind, ctx, words, n);
    rank.Synchronize();
  });
}

TEST_F(PortMistakesTest, PlacesOfPeersThatNoAllocationHasAreRefused) {
  RunPutBehind(8);
  EXPECT_DEATH(RunPutBehind(9), "Put of 32 bytes at .* for rank 1");
}

TEST_F(PortMistakesTest, RanksAndPlacesThatDoNotExistAreRefused) {
  EXPECT_DEATH(RunOn0(Add1, 2u, 0ul), "there is no rank 2 in a job of 2");
  EXPECT_DEATH(RunOn0(Add1, 1u, kHeapBytes << 3), "AtomicAdd of 4 bytes");
}

}  // namespace
}  // namespace iris::conformance
