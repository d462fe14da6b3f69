// Every atomic operation, on every type, with every order and scope: contended, and checked at the
// exact count.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

enum class Op { kAdd, kSub, kExchange, kCompareExchange, kMin, kMax, kAnd, kOr, kXor };
enum class Type { kI32, kU32, kI64, kU64, kF32, kF64, kF16, kBf16 };

const char* const kOpNames[] = {"Add", "Sub", "Exchange", "CompareExchange", "Min", "Max",
                                "And", "Or",  "Xor"};
const char* const kTypeNames[] = {"I32", "U32", "I64", "U64", "F32", "F64", "F16", "Bf16"};
const char* const kOrderNames[] = {"Relaxed", "Acquire", "Release", "AcqRel"};
const char* const kScopeNames[] = {"Block", "Device", "System"};

struct Param {
  Op op;
  Type type;
  Order order;
  Scope scope;
};

constexpr uint32_t kThreads = 16;
constexpr uint32_t kRounds = 4;

// Each thread, numbered `id` of `n_ids` over all that take part, makes kRounds operations on the
// word of rank 0 and keeps what they returned.
template <typename T, Scope S, Order O>
IRIS_KERNEL void Contend(DeviceContext ctx, Op op, T* word, T* returned) {
  const uint32_t id =
      (ctx.rank * backend::GridSize() + backend::BlockIndex()) * backend::BlockSize() +
      backend::ThreadIndex();
  T* mine =
      returned + (backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex()) * kRounds;
  for (uint32_t k = 0; k < kRounds; ++k) {
    const uint32_t number = id * kRounds + k;  // of this operation, over all
    T old = T(0);
    switch (op) {
      case Op::kAdd:
        old = AtomicAdd<S, O>(ctx, 0, word, T(1));
        break;
      case Op::kSub:
        if constexpr (!impl::kIsNarrowFloat<T>) old = AtomicSub<S, O>(ctx, 0, word, T(1));
        break;
      case Op::kExchange:
        if constexpr (!impl::kIsNarrowFloat<T>) {
          old = AtomicExchange<S, O>(ctx, 0, word, T(number + 1));
        }
        break;
      case Op::kCompareExchange:
        if constexpr (!impl::kIsNarrowFloat<T>) {
          T expected = AtomicLoad<S, Order::kRelaxed>(ctx, 0, word);
          for (;;) {
            old = AtomicCompareExchange<S, O>(ctx, 0, word, expected, expected + T(1));
            if (old == expected) break;
            expected = old;
          }
        }
        break;
      case Op::kMin:
        if constexpr (!impl::kIsNarrowFloat<T>) old = AtomicMin<S, O>(ctx, 0, word, T(number + 10));
        break;
      case Op::kMax:
        if constexpr (!impl::kIsNarrowFloat<T>) old = AtomicMax<S, O>(ctx, 0, word, T(number + 10));
        break;
      case Op::kAnd:  // each clears one bit, and all of them together all 32
        if constexpr (std::is_integral_v<T>) {
          old = AtomicAnd<S, O>(ctx, 0, word, static_cast<T>(~(uint32_t{1} << number % 32)));
        }
        break;
      case Op::kOr:
        if constexpr (std::is_integral_v<T>) {
          old = AtomicOr<S, O>(ctx, 0, word, static_cast<T>(uint32_t{1} << number % 32));
        }
        break;
      case Op::kXor:
        if constexpr (std::is_integral_v<T>) {
          old = AtomicXor<S, O>(ctx, 0, word, static_cast<T>(number + 5));
        }
        break;
    }
    mine[k] = old;
  }
}

