// Masks (mask.h), and tables of heaps in place of a DeviceContext (heap_bases.h).
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

constexpr uint32_t kNobody = 1000;  // no rank: a masked call must not look at it

template <typename T>
T ValueOf(uint64_t number) {
  T value;
  uint8_t bytes[sizeof(T)];
  for (uint64_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<uint8_t>(number * 29 + i * 7 + 1);
  memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
void ExpectSame(const std::vector<T>& got, const std::vector<T>& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  for (uint64_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(memcmp(&got[i], &expected[i], sizeof(T)), 0) << what << ", element " << i;
  }
}

// Values. Threads from `n` on are masked off, and have neither a peer nor an address.

template <CacheHint H, typename T>
IRIS_KERNEL void LoadSome(DeviceContext ctx, uint32_t n, const T* x, T* out, T other) {
  const uint32_t i = backend::ThreadIndex();
  const uint32_t peer = (ctx.rank + 1) % ctx.n_ranks;
  const bool on = i < n;
  out[i] = Load<H>(ctx, on ? peer : kNobody, on ? x + i : nullptr, Mask{on}, other);
}

template <CacheHint H, typename T>
IRIS_KERNEL void StoreSome(DeviceContext ctx, uint32_t n, T* x, const T* in) {
  const uint32_t i = backend::ThreadIndex();
  const uint32_t peer = (ctx.rank + 1) % ctx.n_ranks;
  const bool on = i < n;
  Store<H>(ctx, on ? peer : kNobody, on ? x + i : nullptr, in[i], Mask{on});
}

template <CacheHint H, typename T>
void CheckValues() {
  World(2).Run([](Rank& rank) {
    constexpr uint32_t kThreads = 64;
    constexpr uint32_t kOn = 37;
    T* x = rank.New<T>(kThreads);
    T* y = rank.New<T>(kThreads);
    T* out = rank.New<T>(kThreads);
    const uint32_t peer = rank.next();
    std::vector<T> sent(kThreads), loaded(kThreads), stored(kThreads);
    for (uint32_t i = 0; i < kThreads; ++i) {
      sent[i] = ValueOf<T>(100 * rank.rank() + i);
      loaded[i] = i < kOn ? ValueOf<T>(100 * peer + i) : ValueOf<T>(7);
      stored[i] = i < kOn ? ValueOf<T>(100 * peer + i) : ValueOf<T>(9);  // from the only other rank
    }
    rank.Write(x, sent);
    rank.Write(y, std::vector<T>(kThreads, ValueOf<T>(9)));
    rank.HostBarrier();
    rank.Launch({1, kThreads}, LoadSome<H, T>, rank.ctx, kOn, static_cast<const T*>(x), out,
                ValueOf<T>(7));
    rank.Launch({1, kThreads}, StoreSome<H, T>, rank.ctx, kOn, y, static_cast<const T*>(x));
    rank.Synchronize();
    rank.HostBarrier();
    ExpectSame(rank.Read(out, kThreads), loaded, "loaded");
    ExpectSame(rank.Read(y, kThreads), stored, "stored");
  });
}

TEST(MaskTest, ValuesOfOneByteStreaming) { CheckValues<CacheHint::kStreaming, uint8_t>(); }
TEST(MaskTest, ValuesOfTwoBytesStreaming) { CheckValues<CacheHint::kStreaming, Half>(); }
TEST(MaskTest, ValuesOfFourBytes) { CheckValues<CacheHint::kDefault, float>(); }
TEST(MaskTest, ValuesOfEightBytesVolatile) { CheckValues<CacheHint::kVolatile, uint64_t>(); }
TEST(MaskTest, ValuesOfSixteenBytesStreaming) { CheckValues<CacheHint::kStreaming, Bytes16>(); }

TEST(MaskTest, TheElementsThatAMaskLeaves) {
  EXPECT_EQ(impl::Masked(64, Tail{0, 150}), 64u);
  EXPECT_EQ(impl::Masked(64, Mask{true}), 64u);
  EXPECT_EQ(impl::Masked(64, Mask{false}), 0u);
  EXPECT_EQ(impl::Masked(64, Tail{128, 150}), 22u);
  EXPECT_EQ(impl::Masked(64, Tail{150, 150}), 0u);
  EXPECT_EQ(impl::Masked(64, Tail{192, 150}), 0u);
  EXPECT_EQ(impl::Masked(0, Tail{0, 150}), 0u);
}

// Ranges: parts of 64 elements, of which the last ones are not there. The third way copies from
// rank to rank.
template <typename T>
IRIS_KERNEL void MoveParts(DeviceContext ctx, uint64_t n, T* put, T* got, T* copied, T* nothing,
                           const T* src) {
  constexpr uint64_t kPart = 64;
  const uint32_t peer = (ctx.rank + 1) % ctx.n_ranks;
  for (uint64_t first = 0; first < n + 2 * kPart; first += kPart) {
    const Tail tail = {first, n};
    const bool on = first < n;
    Put(ctx, on ? peer : kNobody, put + first, src + first, kPart, tail, Block{});
    Get<CacheHint::kStreaming>(ctx, peer, got + first, src + first, kPart, tail, Block{});
    // The mask is the same in each thread of a set, and may differ between the sets.
    const bool mine = on && first / kPart % 2 == backend::WarpIndex() % 2;
    const uint64_t rest = impl::Masked(kPart, tail);
    Copy(ctx, peer, copied + first, ctx.rank, src + first, rest, Mask{mine}, Warp{});
    if (backend::ThreadIndex() == 0) Put(ctx, kNobody, nothing, src, kPart, Mask{false});
  }
}

TEST(MaskTest, RangesEndWhereTheMaskSays) {
  World(3).Run([](Rank& rank) {
    using T = uint16_t;
    constexpr uint64_t kRoom = 512, kCount = 150;
    T* src = rank.New<T>(kRoom);
    T* to[4];
    for (T*& each : to) each = rank.New<T>(kRoom);
    std::vector<T> sent(kRoom);
    std::iota(sent.begin(), sent.end(), static_cast<T>(1000 * rank.rank() + 1));
    rank.Write(src, sent);
    rank.HostBarrier();
    rank.Launch({1, 2 * backend::WarpSize()}, MoveParts<T>, rank.ctx, kCount, to[0], to[1], to[2],
                to[3], static_cast<const T*>(src));
    rank.Synchronize();
    rank.HostBarrier();
    const uint32_t before = (rank.rank() + 2) % 3;
    const auto from = [&](uint32_t r) {
      std::vector<T> values(kRoom);
      std::iota(values.begin(), values.begin() + kCount, static_cast<T>(1000 * r + 1));
      return values;
    };
    EXPECT_EQ(rank.Read(to[0], kRoom), from(before));
    EXPECT_EQ(rank.Read(to[1], kRoom), from(rank.next()));
    EXPECT_EQ(rank.Read(to[2], kRoom), from(before));
    EXPECT_EQ(rank.Read(to[3], kRoom), std::vector<T>(kRoom));
  });
}

// Tables.

IRIS_KERNEL void MakeTable(DeviceContext ctx, uint64_t* table) { FillHeapBases(ctx, table); }

// A kernel that is not Iris's own: it has a table. Each rank sends to the next.
IRIS_KERNEL void Foreign(const uint64_t* table, uint32_t rank, uint32_t n, float* slot, float* put,
                         float* got, float* copied, const float* src, uint64_t* signal,
                         uint64_t* seen) {
  const HeapBases heaps = {table, rank};
  const uint32_t next = (rank + 1) % n;
  const uint32_t before = (rank + n - 1) % n;
  if (backend::ThreadIndex() == 0) {
    Store(heaps, next, slot, static_cast<float>(rank + 1));
    slot[1] = Load<CacheHint::kVolatile>(heaps, next, src);
    slot[2] = Load(heaps, kNobody, src, Mask{false}, 5.0f);
    Copy(heaps, next, copied, before, src, 33);
    // From a pointer into the heap of another rank.
    const float* theirs = Translate(heaps, next, src);
    slot[3] = Translate(heaps, next, rank, theirs) == src ? 1.0f : 0.0f;
    slot[4] = Load(HeapBases{table, next}, before, theirs);
    SignalAdd(heaps, next, signal, 5);
  }
  Get(heaps, next, got, src, 77, Block{});
  PutSignal(heaps, next, put, src, 77, {signal, 1, SignalOp::kAdd}, Block{});
  // The two adders are ordered by nothing: whoever sees 6 has both.
  if (backend::ThreadIndex() == 0) {
    const uint64_t until = backend::ClockNanoseconds() + kTestTimeoutNs;
    while (!Test(signal, Compare::kEq, uint64_t{6}) && backend::ClockNanoseconds() < until) {
      backend::Pause();
    }
    *seen = *signal;
  }
}

TEST(HeapBasesTest, AKernelWithATableReachesEveryRank) {
  World(3).Run([](Rank& rank) {
    uint64_t* table = rank.New<uint64_t>(3);
    float* src = rank.New<float>(100);
    float* slot = rank.New<float>(8);
    float* put = rank.New<float>(100);
    float* got = rank.New<float>(100);
    float* copied = rank.New<float>(100);
    uint64_t* signal = rank.New<uint64_t>(1);
    uint64_t* seen = rank.New<uint64_t>(1);
    const auto values = [](uint32_t r, uint64_t n) {
      std::vector<float> x(100);
      for (uint64_t i = 0; i < n; ++i) x[i] = static_cast<float>(1000 * (r + 1) + i);
      return x;
    };
    rank.Write(src, values(rank.rank(), 100));
    rank.Launch({}, MakeTable, rank.ctx, table);
    rank.Synchronize();
    const std::vector<uint64_t> made = rank.Read(table, 3);
    for (uint32_t r = 0; r < 3; ++r) {
      EXPECT_EQ(made[r], reinterpret_cast<uint64_t>(AtOffset<char>(rank.ctx, r, 0)));
    }
    rank.HostBarrier();
    rank.Launch({1, 40}, Foreign, static_cast<const uint64_t*>(table), rank.rank(), 3u, slot, put,
                got, copied, static_cast<const float*>(src), signal, seen);
    rank.Synchronize();
    rank.HostBarrier();
    const uint32_t next = rank.next(), before = (rank.rank() + 2) % 3;
    EXPECT_EQ(rank.Read(slot, 5),
              (std::vector<float>{static_cast<float>(before + 1), 1000.0f * (next + 1), 5.0f, 1.0f,
                                  1000.0f * (before + 1)}));
    EXPECT_EQ(rank.Read(seen), 6u);
    EXPECT_EQ(rank.Read(got, 100), values(next, 77));
    EXPECT_EQ(rank.Read(put, 100), values(before, 77));
    // The rank before copied here from the rank before that one.
    EXPECT_EQ(rank.Read(copied, 100), values(next, 33));
  });
}

// A table says where each heap is: the distances may be any.
IRIS_KERNEL void StoreByTable(const uint64_t* table, uint32_t* x) {
  for (uint32_t r = 0; r < 3; ++r) Store(HeapBases{table, 1}, r, x, r + 40);
}

TEST(HeapBasesTest, HeapsAtAnyDistance) {
  World(1).Run([](Rank& rank) {
    uint32_t* room = rank.New<uint32_t>(64);
    uint64_t* table = rank.New<uint64_t>(3);
    const uint64_t base = reinterpret_cast<uint64_t>(room);
    rank.Write(table, std::vector<uint64_t>{base + 36 * 4, base, base + 12 * 4});
    rank.Launch({}, StoreByTable, static_cast<const uint64_t*>(table), room + 5);
    rank.Synchronize();
    std::vector<uint32_t> expected(64);
    expected[41] = 40;
    expected[5] = 41;
    expected[17] = 42;
    EXPECT_EQ(rank.Read(room, 64), expected);
  });
}

// All atomics by a table and with a mask: threads of even number are masked off.
template <typename T>
IRIS_KERNEL void AllAtomics(const uint64_t* table, uint32_t rank, T* words, T* olds,
                            uint32_t* wrong) {
  constexpr Scope kSystem = Scope::kSystem;
  const HeapBases heaps = {table, rank};
  const uint32_t own = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
  const uint32_t id = rank * backend::GridSize() * backend::BlockSize() + own;
  const bool on = id % 2 == 1;
  const Mask mask = {on};
  const uint32_t peer = on ? 0 : kNobody;
  T* const none = nullptr;
  bool good = true;
  const auto see = [&](T old) { good = good && (on || old == T(7)); };
  see(AtomicAdd(heaps, peer, on ? words : none, T(1), mask, T(7)));
  see(AtomicSub<kSystem, Order::kRelaxed>(heaps, peer, on ? words + 1 : none, T(1), mask, T(7)));
  const T old = AtomicExchange<kSystem, Order::kAcquire>(heaps, peer, on ? words + 2 : none,
                                                         T(id + 1), mask, T(7));
  see(old);
  olds[own] = on ? old : T(0);
  see(AtomicMin<kSystem, Order::kRelease>(heaps, peer, on ? words + 3 : none, T(id), mask, T(7)));
  see(AtomicMax(heaps, peer, on ? words + 4 : none, T(id), mask, T(7)));
  good = good && AtomicCompareExchange(heaps, kNobody, none, T(0), T(1), Mask{false}, T(7)) == T(7);
  if (on) {
    T expected = AtomicLoad<kSystem, Order::kRelaxed>(heaps, peer, words + 5);
    for (;;) {
      const T seen = AtomicCompareExchange(heaps, peer, words + 5, expected,
                                           static_cast<T>(expected + T(1)), Mask{true});
      if (seen == expected) break;
      expected = seen;
    }
  }
  if constexpr (std::is_integral_v<T>) {
    const T bit = static_cast<T>(uint32_t{1} << id % 31);
    see(AtomicAnd(heaps, peer, on ? words + 6 : none, static_cast<T>(~bit), mask, T(7)));
    see(AtomicOr(heaps, peer, on ? words + 7 : none, bit, mask, T(7)));
    see(AtomicXor(heaps, peer, on ? words + 8 : none, static_cast<T>(id), mask, T(7)));
  }
  if (!good) (void)AtomicAdd(HeapBases{table, rank}, rank, wrong, 1u);
}

template <typename T>
void CheckAtomics() {
  constexpr uint32_t kThreads = 32, kIds = 3 * 2 * kThreads;
  World world(3);
  T* words = nullptr;
  double olds_sum = 0;
  world.Run([&](Rank& rank) {
    uint64_t* table = rank.New<uint64_t>(3);
    T* x = rank.New<T>(9);
    T* olds = rank.New<T>(2 * kThreads);
    uint32_t* wrong = rank.New<uint32_t>(1);
    std::vector<T> initial(9, T(0));
    initial[1] = T(500);
    initial[3] = T(900);
    if constexpr (std::is_integral_v<T>) initial[6] = static_cast<T>(0x7fffffff);
    rank.Write(x, initial);
    rank.Launch({}, MakeTable, rank.ctx, table);
    rank.Synchronize();
    rank.HostBarrier();
    rank.Launch({2, kThreads}, AllAtomics<T>, static_cast<const uint64_t*>(table), rank.rank(), x,
                olds, wrong);
    rank.Synchronize();
    rank.HostBarrier();
    EXPECT_EQ(rank.Read(wrong), 0u);
    for (uint32_t r = 0; r < 3; ++r) {
      if (r == rank.rank()) {
        for (const T old : rank.Read(olds, 2 * kThreads)) olds_sum += static_cast<double>(old);
      }
      rank.HostBarrier();
    }
    if (rank.rank() == 0) words = x;
  });
  const std::vector<T> got = world.rank(0).Read(words, 9);
  EXPECT_EQ(got[0], T(kIds / 2));
  EXPECT_EQ(got[1], T(500 - kIds / 2));
  double all = 0;
  for (uint32_t id = 1; id < kIds; id += 2) all += id + 1;
  EXPECT_EQ(olds_sum + static_cast<double>(got[2]), all);
  EXPECT_EQ(got[3], T(1));
  EXPECT_EQ(got[4], T(kIds - 1));
  EXPECT_EQ(got[5], T(kIds / 2));
  if constexpr (std::is_integral_v<T>) {
    T left = static_cast<T>(0x7fffffff), bits = 0, odd = 0;
    for (uint32_t id = 1; id < kIds; id += 2) {
      left = static_cast<T>(left & ~(T{1} << id % 31));
      bits = static_cast<T>(bits | T{1} << id % 31);
      odd = static_cast<T>(odd ^ static_cast<T>(id));
    }
    EXPECT_EQ(got[6], left);
    EXPECT_EQ(got[7], bits);
    EXPECT_EQ(got[8], odd);
  }
}

TEST(HeapBasesTest, AtomicsI32) { CheckAtomics<int32_t>(); }
TEST(HeapBasesTest, AtomicsU32) { CheckAtomics<uint32_t>(); }
TEST(HeapBasesTest, AtomicsI64) { CheckAtomics<int64_t>(); }
TEST(HeapBasesTest, AtomicsU64) { CheckAtomics<uint64_t>(); }
TEST(HeapBasesTest, AtomicsF32) { CheckAtomics<float>(); }
TEST(HeapBasesTest, AtomicsF64) { CheckAtomics<double>(); }

template <typename T>
IRIS_KERNEL void AddNarrow(const uint64_t* table, uint32_t rank, T* x) {
  (void)AtomicAdd(HeapBases{table, rank}, 0, x + 1, T(1.0f), Mask{backend::ThreadIndex() % 2 == 0});
}

template <typename T>
void CheckNarrow() {
  World world(2);
  T* words = nullptr;
  world.Run([&](Rank& rank) {
    uint64_t* table = rank.New<uint64_t>(2);
    T* x = rank.New<T>(2);
    rank.Launch({}, MakeTable, rank.ctx, table);
    rank.Synchronize();
    rank.HostBarrier();
    rank.Launch({2, 64}, AddNarrow<T>, static_cast<const uint64_t*>(table), rank.rank(), x);
    rank.Synchronize();
    rank.HostBarrier();
    if (rank.rank() == 0) words = x;
  });
  EXPECT_EQ(static_cast<float>(world.rank(0).Read(words, 2)[0]), 0.0f);
  EXPECT_EQ(static_cast<float>(world.rank(0).Read(words, 2)[1]), 128.0f);
}

TEST(HeapBasesTest, AtomicsF16) { CheckNarrow<Half>(); }
TEST(HeapBasesTest, AtomicsBf16) { CheckNarrow<Bfloat16>(); }

}  // namespace
}  // namespace iris::conformance
