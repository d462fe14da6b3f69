// Loads, stores, read-modify-writes, fences and bulk accesses: exact results with many threads.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/emu/testing/test_util.h"
#include "iris/backend/numeric.h"
#include "iris/backend/select.h"

namespace iris::backend {
namespace {

constexpr uint32_t kGrid = 4;
constexpr uint32_t kBlock = 64;
constexpr uint32_t kThreads = kGrid * kBlock;
constexpr uint32_t kRepeats = 20;

IRIS_DEVICE uint32_t GlobalThread() { return BlockIndex() * BlockSize() + ThreadIndex(); }

template <typename T>
class AtomicTest : public testing::Test {};
using AtomicTypes = testing::Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t,
                                   uint64_t, float, double>;
TYPED_TEST_SUITE(AtomicTest, AtomicTypes);

template <typename T>
class IntegerAtomicTest : public testing::Test {};
using IntegerTypes =
    testing::Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>;
TYPED_TEST_SUITE(IntegerAtomicTest, IntegerTypes);

template <AtomicOp Op, typename T>
void FetchMany(T* p, T operand) {
  for (uint32_t i = 0; i < kRepeats; ++i) {
    FetchOp<Op, Scope::kDevice, Order::kRelaxed>(p, operand);
  }
}

// Sums are exact: for narrow integers modulo their range, for floats because all partial sums are.
TYPED_TEST(AtomicTest, AddCountsEveryThread) {
  TypeParam sum = 0;
  RunKernel({kGrid, kBlock, 0}, &FetchMany<AtomicOp::kAdd, TypeParam>, &sum, TypeParam{1});
  EXPECT_EQ(sum, static_cast<TypeParam>(kThreads * kRepeats));
}

TYPED_TEST(AtomicTest, SubCountsEveryThread) {
  TypeParam sum = static_cast<TypeParam>(kThreads * kRepeats);
  RunKernel({kGrid, kBlock, 0}, &FetchMany<AtomicOp::kSub, TypeParam>, &sum, TypeParam{1});
  EXPECT_EQ(sum, TypeParam{0});
}

// Old values of one add each are 0 .. n-1, each once.
template <typename T>
void Tickets(T* counter, uint32_t* taken) {
  const T old = FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kAcqRel>(counter, T{1});
  FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(&taken[static_cast<uint32_t>(old)], 1u);
}

TYPED_TEST(AtomicTest, AddGivesEachThreadAnotherOldValue) {
  // 96 fits every type.
  TypeParam counter = 0;
  std::vector<uint32_t> taken(96);
  RunKernel({2, 48, 0}, &Tickets<TypeParam>, &counter, taken.data());
  for (uint32_t i = 0; i < 96; ++i) EXPECT_EQ(taken[i], 1u) << i;
}

template <typename T>
void ExchangeAll(T* word, uint32_t* seen) {
  const T mine = static_cast<T>(GlobalThread() + 1);
  const T old = FetchOp<AtomicOp::kExchange, Scope::kDevice, Order::kAcqRel>(word, mine);
  FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(&seen[static_cast<uint32_t>(old)], 1u);
}

TYPED_TEST(AtomicTest, ExchangeLosesNoValue) {
  TypeParam word = 0;
  std::vector<uint32_t> seen(97);
  RunKernel({2, 48, 0}, &ExchangeAll<TypeParam>, &word, seen.data());
  ++seen[static_cast<uint32_t>(word)];
  for (uint32_t i = 0; i <= 96; ++i) EXPECT_EQ(seen[i], 1u) << i;
}

template <typename T>
void MinMax(T* low, T* high) {
  // -48 .. 47, or 0 .. 95 for unsigned types.
  const int value = static_cast<int>(GlobalThread()) - (std::is_signed_v<T> ? 48 : 0);
  FetchOp<AtomicOp::kMin, Scope::kDevice, Order::kRelaxed>(low, static_cast<T>(value));
  FetchOp<AtomicOp::kMax, Scope::kDevice, Order::kRelaxed>(high, static_cast<T>(value));
}

TYPED_TEST(AtomicTest, MinAndMaxKeepTheSign) {
  TypeParam low = 10;
  TypeParam high = 10;
  RunKernel({2, 48, 0}, &MinMax<TypeParam>, &low, &high);
  EXPECT_EQ(low, static_cast<TypeParam>(std::is_signed_v<TypeParam> ? -48 : 0));
  EXPECT_EQ(high, static_cast<TypeParam>(std::is_signed_v<TypeParam> ? 47 : 95));
}

template <typename T>
void IncrementByCompareExchange(T* word) {
  T seen = Load<Scope::kDevice, Order::kRelaxed>(word);
  for (;;) {
    const T old =
        CompareExchange<Scope::kDevice, Order::kAcqRel>(word, seen, static_cast<T>(seen + 1));
    if (old == seen) return;
    seen = old;
  }
}

TYPED_TEST(AtomicTest, CompareExchangeLosesNoIncrement) {
  TypeParam word = 0;
  RunKernel({2, 48, 0}, &IncrementByCompareExchange<TypeParam>, &word);
  EXPECT_EQ(word, TypeParam{96});
}

TYPED_TEST(AtomicTest, CompareExchangeChangesNothingWhenTheValueDiffers) {
  TypeParam word = 5;
  EXPECT_EQ((CompareExchange<Scope::kSystem, Order::kAcqRel>(&word, TypeParam{4}, TypeParam{9})),
            TypeParam{5});
  EXPECT_EQ(word, TypeParam{5});
  EXPECT_EQ((CompareExchange<Scope::kSystem, Order::kAcqRel>(&word, TypeParam{5}, TypeParam{9})),
            TypeParam{5});
  EXPECT_EQ(word, TypeParam{9});
}

template <typename T>
void SetOwnBit(T* word) {
  FetchOp<AtomicOp::kOr, Scope::kDevice, Order::kRelaxed>(
      word, static_cast<T>(T{1} << (GlobalThread() % (8 * sizeof(T)))));
}
template <typename T>
void ClearOwnBit(T* word) {
  FetchOp<AtomicOp::kAnd, Scope::kDevice, Order::kRelaxed>(
      word, static_cast<T>(~static_cast<T>(T{1} << (GlobalThread() % (8 * sizeof(T))))));
}
template <typename T>
void FlipOwnBit(T* word) {
  FetchOp<AtomicOp::kXor, Scope::kDevice, Order::kRelaxed>(
      word, static_cast<T>(T{1} << (GlobalThread() % (8 * sizeof(T)))));
}

TYPED_TEST(IntegerAtomicTest, OrSetsEveryBit) {
  TypeParam word = 0;
  RunKernel({kGrid, kBlock, 0}, &SetOwnBit<TypeParam>, &word);
  EXPECT_EQ(word, static_cast<TypeParam>(~TypeParam{0}));
}

TYPED_TEST(IntegerAtomicTest, AndClearsEveryBit) {
  TypeParam word = static_cast<TypeParam>(~TypeParam{0});
  RunKernel({kGrid, kBlock, 0}, &ClearOwnBit<TypeParam>, &word);
  EXPECT_EQ(word, TypeParam{0});
}

TYPED_TEST(IntegerAtomicTest, XorFlipsEveryBitAnOddNumberOfTimes) {
  TypeParam word = 0;
  RunKernel({1, 8 * sizeof(TypeParam), 0}, &FlipOwnBit<TypeParam>, &word);
  EXPECT_EQ(word, static_cast<TypeParam>(~TypeParam{0}));
  RunKernel({1, 8 * sizeof(TypeParam), 0}, &FlipOwnBit<TypeParam>, &word);
  EXPECT_EQ(word, TypeParam{0});
}

// Every legal scope and order is an instantiation that works.
template <typename T, Scope S>
void EveryOrder(T* word, uint32_t* wrong) {
  const T one = static_cast<T>(1);
  Store<S, Order::kRelaxed>(word, one);
  if (!(Load<S, Order::kRelaxed>(word) == one)) CountUp(wrong);
  Store<S, Order::kRelease>(word, one);
  if (!(Load<S, Order::kAcquire>(word) == one)) CountUp(wrong);
  FetchOp<AtomicOp::kAdd, S, Order::kRelaxed>(word, one);
  FetchOp<AtomicOp::kAdd, S, Order::kAcquire>(word, one);
  FetchOp<AtomicOp::kAdd, S, Order::kRelease>(word, one);
  FetchOp<AtomicOp::kAdd, S, Order::kAcqRel>(word, one);
  FetchOp<AtomicOp::kAdd, S, Order::kSeqCst>(word, one);
  if (!(Load<S, Order::kAcquire>(word) == static_cast<T>(6))) CountUp(wrong);
  CompareExchange<S, Order::kRelaxed>(word, static_cast<T>(6), static_cast<T>(7));
  CompareExchange<S, Order::kAcquire>(word, static_cast<T>(7), static_cast<T>(8));
  CompareExchange<S, Order::kRelease>(word, static_cast<T>(8), static_cast<T>(9));
  CompareExchange<S, Order::kAcqRel>(word, static_cast<T>(9), static_cast<T>(10));
  CompareExchange<S, Order::kSeqCst>(word, static_cast<T>(10), static_cast<T>(11));
  if (!(Load<S, Order::kAcquire>(word) == static_cast<T>(11))) CountUp(wrong);
  Fence<S, Order::kAcquire>();
  Fence<S, Order::kRelease>();
  Fence<S, Order::kAcqRel>();
  Fence<S, Order::kSeqCst>();
}

TYPED_TEST(AtomicTest, EveryScopeAndOrderWorks) {
  TypeParam word = 0;
  uint32_t wrong = 0;
  RunKernel({1, 1, 0}, &EveryOrder<TypeParam, Scope::kBlock>, &word, &wrong);
  RunKernel({1, 1, 0}, &EveryOrder<TypeParam, Scope::kDevice>, &word, &wrong);
  RunKernel({1, 1, 0}, &EveryOrder<TypeParam, Scope::kSystem>, &word, &wrong);
  EXPECT_EQ(wrong, 0u);
}

TYPED_TEST(AtomicTest, PlainAccessesMoveTheValue) {
  TypeParam word = 0;
  StorePlain(&word, static_cast<TypeParam>(77));
  EXPECT_EQ(LoadPlain(&word), static_cast<TypeParam>(77));
}

template <typename T>
class NarrowAtomicTest : public testing::Test {};
using NarrowTypes = testing::Types<Half, Bfloat16>;
TYPED_TEST_SUITE(NarrowAtomicTest, NarrowTypes);

template <typename T>
void AddNarrow(T* word, float value) {
  FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(word, T(value));
}

TYPED_TEST(NarrowAtomicTest, AddCountsEveryThread) {
  TypeParam words[3] = {TypeParam(0.0f), TypeParam(0.0f), TypeParam(7.0f)};
  RunKernel({2, 64, 0}, &AddNarrow<TypeParam>, &words[1], 0.5f);
  EXPECT_EQ(static_cast<float>(words[1]), 64.0f);
  EXPECT_EQ(words[0].bits, 0);  // the neighbours in the same 4 bytes
  EXPECT_EQ(static_cast<float>(words[2]), 7.0f);
}

TYPED_TEST(NarrowAtomicTest, TheOtherOperationsWork) {
  TypeParam word(2.0f);
  auto value = [&] { return static_cast<float>(word); };
  EXPECT_EQ(static_cast<float>(
                FetchOp<AtomicOp::kSub, Scope::kSystem, Order::kAcqRel>(&word, TypeParam(0.5f))),
            2.0f);
  EXPECT_EQ(value(), 1.5f);
  FetchOp<AtomicOp::kMax, Scope::kSystem, Order::kAcqRel>(&word, TypeParam(3.0f));
  EXPECT_EQ(value(), 3.0f);
  FetchOp<AtomicOp::kMin, Scope::kSystem, Order::kAcqRel>(&word, TypeParam(-3.0f));
  EXPECT_EQ(value(), -3.0f);
  FetchOp<AtomicOp::kExchange, Scope::kSystem, Order::kAcqRel>(&word, TypeParam(8.0f));
  EXPECT_EQ(static_cast<float>(Load<Scope::kSystem, Order::kAcquire>(&word)), 8.0f);
  Store<Scope::kSystem, Order::kRelease>(&word, TypeParam(9.0f));
  EXPECT_EQ(value(), 9.0f);
}

TEST(FloatAtomicTest, CompareExchangeComparesBits) {
  float zero = 0.0f;
  EXPECT_EQ((CompareExchange<Scope::kSystem, Order::kAcqRel>(&zero, -0.0f, 1.0f)), 0.0f);
  EXPECT_EQ(zero, 0.0f);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float word = nan;
  EXPECT_TRUE(std::isnan(CompareExchange<Scope::kSystem, Order::kAcqRel>(&word, nan, 2.0f)));
  EXPECT_EQ(word, 2.0f);
}

TEST(FloatAtomicTest, MinAndMaxIgnoreANan) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  double word = 4.0;
  FetchOp<AtomicOp::kMin, Scope::kSystem, Order::kAcqRel>(&word, nan);
  FetchOp<AtomicOp::kMax, Scope::kSystem, Order::kAcqRel>(&word, nan);
  EXPECT_EQ(word, 4.0);
}

TEST(IntegerAtomicEdgeTest, SignedOverflowWraps) {
  int32_t word = std::numeric_limits<int32_t>::max();
  FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kAcqRel>(&word, 1);
  EXPECT_EQ(word, std::numeric_limits<int32_t>::min());
}

TEST(PointerAtomicTest, LoadsStoresAndExchangesPointers) {
  int targets[2] = {1, 2};
  int* word = &targets[0];
  EXPECT_EQ((Load<Scope::kSystem, Order::kAcquire>(&word)), &targets[0]);
  Store<Scope::kSystem, Order::kRelease>(&word, &targets[1]);
  EXPECT_EQ((FetchOp<AtomicOp::kExchange, Scope::kSystem, Order::kAcqRel>(&word, &targets[0])),
            &targets[1]);
  EXPECT_EQ((CompareExchange<Scope::kSystem, Order::kAcqRel>(&word, &targets[0], &targets[1])),
            &targets[0]);
  EXPECT_EQ(*word, 2);
}

struct Mailbox {
  uint64_t payload[kBlock];
  uint32_t flag;
};

// The message-passing idiom with a fence and relaxed flags: block 0 sends, block 1 receives.
void FenceThenRelaxedFlag(Mailbox* box, uint32_t* wrong) {
  if (BlockIndex() == 0) {
    StorePlain(&box->payload[ThreadIndex()], uint64_t{7000} + ThreadIndex());
    BlockSync();
    if (ThreadIndex() == 0) {
      Fence<Scope::kSystem, Order::kRelease>();
      Store<Scope::kSystem, Order::kRelaxed>(&box->flag, 1u);
    }
    return;
  }
  if (ThreadIndex() == 0) {
    while (Load<Scope::kSystem, Order::kAcquire>(&box->flag) == 0) Pause();
  }
  BlockSync();
  if (LoadPlain(&box->payload[ThreadIndex()]) != 7000u + ThreadIndex()) CountUp(wrong);
}

TEST(FenceTest, OrdersEarlierWritesBeforeALaterRelaxedStore) {
  for (int i = 0; i < 20; ++i) {
    Mailbox box = {};
    uint32_t wrong = 0;
    RunKernel({2, kBlock, 0}, &FenceThenRelaxedFlag, &box, &wrong);
    ASSERT_EQ(wrong, 0u);
  }
}

// Store buffering: with sequentially consistent fences, at least one block sees the other's store.
void StoreBuffering(uint32_t* words, uint32_t* seen, uint32_t* arrived) {
  CountUp(arrived);
  while (Load<Scope::kDevice, Order::kRelaxed>(arrived) < 2) Pause();
  const uint32_t me = BlockIndex();
  Store<Scope::kSystem, Order::kRelaxed>(&words[me], 1u);
  Fence<Scope::kSystem, Order::kSeqCst>();
  seen[me] = Load<Scope::kSystem, Order::kRelaxed>(&words[1 - me]);
}

TEST(FenceTest, SequentialConsistencyForbidsStoreBuffering) {
  for (int i = 0; i < (kSlow ? 50 : 500); ++i) {
    uint32_t words[2] = {};
    uint32_t seen[2] = {};
    uint32_t arrived = 0;
    RunKernel({2, 1, 0}, &StoreBuffering, &words[0], &seen[0], &arrived);
    ASSERT_NE(seen[0] + seen[1], 0u) << "round " << i;
  }
}

template <CacheHint H>
void CopyUnits(Bytes16* to, const Bytes16* from, uint32_t n) {
  for (uint32_t i = GlobalThread(); i < n; i += GridSize() * BlockSize()) {
    Store16<H>(to + i, Load16<H>(from + i));
  }
}

template <CacheHint H>
void ExpectCopies() {
  constexpr uint32_t kUnits = 5000;
  std::vector<Bytes16> from(kUnits), to(kUnits + 1);
  for (uint32_t i = 0; i < kUnits; ++i) from[i] = {i * 3ull, ~(i * 5ull)};
  RunKernel({3, 40, 0}, &CopyUnits<H>, to.data(), static_cast<const Bytes16*>(from.data()), kUnits);
  EXPECT_EQ(std::memcmp(to.data(), from.data(), kUnits * sizeof(Bytes16)), 0);
  EXPECT_EQ(to[kUnits].lo, 0u);
  EXPECT_EQ(to[kUnits].hi, 0u);
}

TEST(BulkTest, SixteenBytesWithDefaultHint) { ExpectCopies<CacheHint::kDefault>(); }
TEST(BulkTest, SixteenBytesWithStreamingHint) { ExpectCopies<CacheHint::kStreaming>(); }
TEST(BulkTest, SixteenBytesWithVolatileHint) { ExpectCopies<CacheHint::kVolatile>(); }

}  // namespace
}  // namespace iris::backend