template <typename T>
double Number(T value) {
  if constexpr (impl::kIsNarrowFloat<T>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

template <typename T, Scope S, Order O>
void Check(Op op) {
  // The scope says who takes part: one block; the blocks of one rank; all ranks.
  const uint32_t n_ranks = S == Scope::kSystem ? 3 : 1;
  const uint32_t n_blocks = S == Scope::kBlock ? 1 : 2;
  const uint32_t n_per_rank = n_blocks * kThreads * kRounds;
  const uint32_t n_all = n_ranks * n_per_rank;
  // bf16 holds the integers from -256 to 256: the narrow types start below zero.
  T initial = T(0);
  switch (op) {
    case Op::kAdd:
      if constexpr (impl::kIsNarrowFloat<T>) initial = T(-static_cast<float>(n_all / 2));
      break;
    case Op::kSub:
      initial = T(n_all);
      break;
    case Op::kMin:
      initial = T(n_all + 1000);
      break;
    case Op::kAnd:
      if constexpr (std::is_integral_v<T>) initial = static_cast<T>(~T(0));
      break;
    default:
      break;
  }

  World world(n_ranks);
  T* word = nullptr;
  std::vector<T> returned;
  world.Run([&](Rank& rank) {
    T* x = rank.New<T>(1);
    T* olds = rank.New<T>(n_per_rank);
    if (rank.rank() == 0) rank.Write(x, initial);
    rank.HostBarrier();
    rank.Launch({n_blocks, kThreads}, Contend<T, S, O>, rank.ctx, op, x, olds);
    rank.Synchronize();
    rank.HostBarrier();
    if (rank.rank() == 0) word = x;
    for (uint32_t r = 0; r < rank.n(); ++r) {
      if (r == rank.rank()) {
        for (const T& old : rank.Read(olds, n_per_rank)) returned.push_back(old);
      }
      rank.HostBarrier();
    }
  });
  const double result = Number(world.rank(0).Read(word));
  std::multiset<double> olds;
  double sum_of_olds = 0;
  for (const T& old : returned) {
    olds.insert(Number(old));
    sum_of_olds += Number(old);
  }
  ASSERT_EQ(olds.size(), n_all);
  const double start = Number(initial);
  switch (op) {
    case Op::kAdd:
    case Op::kCompareExchange: {
      EXPECT_EQ(result, start + n_all);
      double expected = start;
      for (double old : olds) EXPECT_EQ(old, expected++);  // each value was seen once
      break;
    }
    case Op::kSub: {
      EXPECT_EQ(result, 0);
      double expected = 1;
      for (double old : olds) EXPECT_EQ(old, expected++);
      break;
    }
    case Op::kExchange: {
      // Nothing is lost: what was put in came out once, or is still there.
      const double all = static_cast<double>(n_all) * (n_all + 1) / 2;
      EXPECT_EQ(sum_of_olds + result, all);
      EXPECT_EQ(olds.count(0), 1u);
      break;
    }
    case Op::kMin:
      EXPECT_EQ(result, 10);
      EXPECT_EQ(*olds.rbegin(), start);
      break;
    case Op::kMax:
      EXPECT_EQ(result, n_all + 9);
      EXPECT_EQ(*olds.begin(), 0);
      break;
    case Op::kAnd:
      if constexpr (std::is_integral_v<T>) {
        // Operands without the sign bit extend with zeros: only bits 0 to 31 may survive, and all
        // of those were cleared.
        EXPECT_EQ(result, 0);
      }
      break;
    case Op::kOr:
      if constexpr (std::is_integral_v<T>) {
        EXPECT_EQ(result, Number(static_cast<T>(~uint32_t{0})));
      }
      break;
    case Op::kXor: {
      uint32_t all = 0;
      for (uint32_t i = 0; i < n_all; ++i) all ^= i + 5;
      EXPECT_EQ(result, all);
      break;
    }
  }
}

template <typename T, Scope S>
void CheckOrder(const Param& param) {
  switch (param.order) {
    case Order::kRelaxed:
      return Check<T, S, Order::kRelaxed>(param.op);
    case Order::kAcquire:
      return Check<T, S, Order::kAcquire>(param.op);
    case Order::kRelease:
      return Check<T, S, Order::kRelease>(param.op);
    default:
      return Check<T, S, Order::kAcqRel>(param.op);
  }
}

template <typename T>
void CheckScope(const Param& param) {
  switch (param.scope) {
    case Scope::kBlock:
      return CheckOrder<T, Scope::kBlock>(param);
    case Scope::kDevice:
      return CheckOrder<T, Scope::kDevice>(param);
    case Scope::kSystem:
      return CheckOrder<T, Scope::kSystem>(param);
  }
}

class AtomicTest : public testing::TestWithParam<Param> {};

TEST_P(AtomicTest, EndsAtTheExactCount) {
  switch (GetParam().type) {
    case Type::kI32:
      return CheckScope<int32_t>(GetParam());
    case Type::kU32:
      return CheckScope<uint32_t>(GetParam());
    case Type::kI64:
      return CheckScope<int64_t>(GetParam());
    case Type::kU64:
      return CheckScope<uint64_t>(GetParam());
    case Type::kF32:
      return CheckScope<float>(GetParam());
    case Type::kF64:
      return CheckScope<double>(GetParam());
    case Type::kF16:
      return CheckScope<Half>(GetParam());
    case Type::kBf16:
      return CheckScope<Bfloat16>(GetParam());
  }
}

std::vector<Param> AllParams() {
  std::vector<Param> params;
  for (int type = 0; type < 8; ++type) {
    for (int op = 0; op < 9; ++op) {
      const bool narrow = type >= static_cast<int>(Type::kF16);
      const bool floating = type >= static_cast<int>(Type::kF32);
      if (narrow && op != static_cast<int>(Op::kAdd)) continue;
      if (floating && op >= static_cast<int>(Op::kAnd)) continue;
      for (Order order : {Order::kRelaxed, Order::kAcquire, Order::kRelease, Order::kAcqRel}) {
        for (Scope scope : {Scope::kBlock, Scope::kDevice, Scope::kSystem}) {
          params.push_back({static_cast<Op>(op), static_cast<Type>(type), order, scope});
        }
      }
    }
  }
  return params;
}

std::string ParamName(const testing::TestParamInfo<Param>& info) {
  return std::string(kTypeNames[static_cast<int>(info.param.type)]) +
         kOpNames[static_cast<int>(info.param.op)] +
         kOrderNames[static_cast<int>(info.param.order)] +
         kScopeNames[static_cast<int>(info.param.scope)];
}

INSTANTIATE_TEST_SUITE_P(All, AtomicTest, testing::ValuesIn(AllParams()), ParamName);

// Without template arguments: acquire and release, for all ranks.

IRIS_KERNEL void Publish(DeviceContext ctx, uint64_t* data, uint32_t* flag) {
  if (ctx.rank == 0) {
    Store(ctx, 1, data, uint64_t{4711});
    (void)AtomicAdd(ctx, 1, flag, 1u);
  }
}

IRIS_KERNEL void Consume(DeviceContext ctx, const uint64_t* data, uint32_t* flag, uint64_t* seen) {
  if (ctx.rank != 1) return;
  const WaitResult result =
      impl::BoundedWait(ctx, 0, [&] { return AtomicAdd(ctx, 1, flag, 0u) != 0; });
  *seen = result == WaitResult::kOk ? Load(ctx, 1, data) : 0;
}

TEST(AtomicDefaultsTest, ReadModifyWritePublishesPlainData) {
  for (uint32_t i = 0; i < 20; ++i) {
    World(2).Run([](Rank& rank) {
      uint64_t* data = rank.New<uint64_t>(1);
      uint32_t* flag = rank.New<uint32_t>(1);
      uint64_t* seen = rank.New<uint64_t>(1);
      rank.HostBarrier();
      rank.Launch({}, Publish, rank.ctx, data, flag);
      rank.Launch({}, Consume, rank.ctx, static_cast<const uint64_t*>(data), flag, seen);
      rank.Synchronize();
      if (rank.rank() == 1) {
        EXPECT_EQ(rank.Read(seen), 4711u);
      }
    });
  }
}

// Values at the edges.

template <typename T>
IRIS_KERNEL void EdgeOps(DeviceContext ctx, T* x, T* olds) {
  olds[0] = AtomicMin(ctx, 0, x, static_cast<T>(-5));
  olds[1] = AtomicMax(ctx, 0, x, static_cast<T>(-7));
  olds[2] = AtomicAdd(ctx, 0, x, static_cast<T>(2));
  olds[3] = AtomicCompareExchange(ctx, 0, x, static_cast<T>(1), static_cast<T>(9));
  olds[4] = AtomicExchange(ctx, 0, x, static_cast<T>(11));
  olds[5] = AtomicLoad(ctx, 0, x);
  AtomicStore(ctx, 0, x, static_cast<T>(12));
  olds[6] = AtomicSub(ctx, 0, x, static_cast<T>(13));
  olds[7] = AtomicLoad<Scope::kDevice, Order::kRelaxed>(ctx, 0, x);
}

template <typename T>
std::vector<T> Edges() {
  std::vector<T> olds;
  World(1).Run([&](Rank& rank) {
    T* x = rank.New<T>(1);
    T* out = rank.New<T>(8);
    rank.Launch({}, EdgeOps<T>, rank.ctx, x, out);
    rank.Synchronize();
    olds = rank.Read(out, 8);
  });
  return olds;
}

TEST(AtomicValuesTest, SignedMinAndMaxCompareSigned) {
  EXPECT_EQ(Edges<int32_t>(), (std::vector<int32_t>{0, -5, -5, -3, -3, 11, 12, -1}));
  EXPECT_EQ(Edges<int64_t>(), (std::vector<int64_t>{0, -5, -5, -3, -3, 11, 12, -1}));
}

TEST(AtomicValuesTest, UnsignedMinAndMaxCompareUnsignedAndWrap) {
  EXPECT_EQ(Edges<uint32_t>(),
            (std::vector<uint32_t>{0, 0, 0xfffffff9, 0xfffffffb, 0xfffffffb, 11, 12, 0xffffffff}));
  EXPECT_EQ(Edges<uint64_t>(), (std::vector<uint64_t>{0, 0, ~6ull, ~4ull, ~4ull, 11, 12, ~0ull}));
}

TEST(AtomicValuesTest, FloatsCompareByValue) {
  EXPECT_EQ(Edges<float>(), (std::vector<float>{0, -5, -5, -3, -3, 11, 12, -1}));
  EXPECT_EQ(Edges<double>(), (std::vector<double>{0, -5, -5, -3, -3, 11, 12, -1}));
}

// Two neighbours of 16 bits share a word: adding to one must not disturb the other.
template <typename T>
IRIS_KERNEL void AddToNeighbours(DeviceContext ctx, T* x) {
  (void)AtomicAdd(ctx, 0, x + backend::ThreadIndex() % 2, T(1.0f));
}

template <typename T>
void CheckNeighbours() {
  World world(2);
  T* x = nullptr;
  world.Run([&](Rank& rank) {
    T* y = rank.New<T>(2);
    rank.HostBarrier();
    rank.Launch({2, 32}, AddToNeighbours<T>, rank.ctx, y);
    rank.Synchronize();
    if (rank.rank() == 0) x = y;
  });
  for (const T& sum : world.rank(0).Read(x, 2)) EXPECT_EQ(static_cast<float>(sum), 64.0f);
}

TEST(AtomicValuesTest, HalfNeighboursDoNotDisturbEachOther) { CheckNeighbours<Half>(); }
TEST(AtomicValuesTest, Bfloat16NeighboursDoNotDisturbEachOther) { CheckNeighbours<Bfloat16>(); }

}  // namespace
}  // namespace iris::conformance
