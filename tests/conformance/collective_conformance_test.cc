// Collectives: every type and operation against a reference on the host, every shape and placement,
// long runs, teams, failures.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/call_record.h"
#include "iris/collective/collective.h"
#include "iris/collective/tile.h"
#include "iris/device.h"
#include "iris/rounds/layout.h"
#include "tests/conformance/collective_reference.h"
#include "tests/conformance/values.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

using ccl::Comm;
using ccl::Config;
using ccl::Operation;
using ccl::ReduceOp;
using ccl::Variant;

constexpr uint64_t kMillisecondNs = 1000 * 1000;

// Small, so that modest sizes use several blocks and several chunks.
Config SmallConfig() {
  // As much as fits into one shot, for the tests of kAuto.
  static const ccl::Rule kRules[] = {
      {Operation::kAllReduce, 64, 2048, Variant::kPackets, 0, 0},
      {Operation::kAllReduce, 64, ~0ull, Variant::kTwoShot, 3, 0},
      {Operation::kAllGather, 64, 512, Variant::kPackets, 0, 0},
      {Operation::kBroadcast, 64, 512, Variant::kPackets, 0, 0},
      {Operation::kBroadcast, 64, 4096, Variant::kDirect, 2, 0},
      {Operation::kBroadcast, 64, ~0ull, Variant::kTwoShot, 3, 0},
  };
  Config config;
  config.max_blocks = 3;
  config.block_threads = 32;
  config.packet_bytes = 256;
  config.line_bytes = 8192;
  config.push_bytes = 4096;
  config.stage_bytes = 1024;
  config.check_calls = true;
  config.rules = kRules;
  config.n_rules = sizeof(kRules) / sizeof(kRules[0]);
  return config;
}

// Every type, operation and variant.

using TypeParam = std::tuple<DType, ReduceOp, Variant>;
class ReduceTypeTest : public testing::TestWithParam<TypeParam> {};

template <typename T>
void CheckReduceType(const TypeParam& param) {
  const auto [type, op, variant] = param;
  const DType t = type;
  const ReduceOp o = op;
  const Variant v = variant;
  std::vector<T> gots[3];
  World(3).Run([=, &gots](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    T* in = rank.New<T>(2000);
    T* out = rank.New<T>(2000);
    rank.HostBarrier();
    for (uint64_t count : {1, 2, 7, 64, 1000, 2000}) {
      const std::vector<uint64_t> seeds = {0 + count, 1 + count, 2 + count};
      rank.Write(in, Data<T>(rank.rank() + count, count));
      ExpectOk(ccl::AllReduce(comm, in, out, count, t, o, rank.stream, v));
      const std::vector<T> got = rank.Read(out, count);
      EXPECT_TRUE(Right(v, o, seeds, got)) << "out of place";
      // All members have the same bits, also where the order of a sum is open.
      gots[rank.rank()] = got;
      rank.HostBarrier();
      EXPECT_TRUE(SameBits(got, gots[0]));
      rank.HostBarrier();
      EXPECT_TRUE(SameBits(rank.Read(in, count), Data<T>(rank.rank() + count, count)))
          << "the input has changed";
      ExpectOk(ccl::AllReduce(comm, in, in, count, t, o, rank.stream, v));
      EXPECT_TRUE(Right(v, o, seeds, rank.Read(in, count))) << "in place";
    }
    ExpectOk(ccl::CheckError(comm));
  });
}

TEST_P(ReduceTypeTest, EqualsTheReferenceBitForBit) {
  switch (std::get<0>(GetParam())) {
    case DType::kF32:
      return CheckReduceType<float>(GetParam());
    case DType::kF64:
      return CheckReduceType<double>(GetParam());
    case DType::kF16:
      return CheckReduceType<Half>(GetParam());
    case DType::kBf16:
      return CheckReduceType<Bfloat16>(GetParam());
    case DType::kI32:
      return CheckReduceType<int32_t>(GetParam());
    case DType::kI64:
      return CheckReduceType<int64_t>(GetParam());
    case DType::kU8:
      return CheckReduceType<uint8_t>(GetParam());
    default:
      FAIL() << "a type that reductions do not know";
  }
}

const auto kReduceVariants =
    testing::Values(Variant::kPackets, Variant::kDirect, Variant::kTwoShot, Variant::kTwoPackets,
                    Variant::kTwoPhase, Variant::kRing, Variant::kAtomic, Variant::kSpinlock,
                    Variant::kLines, Variant::kTwoLines, Variant::kPush);
// Those that sum in the order of the members.
const auto kOrderedVariants = testing::Values(
    Variant::kPackets, Variant::kDirect, Variant::kTwoShot, Variant::kTwoPackets,
    Variant::kTwoPhase, Variant::kSpinlock, Variant::kLines, Variant::kTwoLines, Variant::kPush);
const char* const kVariantNames[] = {"Auto",       "Packets",  "Direct",     "TwoShot", "",
                                     "TwoPackets", "TwoPhase", "CopyEngine", "Ring",    "Atomic",
                                     "Spinlock",   "Lines",    "TwoLines",   "Push"};

std::string ReduceTypeName(const testing::TestParamInfo<TypeParam>& info) {
  const char* const types[] = {"None", "F32", "F64", "F16", "Bf16", "I32", "I64", "U8"};
  const char* const ops[] = {"Sum", "Prod", "Min", "Max", "Avg"};
  return std::string(types[static_cast<int>(std::get<0>(info.param))]) +
         ops[static_cast<int>(std::get<1>(info.param))] +
         kVariantNames[static_cast<int>(std::get<2>(info.param))];
}

// The other types: collective_matrix_test.cc. Races do not depend on all operators.
#if defined(IRIS_TSAN)
const auto kReduceOps = testing::Values(ReduceOp::kSum, ReduceOp::kMax);
const auto kRepeatRanks = testing::Values(3);
#else
const auto kReduceOps = testing::Values(ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin,
                                        ReduceOp::kMax, ReduceOp::kAvg);
const auto kRepeatRanks = testing::Values(2, 4);
#endif
const auto kTypes = testing::Values(DType::kF32, DType::kBf16, DType::kI64);

INSTANTIATE_TEST_SUITE_P(AllReduce, ReduceTypeTest,
                         testing::Combine(kTypes, kReduceOps, kReduceVariants), ReduceTypeName);

// Exact values that a reader can check.

template <typename T>
void CheckExact(DType type, T one, const std::vector<T>& sum_prod_min_max) {
  World(4).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    T* in = rank.New<T>(3);
    T* out = rank.New<T>(3);
    // Ranks have 1, 2, 3, 4.
    T mine = one;
    for (uint32_t k = 0; k < rank.rank(); ++k) mine = static_cast<T>(mine + one);
    rank.Write(in, std::vector<T>(3, mine));
    rank.HostBarrier();
    for (int op = 0; op < 4; ++op) {
      ExpectOk(ccl::AllReduce(comm, in, out, 3, type, static_cast<ReduceOp>(op), rank.stream));
      EXPECT_TRUE(SameBits(rank.Read(out, 3), std::vector<T>(3, sum_prod_min_max[op]))) << op;
    }
  });
}

TEST(AllReduceExactTest, F32) { CheckExact<float>(DType::kF32, 1, {10, 24, 1, 4}); }
TEST(AllReduceExactTest, F64) { CheckExact<double>(DType::kF64, 1, {10, 24, 1, 4}); }
TEST(AllReduceExactTest, I32) { CheckExact<int32_t>(DType::kI32, 1, {10, 24, 1, 4}); }
TEST(AllReduceExactTest, I64) { CheckExact<int64_t>(DType::kI64, 1, {10, 24, 1, 4}); }
TEST(AllReduceExactTest, F16) {
  CheckExact<Half>(DType::kF16, Half(1), {Half(10), Half(24), Half(1), Half(4)});
}
TEST(AllReduceExactTest, Bf16) {
  CheckExact<Bfloat16>(DType::kBf16, Bfloat16(1),
                       {Bfloat16(10), Bfloat16(24), Bfloat16(1), Bfloat16(4)});
}

class VariantTest : public testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(AllReduce, VariantTest, kReduceVariants,
                         [](const testing::TestParamInfo<Variant>& v) {
                           return kVariantNames[static_cast<int>(v.param)];
                         });

class OrderedVariantTest : public testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(AllReduce, OrderedVariantTest, kOrderedVariants,
                         [](const testing::TestParamInfo<Variant>& v) {
                           return kVariantNames[static_cast<int>(v.param)];
                         });

TEST_P(OrderedVariantTest, SumsGoInTheOrderOfTheMembers) {
  // (1e8 + -1e8) + 1 is 1; any other order gives 0 in fp32. So it is 1 for members 0, 1, 2 and 0
  // for 0, 2, 1.
  World(3).Run([](Rank& rank) {
    const Comm straight = rank.NewComm(rank.NewTeam({0, 1, 2}), SmallConfig());
    const Comm crossed = rank.NewComm(rank.NewTeam({0, 2, 1}), SmallConfig());
    float* in = rank.New<float>(5);
    float* out = rank.New<float>(5);
    const float values[] = {1e8f, -1e8f, 1.0f};
    rank.Write(in, std::vector<float>(5, values[rank.rank()]));
    rank.HostBarrier();
    ExpectOk(
        ccl::AllReduce(straight, in, out, 5, DType::kF32, ReduceOp::kSum, rank.stream, GetParam()));
    EXPECT_EQ(rank.Read(out, 5), std::vector<float>(5, 1.0f));
    ExpectOk(
        ccl::AllReduce(crossed, in, out, 5, DType::kF32, ReduceOp::kSum, rank.stream, GetParam()));
    EXPECT_EQ(rank.Read(out, 5), std::vector<float>(5, 0.0f));
  });
}

TEST_P(OrderedVariantTest, NarrowFloatsAreSummedInFp32) {
  // 256 + 1 + 1 in bf16 step by step stays 256; in fp32 it is 258.
  World(3).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    Bfloat16* x = rank.New<Bfloat16>(9);
    rank.Write(x, std::vector<Bfloat16>(9, Bfloat16(rank.rank() == 0 ? 256.0f : 1.0f)));
    rank.HostBarrier();
    ExpectOk(ccl::AllReduce(comm, x, x, 9, DType::kBf16, ReduceOp::kSum, rank.stream, GetParam()));
    for (Bfloat16 value : rank.Read(x, 9)) EXPECT_EQ(static_cast<float>(value), 258.0f);
  });
}

TEST_P(VariantTest, MinAndMaxKeepNan) {
  World(3).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    float* in = rank.New<float>(3);
    float* out = rank.New<float>(3);
    std::vector<float> values(3, static_cast<float>(rank.rank()));
    values[rank.rank()] =
        std::numeric_limits<float>::quiet_NaN();  // a NaN of another member in each element
    rank.Write(in, values);
    rank.HostBarrier();
    for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      ExpectOk(ccl::AllReduce(comm, in, out, 3, DType::kF32, op, rank.stream, GetParam()));
      for (float value : rank.Read(out, 3)) EXPECT_TRUE(std::isnan(value));
    }
  });
}

TEST_P(VariantTest, IntegersWrap) {
  World(2).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    int32_t* x = rank.New<int32_t>(2);
    rank.Write(x, std::vector<int32_t>{std::numeric_limits<int32_t>::max(),
                                       std::numeric_limits<int32_t>::min()});
    rank.HostBarrier();
    ExpectOk(ccl::AllReduce(comm, x, x, 2, DType::kI32, ReduceOp::kSum, rank.stream, GetParam()));
    EXPECT_EQ(rank.Read(x, 2), (std::vector<int32_t>{-2, 0}));
  });
}

// Every shape and placement.

enum class Place {
  kInPlace,
  kHeap,
  kHeapApart,
  kOutside,
  kOutsideInPlace,
  kInOutside,
  kOutOutside,
  kMixed,
  kUnaligned
};
const char* const kPlaceNames[] = {"InPlace",    "Heap",           "HeapAtOtherOffsets",
                                   "Outside",    "OutsideInPlace", "InOutside",
                                   "OutOutside", "Mixed",          "Unaligned"};

// Buffers of one rank for one case: `in_count` and `out_count` elements with a guard before and
// behind.
template <typename T>
struct Buffers {
  static constexpr uint64_t kGuard = 8;

  Buffers(Rank& rank, Place place, uint64_t in_count, uint64_t out_count, uint64_t in_place_at)
      : in_count_(in_count), out_count_(out_count) {
    const uint64_t room = std::max(in_count, out_count) + 2 * kGuard + 64;
    T* heap_a = rank.New<T>(room);
    T* heap_b = rank.New<T>(room);
    outside_a_ = static_cast<T*>(backend::MallocDevice(room * sizeof(T)));
    outside_b_ = static_cast<T*>(backend::MallocDevice(room * sizeof(T)));
    bool in_heap = true;
    bool out_heap = true;
    bool in_place = false;
    uint64_t shift = 0;
    switch (place) {
      case Place::kInPlace:
        in_place = true;
        break;
      case Place::kHeap:
        break;
      case Place::kHeapApart:  // in the heap, but not at the same offset on each
        shift = 4 * rank.rank();
        break;
      case Place::kOutside:
        in_heap = out_heap = false;
        break;
      case Place::kOutsideInPlace:
        in_heap = out_heap = false;
        in_place = true;
        break;
      case Place::kInOutside:
        in_heap = false;
        break;
      case Place::kOutOutside:
        out_heap = false;
        break;
      case Place::kMixed:  // each member otherwise
        in_heap = rank.rank() % 2 == 0;
        out_heap = rank.rank() % 3 == 0;
        break;
      case Place::kUnaligned:  // to 16 bytes; elements always are
        shift = 1 + rank.rank() % 2;
        break;
    }
    out_ = (out_heap ? heap_a : outside_a_) + kGuard + shift;
    in_ = in_place ? out_ + in_place_at : (in_heap ? heap_b : outside_b_) + kGuard + shift;
  }
  ~Buffers() {
    backend::FreeDevice(outside_a_);
    backend::FreeDevice(outside_b_);
  }

  void Fill(Rank& rank, const std::vector<T>& in) {
    rank.Write(out_ - kGuard, std::vector<T>(out_count_ + 2 * kGuard, T(77)));
    if (in_count_ != 0) rank.Write(in_, in);
  }
  void Expect(Rank& rank, const std::vector<T>& expected) {
    const std::vector<T> got = rank.Read(out_ - kGuard, out_count_ + 2 * kGuard);
    EXPECT_TRUE(SameBits(std::vector<T>(got.begin() + kGuard, got.end() - kGuard), expected));
    for (uint64_t k = 0; k < kGuard; ++k) {
      EXPECT_EQ(got[k], T(77)) << "written before the output";
      EXPECT_EQ(got[got.size() - 1 - k], T(77)) << "written behind the output";
    }
  }

  T* in_;
  T* out_;

 private:
  uint64_t in_count_;
  uint64_t out_count_;
  T* outside_a_;
  T* outside_b_;
};

// Elements: nothing, one, few, not divisible, several blocks, several chunks of the workspace.
constexpr uint64_t kCounts[] = {0, 1, 3, 63, 300, 1021, 4099};

using ShapeParam = std::tuple<uint32_t, Place, Variant>;
class AllReduceShapeTest : public testing::TestWithParam<ShapeParam> {};

TEST_P(AllReduceShapeTest, EqualsTheReference) {
  const Place place = std::get<1>(GetParam());
  const Variant variant = std::get<2>(GetParam());
  World(std::get<0>(GetParam())).Run([=](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    for (uint64_t count : kCounts) {
      Buffers<float> buffers(rank, place, count, count, 0);
      std::vector<uint64_t> seeds;
      for (uint64_t m = 0; m < rank.n(); ++m) seeds.push_back(m + count);
      buffers.Fill(rank, Data<float>(rank.rank() + count, count));
      rank.HostBarrier();
      // Atomics add in any order: what they make exactly.
      const ReduceOp op = variant == Variant::kAtomic ? ReduceOp::kMax : ReduceOp::kSum;
      ExpectOk(ccl::AllReduce(comm, buffers.in_, buffers.out_, count, DType::kF32, op, rank.stream,
                              variant));
      rank.Synchronize();
      buffers.Expect(rank, ExpectedOf<float>(variant, op, seeds, count));
      ExpectOk(ccl::CheckError(comm));
      rank.HostBarrier();
    }
  });
}

std::string ShapeName(const testing::TestParamInfo<ShapeParam>& info) {
  return std::to_string(std::get<0>(info.param)) + "Ranks" +
         kPlaceNames[static_cast<int>(std::get<1>(info.param))] +
         kVariantNames[static_cast<int>(std::get<2>(info.param))];
}

const auto kAllPlaces = testing::Values(Place::kInPlace, Place::kHeap, Place::kHeapApart,
                                        Place::kOutside, Place::kOutsideInPlace, Place::kInOutside,
                                        Place::kOutOutside, Place::kMixed, Place::kUnaligned);
// With ThreadSanitizer eight ranks of fibers take minutes, and show no more than five do.
#if defined(IRIS_TSAN)
const auto kAllRanks = testing::Values(1, 3, 5);
const auto kRowsPlaces = testing::Values(Place::kInPlace, Place::kHeap, Place::kMixed);
#else
const auto kAllRanks = testing::Values(1, 2, 3, 4, 5, 8);
const auto kRowsPlaces = kAllPlaces;
#endif

INSTANTIATE_TEST_SUITE_P(Shapes, AllReduceShapeTest,
                         testing::Combine(kAllRanks, kAllPlaces, kReduceVariants), ShapeName);

// Where every member has its buffers at the same offset.
INSTANTIATE_TEST_SUITE_P(CopyEngine, AllReduceShapeTest,
                         testing::Combine(kAllRanks, testing::Values(Place::kInPlace, Place::kHeap),
                                          testing::Values(Variant::kCopyEngine)),
                         ShapeName);

class AllGatherShapeTest : public testing::TestWithParam<ShapeParam> {};

TEST_P(AllGatherShapeTest, EveryoneHasEveryonesData) {
  const Place place = std::get<1>(GetParam());
  const Variant variant = std::get<2>(GetParam());
  World(std::get<0>(GetParam()), 2 << 20).Run([=](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    for (uint64_t count : kCounts) {
      Buffers<int32_t> buffers(rank, place, count, count * rank.n(), rank.rank() * count);
      buffers.Fill(rank, Data<int32_t>(rank.rank() + count, count));
      rank.HostBarrier();
      ExpectOk(ccl::AllGather(comm, buffers.in_, buffers.out_, count, DType::kI32, rank.stream,
                              variant));
      rank.Synchronize();
      std::vector<int32_t> expected;
      for (uint64_t m = 0; m < rank.n(); ++m) {
        for (int32_t value : Data<int32_t>(m + count, count)) expected.push_back(value);
      }
      buffers.Expect(rank, expected);
      ExpectOk(ccl::CheckError(comm));
      rank.HostBarrier();
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Shapes, AllGatherShapeTest,
                         testing::Combine(kAllRanks, kAllPlaces,
                                          testing::Values(Variant::kPackets, Variant::kDirect)),
                         ShapeName);

INSTANTIATE_TEST_SUITE_P(CopyEngine, AllGatherShapeTest,
                         testing::Combine(kAllRanks, testing::Values(Place::kInPlace, Place::kHeap),
                                          testing::Values(Variant::kCopyEngine)),
                         ShapeName);

class BroadcastShapeTest : public testing::TestWithParam<ShapeParam> {};

TEST_P(BroadcastShapeTest, EveryoneHasTheRootsData) {
  const Place place = std::get<1>(GetParam());
  const Variant variant = std::get<2>(GetParam());
  World(std::get<0>(GetParam())).Run([=](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    uint32_t root = 0;
    for (uint64_t count : kCounts) {
      Buffers<Half> buffers(rank, place, count, count, 0);
      buffers.Fill(rank, Data<Half>(rank.rank() + count, count));
      rank.HostBarrier();
      const void* in = rank.rank() == root || place == Place::kInPlace ? buffers.in_ : nullptr;
      ExpectOk(
          ccl::Broadcast(comm, in, buffers.out_, count, DType::kF16, root, rank.stream, variant));
      rank.Synchronize();
      buffers.Expect(rank, Data<Half>(root + count, count));
      ExpectOk(ccl::CheckError(comm));
      rank.HostBarrier();
      root = (root + 1) % rank.n();
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Shapes, BroadcastShapeTest,
                         testing::Combine(kAllRanks, kAllPlaces,
                                          testing::Values(Variant::kPackets, Variant::kDirect,
                                                          Variant::kTwoShot)),
                         ShapeName);

// Reductions to one member or by rows, and movements of rows.

using RowsParam = std::tuple<Operation, uint32_t, Place, Variant>;
class RowsShapeTest : public testing::TestWithParam<RowsParam> {};

TEST_P(RowsShapeTest, EqualsTheReference) {
  const Operation operation = std::get<0>(GetParam());
  const Variant variant = std::get<3>(GetParam());
  Place place = std::get<2>(GetParam());
  if (operation == Operation::kAllToAll) {  // is never in place
    if (place == Place::kInPlace) place = Place::kHeap;
    if (place == Place::kOutsideInPlace) place = Place::kOutside;
  }
  World(std::get<1>(GetParam()), 4 << 20).Run([=](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    const uint64_t n = rank.n();
    const uint64_t me = rank.rank();
    uint32_t root = 0;
    for (uint64_t count : {1, 3, 63, 300, 1021}) {
      const bool is_root = me == root;
      const auto value = [&](uint64_t m, uint64_t i) { return ValueOf<float>(m + count, i); };
      // Rows that this rank has of in and out, and where in is in place.
      uint64_t in_rows = 1;
      uint64_t out_rows = 1;
      uint64_t in_place_at = 0;
      switch (operation) {
        case Operation::kReduceScatter:
          in_rows = n;
          break;
        case Operation::kAllToAll:
          in_rows = out_rows = n;
          break;
        case Operation::kGather:
          out_rows = is_root ? n : 0;
          in_place_at = is_root ? me * count : 0;
          break;
        case Operation::kScatter:
          in_rows = is_root ? n : 0;
          break;
        case Operation::kReduce:
          out_rows = is_root ? 1 : 0;
          break;
        default:
          FAIL() << "no such case";
      }
      const bool in_place = place == Place::kInPlace || place == Place::kOutsideInPlace;
      Place mine = place;
      // What is smaller lies inside of what is larger: in place means the other way round here.
      if (in_place && (operation == Operation::kReduceScatter || operation == Operation::kScatter ||
                       out_rows == 0)) {
        mine = place == Place::kInPlace ? Place::kHeap : Place::kOutside;
      }
      Buffers<float> buffers(rank, mine, in_rows * count, out_rows * count, in_place_at);
      std::vector<float> in(in_rows * count);
      for (uint64_t i = 0; i < in.size(); ++i) in[i] = value(me, i);
      buffers.Fill(rank, in);
      float* out = buffers.out_;
      if (in_place && operation == Operation::kReduceScatter) out = buffers.in_ + me * count;
      if (in_place && operation == Operation::kScatter && is_root) out = buffers.in_ + me * count;
      const float* from = in_rows == 0 ? nullptr : buffers.in_;
      float* to = out_rows == 0 ? nullptr : out;
      rank.HostBarrier();
      std::vector<float> expected(out_rows * count);
      const auto sum = [&](uint64_t i) {
        std::vector<float> values;
        for (uint64_t m = 0; m < n; ++m) values.push_back(value(m, i));
        return Reference(ReduceOp::kSum, values);
      };
      Result result;
      switch (operation) {
        case Operation::kReduceScatter:
          result = ccl::ReduceScatter(comm, from, to, count, DType::kF32, ReduceOp::kSum,
                                      rank.stream, variant);
          for (uint64_t i = 0; i < count; ++i) expected[i] = sum(me * count + i);
          break;
        case Operation::kReduce:
          result = ccl::Reduce(comm, from, to, count, DType::kF32, ReduceOp::kSum, root,
                               rank.stream, variant);
          for (uint64_t i = 0; i < expected.size(); ++i) expected[i] = sum(i);
          break;
        case Operation::kAllToAll:
          result = ccl::AllToAll(comm, from, to, count, DType::kF32, rank.stream, variant);
          for (uint64_t i = 0; i < expected.size(); ++i) {
            expected[i] = value(i / count, me * count + i % count);
          }
          break;
        case Operation::kGather:
          result = ccl::Gather(comm, from, to, count, DType::kF32, root, rank.stream, variant);
          for (uint64_t i = 0; i < expected.size(); ++i) expected[i] = value(i / count, i % count);
          break;
        default:
          result = ccl::Scatter(comm, from, to, count, DType::kF32, root, rank.stream, variant);
          for (uint64_t i = 0; i < count; ++i) expected[i] = value(root, me * count + i);
          break;
      }
      ExpectOk(result);
      rank.Synchronize();
      if (out == buffers.out_) {
        buffers.Expect(rank, expected);
      } else {
        EXPECT_TRUE(SameBits(rank.Read(out, count), expected));
      }
      ExpectOk(ccl::CheckError(comm));
      rank.HostBarrier();
      root = (root + 1) % rank.n();
    }
  });
}

std::string RowsName(const testing::TestParamInfo<RowsParam>& info) {
  std::string name = ccl::OperationName(std::get<0>(info.param));
  name.erase(std::remove(name.begin(), name.end(), '_'), name.end());
  return name + std::to_string(std::get<1>(info.param)) + "Ranks" +
         kPlaceNames[static_cast<int>(std::get<2>(info.param))] +
         kVariantNames[static_cast<int>(std::get<3>(info.param))];
}

INSTANTIATE_TEST_SUITE_P(
    Reduce, RowsShapeTest,
    testing::Combine(testing::Values(Operation::kReduceScatter, Operation::kReduce), kAllRanks,
                     kRowsPlaces,
                     testing::Values(Variant::kPackets, Variant::kDirect, Variant::kPush)),
    RowsName);
INSTANTIATE_TEST_SUITE_P(
    Move, RowsShapeTest,
    testing::Combine(testing::Values(Operation::kAllToAll, Operation::kGather, Operation::kScatter),
                     kAllRanks, kRowsPlaces, testing::Values(Variant::kPackets, Variant::kDirect)),
    RowsName);

INSTANTIATE_TEST_SUITE_P(CopyEngine, RowsShapeTest,
                         testing::Combine(testing::Values(Operation::kAllToAll), kAllRanks,
                                          testing::Values(Place::kHeap),
                                          testing::Values(Variant::kCopyEngine)),
                         RowsName);

class VectorTest : public testing::TestWithParam<std::tuple<uint32_t, bool>> {};
INSTANTIATE_TEST_SUITE_P(AllToAllV, VectorTest,
                         testing::Combine(testing::Values(1, 2, 3, 5), testing::Bool()));

TEST_P(VectorTest, EveryoneGetsWhatWasSentToIt) {
  const bool in_heap = std::get<1>(GetParam());
  World(std::get<0>(GetParam()), 4 << 20).Run([=](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    const uint64_t n = rank.n();
    const uint64_t me = rank.rank();
    constexpr uint64_t kRoom = 20000;
    int32_t* heap = rank.New<int32_t>(2 * kRoom);
    int32_t* outside = static_cast<int32_t*>(backend::MallocDevice(2 * kRoom * sizeof(int32_t)));
    // Without the heap on some members only.
    int32_t* base = in_heap || me == 0 ? heap : outside;
    for (uint64_t round = 0; round < 6; ++round) {
      // What a sends b: nothing now and then, up to more than the stages hold.
      const auto sent = [&](uint64_t a, uint64_t b) {
        return round == 0 ? 0
                          : Hash(round * 100 + a * 10 + b) % (round * 700) / (a + b == 3 ? 700 : 1);
      };
      std::vector<uint64_t> to_counts(n), to_offsets(n), from_counts(n), from_offsets(n);
      uint64_t in_end = 3;
      uint64_t out_end = 5;
      for (uint64_t m = 0; m < n; ++m) {
        to_counts[m] = sent(me, m);
        to_offsets[m] = in_end;
        in_end += to_counts[m] + 1;
        from_counts[n - 1 - m] = sent(n - 1 - m, me);  // backwards, so that offsets do not rise
        from_offsets[n - 1 - m] = out_end;
        out_end += from_counts[n - 1 - m] + 2;
      }
      ASSERT_LT(std::max(in_end, out_end), kRoom);
      std::vector<int32_t> in(in_end, -1);
      std::vector<int32_t> expected(out_end, -7);
      const auto value = [&](uint64_t a, uint64_t b, uint64_t i) {
        return static_cast<int32_t>(Hash(a * 77 + b * 7 + round) + i);
      };
      for (uint64_t m = 0; m < n; ++m) {
        for (uint64_t i = 0; i < to_counts[m]; ++i) in[to_offsets[m] + i] = value(me, m, i);
        for (uint64_t i = 0; i < from_counts[m]; ++i) {
          expected[from_offsets[m] + i] = value(m, me, i);
        }
      }
      rank.Write(base, in);
      rank.Write(base + kRoom, std::vector<int32_t>(out_end, -7));
      rank.HostBarrier();
      ExpectOk(ccl::AllToAllV(comm, base, {to_counts.data(), to_offsets.data()}, base + kRoom,
                              {from_counts.data(), from_offsets.data()}, DType::kI32, rank.stream));
      rank.Synchronize();
      ExpectOk(ccl::CheckError(comm));
      EXPECT_TRUE(SameBits(rank.Read(base + kRoom, out_end), expected)) << "round " << round;
      rank.HostBarrier();
    }
    backend::FreeDevice(outside);
  });
}

class SendTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(OutsideTheHeap, SendTest, testing::Bool());

TEST_P(SendTest, ARingOfMessages) {
  const bool outside = GetParam();
  World(4, 2 << 20).Run([=](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    constexpr uint64_t kRoom = 10000;
    float* heap = rank.New<float>(2 * kRoom);
    float* memory = outside ? static_cast<float*>(backend::MallocDevice(2 * kRoom * 4)) : heap;
    rank.HostBarrier();
    for (uint64_t count : {1, 5, 1000, 9999}) {
      rank.Write(memory, Data<float>(rank.rank() + count, count));
      const uint32_t next = (rank.rank() + 1) % 4;
      const uint32_t previous = (rank.rank() + 3) % 4;
      // Neighbours in turn, so that nobody waits for who waits for it.
      for (uint32_t turn = 0; turn < 2; ++turn) {
        if (rank.rank() % 2 == turn) {
          ExpectOk(ccl::Send(comm, memory, count, DType::kF32, next, rank.stream));
        } else {
          ExpectOk(ccl::Recv(comm, memory + kRoom, count, DType::kF32, previous, rank.stream));
        }
      }
      EXPECT_TRUE(SameBits(rank.Read(memory + kRoom, count), Data<float>(previous + count, count)));
      ExpectOk(ccl::CheckError(comm));
    }
    if (outside) backend::FreeDevice(memory);
  });
}

// Moving every type.

class MoveTypeTest : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, MoveTypeTest,
                         testing::Values(DType::kF32, DType::kF64, DType::kF16, DType::kBf16,
                                         DType::kI32, DType::kI64));

TEST_P(MoveTypeTest, GatherAndBroadcastKeepEveryBit) {
  World(3).Run([](Rank& rank) {
    const uint64_t bytes = DTypeBytes(GetParam()) * 37;
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    uint8_t* in = rank.New<uint8_t>(bytes);
    uint8_t* out = rank.New<uint8_t>(bytes * 3);
    rank.Write(in, Data<uint8_t>(rank.rank(), bytes));  // NaNs with payloads among them
    rank.HostBarrier();
    ExpectOk(ccl::AllGather(comm, in, out, 37, GetParam(), rank.stream));
    std::vector<uint8_t> all;
    for (uint64_t m = 0; m < 3; ++m) {
      for (uint8_t value : Data<uint8_t>(m, bytes)) all.push_back(value);
    }
    EXPECT_EQ(rank.Read(out, bytes * 3), all);
    ExpectOk(ccl::Broadcast(comm, in, out, 37, GetParam(), 2, rank.stream));
    EXPECT_EQ(rank.Read(out, bytes), Data<uint8_t>(2, bytes));
  });
}

// Larger than the workspace, with the default configuration.

TEST(LargeTest, AllReduceOfMoreThanTheWorkspaceFromOutsideTheHeap) {
  constexpr uint64_t kCount = 700 * 1000 + 3;
  World(2, (8 << 20) + ccl::WorkspaceBytes(2)).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    // Larger than the stages of all blocks on emu; elsewhere it is outside the heap all the same.
    ASSERT_NE(comm.workspace_bytes, 0u);
    float* x = static_cast<float*>(backend::MallocDevice(kCount * 4));
    std::vector<float> values(kCount);
    for (uint64_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1000 + rank.rank());
    rank.Write(x, values);
    rank.HostBarrier();
    ExpectOk(ccl::AllReduce(comm, x, x, kCount, DType::kF32, ReduceOp::kSum, rank.stream));
    const std::vector<float> got = rank.Read(x, kCount);
    for (uint64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(got[i], static_cast<float>(2 * (i % 1000) + 1)) << i;
    }
    backend::FreeDevice(x);
  });
}

// More bytes than 32 bits count: 4 GiB and three bytes, in place.
constexpr uint64_t kHugeCount = (uint64_t{4} << 30) + 3;

IRIS_HOST_DEVICE inline uint8_t HugeValue(uint64_t i, uint32_t rank) {
  return static_cast<uint8_t>((i * 2654435761u >> 7) + (i >> 32) * 101 + rank * 37);
}

IRIS_KERNEL void FillHuge(uint8_t* x, uint64_t count, uint32_t rank) {
  const uint64_t step = uint64_t{backend::GridSize()} * backend::BlockSize();
  for (uint64_t i = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
       i < count; i += step) {
    x[i] = HugeValue(i, rank);
  }
}

IRIS_KERNEL void CheckHuge(const uint8_t* x, uint64_t count, uint32_t n, uint64_t* bad) {
  const uint64_t step = uint64_t{backend::GridSize()} * backend::BlockSize();
  uint64_t wrong = 0;
  for (uint64_t i = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
       i < count; i += step) {
    uint8_t sum = 0;
    for (uint32_t m = 0; m < n; ++m) sum = static_cast<uint8_t>(sum + HugeValue(i, m));
    if (x[i] != sum) ++wrong;
  }
  if (wrong != 0) {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(bad, wrong);
  }
}

TEST(LargeTest, AllReduceOfMoreThan4GiB) {
  if (backend::Traits::kEmulated) {
    GTEST_SKIP() << "takes minutes on emulated devices";
  }
  World(2, kHugeCount + ccl::WorkspaceBytes(2) + (8 << 20)).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world);
    uint8_t* x = rank.New<uint8_t>(kHugeCount);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    for (Variant variant : {Variant::kAuto, Variant::kTwoShot, Variant::kRing}) {
      rank.Launch({128, 512}, FillHuge, x, kHugeCount, rank.rank());
      ExpectOk(
          ccl::AllReduce(comm, x, x, kHugeCount, DType::kU8, ReduceOp::kSum, rank.stream, variant));
      rank.Launch({128, 512}, CheckHuge, static_cast<const uint8_t*>(x), kHugeCount, rank.n(), bad);
      EXPECT_EQ(rank.Read(bad), 0u);
    }
    ExpectOk(ccl::CheckError(comm));
  });
}

// Long runs: nothing waits on the host between the operations.

IRIS_KERNEL void FillRound(float* x, uint64_t count, uint32_t rank, uint32_t round) {
  for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
    x[i] = static_cast<float>((i * 7 + round * 13 + rank * 5) % 997);
  }
}

// Waits for a time that differs by rank and round, so that ranks come late in turn.
IRIS_KERNEL void Dawdle(uint32_t rank, uint32_t round) {
  uint64_t h = rank * 7919 + round * 104729 + 1;
  h ^= h << 13;
  h ^= h >> 7;
  const uint64_t wait_ns = h % 3 == 0 ? h % 400000 : 0;
  const uint64_t start = backend::ClockNanoseconds();
  while (backend::ClockNanoseconds() - start < wait_ns) backend::Pause();
}

// What all_reduce, all_gather and broadcast must have made of FillRound.
IRIS_KERNEL void CheckRound(const float* sum, const float* gathered, const float* root,
                            uint64_t count, uint32_t n, uint32_t round, uint64_t* bad) {
  uint64_t wrong = 0;
  for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
    float total = 0;
    for (uint32_t m = 0; m < n; ++m) {
      const float value = static_cast<float>((i * 7 + round * 13 + m * 5) % 997);
      total += value;
      if (gathered != nullptr && gathered[m * count + i] != value) ++wrong;
      if (root != nullptr && m == round % n && root[i] != value) ++wrong;
    }
    if (sum != nullptr && sum[i] != total) ++wrong;
  }
  if (wrong != 0) {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(bad, wrong);
  }
}

using LongParam = std::tuple<uint32_t, uint64_t, bool>;  // ranks, elements, skewed arrival
class LongRunTest : public testing::TestWithParam<LongParam> {};

TEST_P(LongRunTest, EveryRoundIsRight) {
  const uint64_t count = std::get<1>(GetParam());
  const bool skewed = std::get<2>(GetParam());
  const uint32_t rounds = (skewed ? 100 : 400) / kSlower / (count > 1000 ? 4 : 1);
  World(std::get<0>(GetParam())).Run([=](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    float* x = rank.New<float>(count);
    float* one_shot = rank.New<float>(count);
    float* two_shot = rank.New<float>(count);
    float* gathered = rank.New<float>(count * rank.n());
    float* root = rank.New<float>(count);
    uint64_t* bad = rank.New<uint64_t>(1);
    const float* none = nullptr;
    rank.HostBarrier();
    for (uint32_t round = 0; round < rounds; ++round) {
      // The same buffers every time: what the slow still read must not be overwritten by the fast.
      rank.Launch({1, 32}, FillRound, x, count, rank.rank(), round);
      if (skewed) rank.Launch({}, Dawdle, rank.rank(), round);
      ExpectOk(ccl::AllReduce(comm, x, one_shot, count, DType::kF32, ReduceOp::kSum, rank.stream,
                              Variant::kOneShot));
      ExpectOk(ccl::AllReduce(comm, x, two_shot, count, DType::kF32, ReduceOp::kSum, rank.stream,
                              Variant::kTwoShot));
      ExpectOk(ccl::AllGather(comm, x, gathered, count, DType::kF32, rank.stream));
      ExpectOk(ccl::Broadcast(comm, x, root, count, DType::kF32, round % rank.n(), rank.stream));
      rank.Launch({1, 32}, CheckRound, static_cast<const float*>(one_shot),
                  static_cast<const float*>(gathered), static_cast<const float*>(root), count,
                  rank.n(), round, bad);
      rank.Launch({1, 32}, CheckRound, static_cast<const float*>(two_shot), none, none, count,
                  rank.n(), round, bad);
      if (round % 64 == 63) rank.Synchronize();  // bounds the queue
    }
    rank.Synchronize();
    ExpectOk(ccl::CheckError(comm));
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

std::string LongName(const testing::TestParamInfo<LongParam>& info) {
  return std::to_string(std::get<0>(info.param)) + "Ranks" +
         std::to_string(std::get<1>(info.param)) + "Elements" +
         (std::get<2>(info.param) ? "Skewed" : "");
}
INSTANTIATE_TEST_SUITE_P(Mixed, LongRunTest,
                         testing::Combine(testing::Values(2, 3, 4), testing::Values(5, 200, 3000),
                                          testing::Bool()),
                         LongName);

class RepeatTest : public testing::TestWithParam<std::tuple<uint32_t, Variant>> {};

// In place, over and over, with no other kernel between than the one that makes new data from the
// result.
IRIS_KERNEL void NextData(uint32_t* x, uint64_t count, uint32_t rank, uint32_t round) {
  for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
    x[i] = x[i] * 3 + static_cast<uint32_t>(i) + rank * 1000 + round;
  }
}

TEST_P(RepeatTest, ThousandsOfTimesInPlaceWithChangingData) {
  const Variant variant = std::get<1>(GetParam());
  const uint32_t rounds = 2000 / kSlower;
  constexpr uint64_t kCount = 37;
  World(std::get<0>(GetParam())).Run([=](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    uint32_t* x = rank.New<uint32_t>(kCount);
    rank.HostBarrier();
    for (uint32_t round = 0; round < rounds; ++round) {
      rank.Launch({1, 32}, NextData, x, kCount, rank.rank(), round);
      ExpectOk(
          ccl::AllReduce(comm, x, x, kCount, DType::kI32, ReduceOp::kSum, rank.stream, variant));
      if (round % 128 == 127) rank.Synchronize();
    }
    std::vector<uint32_t> expected(kCount);
    for (uint32_t round = 0; round < rounds; ++round) {
      for (uint64_t i = 0; i < kCount; ++i) {
        uint32_t sum = 0;
        for (uint32_t m = 0; m < rank.n(); ++m) {
          sum += expected[i] * 3 + static_cast<uint32_t>(i) + m * 1000 + round;
        }
        expected[i] = sum;
      }
    }
    EXPECT_EQ(rank.Read(x, kCount), expected);
    ExpectOk(ccl::CheckError(comm));
  });
}
INSTANTIATE_TEST_SUITE_P(AllReduce, RepeatTest, testing::Combine(kRepeatRanks, kReduceVariants));

TEST(AutoTest, PicksBySizeAndBothAreRight) {
  World(3).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    uint32_t* x = rank.New<uint32_t>(1024);
    rank.HostBarrier();
    for (uint64_t count : {511, 512, 513, 1024}) {  // one_shot_max_bytes is 512 elements
      rank.Write(x, std::vector<uint32_t>(count, rank.rank() + 1));
      ExpectOk(ccl::AllReduce(comm, x, x, count, DType::kI32, ReduceOp::kSum, rank.stream));
      EXPECT_EQ(rank.Read(x, count), std::vector<uint32_t>(count, 6));
    }
  });
}

// Random operations.

struct RandomCall {
  Operation operation;
  uint64_t count;
  uint32_t n;
  uint32_t me;
  uint32_t root;
  uint32_t round;
  uint8_t members[8];
};

IRIS_HOST_DEVICE inline uint32_t RandomValue(uint32_t round, uint32_t rank, uint64_t i) {
  uint32_t h = round * 2654435761u + rank * 40503u + static_cast<uint32_t>(i) * 2246822519u;
  h ^= h >> 15;
  h *= 2654435761u;
  return h ^ h >> 13;
}

IRIS_KERNEL void FillRandom(uint32_t* x, uint64_t count, uint32_t rank, uint32_t round) {
  for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
    x[i] = RandomValue(round, rank, i);
  }
}

constexpr uint32_t kCanary = 0xfeedbeef;

IRIS_KERNEL void FillCanary(uint32_t* x, uint64_t count) {
  for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) x[i] = kCanary;
}

// Rows of out that the caller gets.
IRIS_HOST_DEVICE inline uint64_t RandomRows(const RandomCall& call) {
  switch (call.operation) {
    case Operation::kAllGather:
    case Operation::kAllToAll:
      return call.n;
    case Operation::kGather:
      return call.me == call.root ? call.n : 0;
    case Operation::kReduce:
      return call.me == call.root ? 1 : 0;
    default:
      return 1;
  }
}

IRIS_KERNEL void CheckRandom(const uint32_t* out, RandomCall call, uint64_t* bad) {
  const uint64_t end = RandomRows(call) * call.count;
  uint64_t wrong = 0;
  for (uint64_t j = backend::ThreadIndex(); j < end + 4; j += backend::BlockSize()) {
    uint32_t expected = 0;
    const uint64_t row = call.count == 0 ? 0 : j / call.count;
    const uint64_t i = call.count == 0 ? 0 : j % call.count;
    switch (j < end ? call.operation : Operation::kNone) {
      case Operation::kAllReduce:
      case Operation::kReduce:
        for (uint32_t m = 0; m < call.n; ++m) {
          expected += RandomValue(call.round, call.members[m], j);
        }
        break;
      case Operation::kReduceScatter:
        for (uint32_t m = 0; m < call.n; ++m) {
          expected += RandomValue(call.round, call.members[m], call.me * call.count + j);
        }
        break;
      case Operation::kAllGather:
      case Operation::kGather:
        expected = RandomValue(call.round, call.members[row], i);
        break;
      case Operation::kAllToAll:
        expected = RandomValue(call.round, call.members[row], call.me * call.count + i);
        break;
      case Operation::kBroadcast:
        expected = RandomValue(call.round, call.members[call.root], j);
        break;
      case Operation::kScatter:
        expected = RandomValue(call.round, call.members[call.root], call.me * call.count + j);
        break;
      default:
        expected = kCanary;
        break;
    }
    if (out[j] != expected) ++wrong;
  }
  if (wrong != 0) {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(bad, wrong);
  }
}

Result StartRandom(const Comm& comm, const RandomCall& call, uint32_t* in, uint32_t* out,
                   Variant variant, backend::Stream& stream) {
  constexpr DType kType = DType::kI32;
  switch (call.operation) {
    case Operation::kAllReduce:
      return ccl::AllReduce(comm, in, out, call.count, kType, ReduceOp::kSum, stream, variant);
    case Operation::kReduce:
      return ccl::Reduce(comm, in, out, call.count, kType, ReduceOp::kSum, call.root, stream,
                         variant);
    case Operation::kReduceScatter:
      return ccl::ReduceScatter(comm, in, out, call.count, kType, ReduceOp::kSum, stream, variant);
    case Operation::kAllGather:
      return ccl::AllGather(comm, in, out, call.count, kType, stream, variant);
    case Operation::kGather:
      return ccl::Gather(comm, in, out, call.count, kType, call.root, stream, variant);
    case Operation::kAllToAll:
      return ccl::AllToAll(comm, in, out, call.count, kType, stream, variant);
    case Operation::kBroadcast:
      return ccl::Broadcast(comm, in, out, call.count, kType, call.root, stream, variant);
    default:
      return ccl::Scatter(comm, in, out, call.count, kType, call.root, stream, variant);
  }
}

TEST(RandomTest, TenThousandOperationsOnThreeTeamsWithLateRanks) {
  const uint32_t rounds = 10000 / kSlower;
  World(4, 4 << 20).Run([=](Rank& rank) {
    const std::vector<std::vector<uint32_t>> sets = {{0, 1, 2, 3}, {3, 0, 2}, {1, 3}};
    std::vector<Comm> comms;
    for (const auto& set : sets) comms.push_back(rank.NewComm(rank.NewTeam(set), SmallConfig()));
    constexpr uint64_t kRoom = 4 * 700 + 8;
    uint32_t* in = rank.New<uint32_t>(kRoom);
    uint32_t* out = rank.New<uint32_t>(kRoom);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    constexpr Operation kOperations[] = {Operation::kAllReduce,     Operation::kReduce,
                                         Operation::kReduceScatter, Operation::kAllGather,
                                         Operation::kGather,        Operation::kAllToAll,
                                         Operation::kBroadcast,     Operation::kScatter};
    for (uint32_t round = 0; round < rounds; ++round) {
      const uint64_t h = Hash(round + 12345);
      const size_t k = h % sets.size();
      const Comm& comm = comms[k];
      if (comm.team.size == 0) continue;  // not a member
      RandomCall call = {};
      call.operation = kOperations[h / 3 % 8];
      const uint64_t size = h / 24 % 8;
      call.count = size < 6 ? h / 192 % 40 : h / 192 % 700;
      call.n = comm.team.size;
      call.me = comm.team.index;
      call.root = static_cast<uint32_t>(h / 1000 % call.n);
      call.round = round;
      for (uint32_t m = 0; m < call.n; ++m) call.members[m] = comm.team.members[m];
      const uint32_t number = static_cast<uint32_t>(h / 7777 % ccl::kVariantCount);
      const Variant variant =
          ccl::IsVariant(number) ? static_cast<Variant>(number) : Variant::kAuto;
      const uint64_t in_count = call.n * call.count;
      rank.Launch({1, 32}, FillRandom, in, in_count, rank.rank(), round);
      rank.Launch({1, 32}, FillCanary, out, RandomRows(call) * call.count + 4);
      if (round % 16 == 0) rank.Launch({}, Dawdle, rank.rank(), round);
      ExpectOk(StartRandom(comm, call, in, out, variant, rank.stream));
      if (call.count != 0) {
        rank.Launch({1, 32}, CheckRandom, static_cast<const uint32_t*>(out), call, bad);
      }
      if (round % 128 == 127) {
        rank.Synchronize();
        ASSERT_EQ(rank.Read(bad), 0u) << "by round " << round;
      }
    }
    rank.Synchronize();
    for (const Comm& comm : comms) {
      if (comm.team.size != 0) ExpectOk(ccl::CheckError(comm));
    }
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

// A reduce_scatter by kPush has no last round, and puts its first chunk before anything is waited
// for: late ranks still read what the one before has put. Calls of one chunk and of several.
TEST(PushTest, ReduceScattersFollowEachOtherWithLateRanks) {
  World(4).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    constexpr uint64_t kRowCounts[] = {20, 900, 130, 700, 1};
    constexpr uint64_t kRoom = 4 * 900;
    constexpr uint32_t kBuffers = 4;
    uint32_t* in[kBuffers];
    uint32_t* out[kBuffers];
    for (uint32_t k = 0; k < kBuffers; ++k) {
      in[k] = rank.New<uint32_t>(kRoom);
      out[k] = rank.New<uint32_t>(kRoom);
    }
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    for (uint32_t round = 0; round < 400 / kSlower; ++round) {
      RandomCall calls[kBuffers];
      for (uint32_t k = 0; k < kBuffers; ++k) {
        RandomCall& call = calls[k] = {};
        call.operation = Operation::kReduceScatter;
        call.count = kRowCounts[(round + k) % std::size(kRowCounts)];
        call.n = rank.n();
        call.me = rank.rank();
        call.round = kBuffers * round + k;
        for (uint32_t m = 0; m < call.n; ++m) call.members[m] = static_cast<uint8_t>(m);
        rank.Launch({1, 32}, FillRandom, in[k], call.n * call.count, rank.rank(), call.round);
        rank.Launch({1, 32}, FillCanary, out[k], call.count + 4);
      }
      if (round % 4 == 0) rank.Launch({}, Dawdle, rank.rank(), round);
      // Nothing between them.
      for (uint32_t k = 0; k < kBuffers; ++k) {
        ExpectOk(StartRandom(comm, calls[k], in[k], out[k], Variant::kPush, rank.stream));
      }
      for (uint32_t k = 0; k < kBuffers; ++k) {
        rank.Launch({1, 32}, CheckRandom, static_cast<const uint32_t*>(out[k]), calls[k], bad);
      }
      if (round % 32 == 31) rank.Synchronize();
    }
    rank.Synchronize();
    ExpectOk(ccl::CheckError(comm));
    EXPECT_EQ(rank.Read(bad), 0u);
  });
}

// Graphs.

// A counter on the device, so that each replay has other data.
IRIS_KERNEL void NextRound(uint32_t* round) {
  if (backend::ThreadIndex() == 0) *round += 1;
}

IRIS_KERNEL void FillReplay(uint32_t* x, uint64_t count, uint32_t rank, const uint32_t* round) {
  for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
    x[i] = RandomValue(*round, rank, i);
  }
}

IRIS_KERNEL void CheckReplay(const uint32_t* sum, const uint32_t* all, uint64_t count, uint32_t n,
                             const uint32_t* round, uint64_t* bad) {
  uint64_t wrong = 0;
  for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
    uint32_t total = 0;
    for (uint32_t m = 0; m < n; ++m) {
      const uint32_t value = RandomValue(*round, m, i);
      total += value;
      if (all[m * count + i] != value) ++wrong;
    }
    if (sum[i] != total) ++wrong;
  }
  if (wrong != 0) {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(bad, wrong);
  }
}

class GraphTest : public testing::TestWithParam<uint32_t> {};
// From a fresh workspace, and so that the epochs wrap in the middle.
INSTANTIATE_TEST_SUITE_P(FromEpoch, GraphTest, testing::Values(0u, 0xfffffffdu, 0xffffff00u));

void SetEpochs(Rank& rank, const Comm& comm, uint32_t epoch) {
  for (uint32_t b = 0; b < comm.config.max_blocks; ++b) {
    ccl::impl::BlockState state = {};
    state.epoch = epoch;
    rank.Write(AtOffset<ccl::impl::BlockState>(
                   rank.ctx, rank.rank(),
                   comm.workspace_offset_bytes +
                       ccl::impl::OffsetsOf(comm.team.size, comm.config).sync_bytes +
                       b * ccl::impl::SyncBytes(comm.team.size)),
               state);
  }
}

TEST_P(GraphTest, AThousandReplaysWithFreshData) {
  const uint32_t replays = 1000 / kSlower;
  World(3, 2 << 20).Run([=](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    SetEpochs(rank, comm, GetParam());
    constexpr uint64_t kCount = 300;
    uint32_t* x = rank.New<uint32_t>(kCount);
    uint32_t* sum = rank.New<uint32_t>(kCount);
    uint32_t* all = rank.New<uint32_t>(3 * kCount);
    uint32_t* round = rank.New<uint32_t>(1);
    uint64_t* bad = rank.New<uint64_t>(1);
    rank.HostBarrier();
    backend::Graph graph;
    ExpectOk(backend::BeginCapture(rank.stream));
    const Variant variants[] = {Variant::kPackets,  Variant::kTwoShot,  Variant::kDirect,
                                Variant::kRing,     Variant::kSpinlock, Variant::kLines,
                                Variant::kTwoLines, Variant::kPush};
    for (Variant variant : variants) {
      rank.Launch({}, NextRound, round);
      rank.Launch({1, 32}, FillReplay, x, kCount, rank.rank(), static_cast<const uint32_t*>(round));
      ExpectOk(
          ccl::AllReduce(comm, x, sum, kCount, DType::kI32, ReduceOp::kSum, rank.stream, variant));
      ExpectOk(ccl::AllGather(comm, x, all, kCount, DType::kI32, rank.stream));
      rank.Launch({1, 32}, CheckReplay, static_cast<const uint32_t*>(sum),
                  static_cast<const uint32_t*>(all), kCount, rank.n(),
                  static_cast<const uint32_t*>(round), bad);
    }
    ExpectOk(backend::EndCapture(rank.stream, &graph));
    for (uint32_t k = 0; k < replays; ++k) {
      ExpectOk(backend::LaunchGraph(graph, rank.stream));
      if (k % 50 == 49) rank.Synchronize();
    }
    EXPECT_EQ(rank.Read(bad), 0u);
    EXPECT_EQ(rank.Read(round), std::size(variants) * replays);
    ExpectOk(ccl::CheckError(comm));
  });
}

TEST(StreamsTest, TwoCommsOnTwoStreamsAtOnce) {
  World(3, 4 << 20).Run([](Rank& rank) {
    const Comm first = rank.NewComm(rank.ctx.world, SmallConfig());
    const Comm second = rank.NewComm(rank.NewTeam({2, 1, 0}), SmallConfig());
    // One rank after the other, each with a first use: streams of one device that threads make at
    // the same time were seen to share a queue of it, where a kernel waits for those before it.
    backend::Stream other;
    uint32_t* touched = rank.New<uint32_t>(1);
    for (uint32_t r = 0; r < rank.n(); ++r) {
      if (r == rank.rank()) {
        ExpectOk(backend::Stream::Create(&other));
        ExpectOk(backend::FillAsync(touched, 1, sizeof(*touched), other));
        ExpectOk(other.Synchronize());
      }
      rank.HostBarrier();
    }
    constexpr uint64_t kCount = 700;
    uint32_t* x = rank.New<uint32_t>(kCount);
    uint32_t* y = rank.New<uint32_t>(kCount);
    rank.Write(x, std::vector<uint32_t>(kCount, rank.rank() + 1));
    rank.Write(y, std::vector<uint32_t>(kCount, rank.rank() + 2));
    rank.HostBarrier();
    const uint32_t rounds = 60 / kSlower + 2;
    for (uint32_t round = 0; round < rounds; ++round) {
      // In another order on each rank: the streams do not wait for each other.
      for (uint32_t k = 0; k < 2; ++k) {
        if ((rank.rank() + round + k) % 2 == 0) {
          ExpectOk(ccl::AllReduce(first, x, x, kCount, DType::kI32, ReduceOp::kSum, rank.stream,
                                  Variant::kTwoShot));
        } else {
          ExpectOk(ccl::AllReduce(second, y, y, kCount, DType::kI32, ReduceOp::kMax, other,
                                  Variant::kPackets));
        }
      }
    }
    rank.Synchronize();
    ExpectOk(other.Synchronize());
    ExpectOk(ccl::CheckError(first));
    ExpectOk(ccl::CheckError(second));
    uint32_t sum = 6;
    for (uint32_t round = 1; round < rounds; ++round) sum *= 3;
    EXPECT_EQ(rank.Read(x, kCount), std::vector<uint32_t>(kCount, sum));
    EXPECT_EQ(rank.Read(y, kCount), std::vector<uint32_t>(kCount, 4));
  });
}

// Tiles, inside a kernel.

template <typename T>
IRIS_KERNEL void TileKernel(DeviceContext ctx, DeviceTeam team, T* in, T* sum, T* mine, T* all,
                            uint64_t count, uint32_t rounds, uint32_t* failed) {
  // Tiles of `count` elements a member; block b has the b-th, so that nothing is aligned.
  const uint64_t whole = count * team.size;
  const uint64_t at = backend::BlockIndex() * whole;
  for (uint32_t round = 0; round < rounds; ++round) {
    bool ok =
        ccl::TileAllReduce(ctx, team, in + at, sum + at, whole, ReduceOp::kSum) == WaitResult::kOk;
    ok = ok && ccl::TileReduceScatter(ctx, team, in + at, mine + backend::BlockIndex() * count,
                                      count, ReduceOp::kMax) == WaitResult::kOk;
    ok = ok && ccl::TileAllGather(ctx, team, in + at, all + at, count) == WaitResult::kOk;
    if (!ok) {
      if (backend::ThreadIndex() == 0) *failed = 1;
      return;
    }
  }
}

template <typename T>
void CheckTiles(const std::vector<uint32_t>& members) {
  World(4).Run([&](Rank& rank) {
    const DeviceTeam team = rank.NewTeam(members);
    const uint64_t n = team.size;
    for (uint64_t count : {1, 5, 64, 301}) {
      const uint64_t whole = 3 * n * count;
      T* in = rank.New<T>(whole);
      T* sum = rank.New<T>(whole);
      T* mine = rank.New<T>(3 * count);
      T* all = rank.New<T>(whole);
      uint32_t* failed = rank.New<uint32_t>(1);
      rank.Write(in, Data<T>(rank.rank(), whole));
      rank.HostBarrier();
      if (team.index >= n) continue;
      rank.Launch({3, 32}, TileKernel<T>, rank.ctx, team, in, sum, mine, all, count, uint32_t{3},
                  failed);
      EXPECT_EQ(rank.Read(failed), 0u);
      std::vector<uint64_t> seeds(members.begin(), members.end());
      EXPECT_TRUE(SameBits(rank.Read(sum, whole), ReferenceAll<T>(ReduceOp::kSum, seeds, whole)));
      const std::vector<T> largest = ReferenceAll<T>(ReduceOp::kMax, seeds, whole);
      std::vector<T> rows;
      std::vector<T> gathered;
      for (uint64_t b = 0; b < 3; ++b) {
        for (uint64_t i = 0; i < count; ++i) {
          rows.push_back(largest[(b * n + team.index) * count + i]);
        }
        for (uint64_t m = 0; m < n; ++m) {
          for (uint64_t i = 0; i < count; ++i) {
            gathered.push_back(ValueOf<T>(seeds[m], b * n * count + i));
          }
        }
      }
      EXPECT_TRUE(SameBits(rank.Read(mine, 3 * count), rows));
      EXPECT_TRUE(SameBits(rank.Read(all, whole), gathered));
    }
  });
}

TEST(CollectiveTileTest, F32OfAllRanks) { CheckTiles<float>({0, 1, 2, 3}); }
TEST(CollectiveTileTest, Bf16OfATeam) { CheckTiles<Bfloat16>({3, 0, 2}); }
TEST(CollectiveTileTest, I64OfTwo) { CheckTiles<int64_t>({1, 2}); }
TEST(CollectiveTileTest, OfOne) { CheckTiles<float>({2}); }

// Teams.

TEST(TeamTest, OverlappingTeamsBackToBack) {
  World(4, 4 << 20).Run([](Rank& rank) {
    const std::vector<std::vector<uint32_t>> sets = {{0, 1}, {3, 2, 1}, {0, 3}, {2, 0, 1, 3}, {2}};
    std::vector<Comm> comms;
    for (const auto& set : sets) comms.push_back(rank.NewComm(rank.NewTeam(set), SmallConfig()));
    float* x = rank.New<float>(200);
    float* sum = rank.New<float>(200);
    rank.HostBarrier();
    for (uint32_t round = 0; round < 60 / kSlower; ++round) {
      for (size_t k = 0; k < sets.size(); ++k) {
        if (comms[k].team.size == 0) continue;  // not a member
        rank.Launch({1, 32}, FillRound, x, uint64_t{200}, rank.rank(), round);
        ExpectOk(ccl::AllReduce(comms[k], x, sum, 200, DType::kF32, ReduceOp::kSum, rank.stream,
                                round % 2 == 0 ? Variant::kOneShot : Variant::kTwoShot));
        const std::vector<float> got = rank.Read(sum, 200);
        for (uint64_t i = 0; i < 200; ++i) {
          float expected = 0;
          for (uint32_t r : sets[k])
            expected += static_cast<float>((i * 7 + round * 13 + r * 5) % 997);
          ASSERT_EQ(got[i], expected) << "team " << k << " round " << round << " element " << i;
        }
      }
    }
  });
}

TEST(TeamTest, GatherIsInTheOrderOfTheTeam) {
  World(3).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.NewTeam({2, 0, 1}), SmallConfig());
    int32_t* in = rank.New<int32_t>(1);
    int32_t* out = rank.New<int32_t>(3);
    rank.Write(in, static_cast<int32_t>(rank.rank()));
    rank.HostBarrier();
    ExpectOk(ccl::AllGather(comm, in, out, 1, DType::kI32, rank.stream));
    EXPECT_EQ(rank.Read(out, 3), (std::vector<int32_t>{2, 0, 1}));
    // Member 1 of the team is rank 0.
    ExpectOk(ccl::Broadcast(comm, in, out, 1, DType::kI32, 1, rank.stream));
    EXPECT_EQ(rank.Read(out), 0);
  });
}

TEST(TeamTest, SelfTeamDoesEverything) {
  World(2).Run([](Rank& rank) {
    const DeviceTeam teams[] = {rank.NewTeam({0}), rank.NewTeam({1})};
    const Comm mine = rank.NewComm(teams[rank.rank()], SmallConfig());
    float* x = rank.New<float>(100);
    float* y = rank.New<float>(100);
    rank.Write(x, Data<float>(5, 100));
    ExpectOk(ccl::AllReduce(mine, x, y, 100, DType::kF32, ReduceOp::kProd, rank.stream));
    EXPECT_TRUE(SameBits(rank.Read(y, 100), Data<float>(5, 100)));
    rank.Write(y, std::vector<float>(100));
    ExpectOk(ccl::AllGather(mine, x, y, 100, DType::kF32, rank.stream));
    EXPECT_TRUE(SameBits(rank.Read(y, 100), Data<float>(5, 100)));
    rank.Write(y, std::vector<float>(100));
    ExpectOk(ccl::Broadcast(mine, x, y, 100, DType::kF32, 0, rank.stream));
    EXPECT_TRUE(SameBits(rank.Read(y, 100), Data<float>(5, 100)));
    ExpectOk(ccl::AllReduce(mine, x, x, 100, DType::kF32, ReduceOp::kSum, rank.stream));
    EXPECT_TRUE(SameBits(rank.Read(x, 100), Data<float>(5, 100)));
    ExpectOk(ccl::Barrier(mine, rank.stream));
    rank.Synchronize();
    ExpectOk(ccl::CheckError(mine));
  });
}

// Barrier.

IRIS_KERNEL void SetWord(uint32_t* word, uint32_t value) {
  backend::Store<Scope::kSystem, Order::kRelaxed>(word, value);
}

IRIS_KERNEL void CollectWords(DeviceContext ctx, const uint32_t* word, uint32_t round,
                              uint32_t* bad) {
  for (uint32_t p = 0; p < ctx.n_ranks; ++p) {
    if (AtomicLoad<Scope::kSystem, Order::kRelaxed>(ctx, p, word) < round) ++*bad;
  }
}

class CclBarrierTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, CclBarrierTest, testing::Values(1, 2, 3, 4, 5, 8));

void ExpectSeenBehindBarriers(uint32_t n_ranks, const Config& config) {
  World(n_ranks).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, config);
    uint32_t* word = rank.New<uint32_t>(1);
    uint32_t* bad = rank.New<uint32_t>(1);
    rank.HostBarrier();
    for (uint32_t round = 1; round <= 100 / kSlower; ++round) {
      rank.Launch({}, Dawdle, rank.rank(), round);
      rank.Launch({}, SetWord, word, round);
      ExpectOk(ccl::Barrier(comm, rank.stream));
      rank.Launch({}, CollectWords, rank.ctx, static_cast<const uint32_t*>(word), round, bad);
    }
    EXPECT_EQ(rank.Read(bad), 0u);
    ExpectOk(ccl::CheckError(comm));
  });
}

TEST_P(CclBarrierTest, WhatAStreamDidBeforeIsSeenBehind) {
  ExpectSeenBehindBarriers(GetParam(), SmallConfig());
}

TEST_P(CclBarrierTest, ACommForBarriersAlone) {
  Config config;
  config.barriers_only = true;
  ExpectSeenBehindBarriers(GetParam(), config);
  World(GetParam()).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, config);
    float* const x = rank.New<float>(1);
    const auto refused = ccl::AllReduce(comm, x, x, 1, DType::kF32, ReduceOp::kSum, rank.stream);
    EXPECT_EQ(refused.code, StatusCode::kFailedPrecondition);
    ExpectOk(ccl::Barrier(comm, rank.stream));
  });
}

IRIS_KERNEL void CheckWords(DeviceContext ctx, const uint32_t* words, uint32_t count,
                            const uint32_t* round, uint32_t* bad) {
  uint32_t wrong = 0;
  for (uint32_t i = backend::ThreadIndex(); i < ctx.n_ranks * count; i += backend::BlockSize()) {
    if (backend::LoadPlain(words + i) != (backend::LoadPlain(round) ^ (i % count))) ++wrong;
  }
  if (wrong != 0) {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kDevice, Order::kRelaxed>(bad, wrong);
  }
}

// Stores plain words to all members, and publishes nothing.
IRIS_KERNEL void PutWordsOfRound(DeviceContext ctx, uint32_t* words, uint32_t count,
                                 uint32_t* round) {
  const uint32_t next = backend::LoadPlain(round) + 1;
  backend::BlockSync();
  if (backend::ThreadIndex() == 0) backend::StorePlain(round, next);
  for (uint32_t p = 0; p < ctx.n_ranks; ++p) {
    uint32_t* const there = Translate(ctx, p, words) + ctx.rank * count;
    for (uint32_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
      backend::StorePlain(there + i, next ^ i);
    }
  }
}

// Puts of one kernel, the stream's barrier, and reads of the kernel behind it, in a graph. On
// emulated devices ThreadSanitizer sees it if the barrier's words are not released.
TEST(CclBarrierOfPutsTest, PublishesWhatEarlierKernelsStoredToOthers) {
  constexpr uint32_t kCount = 1024;
  constexpr uint32_t kRounds = 10;  // of a graph
  constexpr uint32_t kReplays = backend::Traits::kEmulated ? 2 : 1000;
  World(2).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    uint32_t* words = rank.New<uint32_t>(2 * kCount);
    uint32_t* round = rank.New<uint32_t>(1);
    uint32_t* bad = rank.New<uint32_t>(1);
    for (const Result& result :
         {backend::PrepareKernel(PutWordsOfRound), backend::PrepareKernel(CheckWords)}) {
      ASSERT_TRUE(result.ok()) << result.what;
    }
    rank.HostBarrier();
    backend::Graph graph;
    ASSERT_TRUE(backend::BeginCapture(rank.stream).ok());
    for (uint32_t k = 0; k < kRounds; ++k) {
      rank.Launch({1, 64}, PutWordsOfRound, rank.ctx, words, kCount, round);
      ExpectOk(ccl::Barrier(comm, rank.stream));
      rank.Launch({1, 64}, CheckWords, rank.ctx, static_cast<const uint32_t*>(words), kCount,
                  static_cast<const uint32_t*>(round), bad);
      ExpectOk(ccl::Barrier(comm, rank.stream));  // all have read
    }
    ASSERT_TRUE(backend::EndCapture(rank.stream, &graph).ok());
    for (uint32_t k = 0; k < kReplays; ++k) {
      ASSERT_TRUE(backend::LaunchGraph(graph, rank.stream).ok());
      if (k % 20 == 19) rank.Synchronize();
    }
    rank.Synchronize();
    EXPECT_EQ(rank.Read(round), kRounds * kReplays);
    EXPECT_EQ(rank.Read(bad), 0u);
    ExpectOk(ccl::CheckError(comm));
  });
}

// Epochs.

class EpochWrapTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(From, EpochWrapTest,
                         testing::Values(0xfffffffdu, 0xfffffff8u, 0xfffffffeu, 0x7ffffffeu));

TEST_P(EpochWrapTest, OperationsGoOnAcrossTheWrap) {
  World(3).Run([](Rank& rank) {
    const Config config = SmallConfig();
    const Comm comm = rank.NewComm(rank.ctx.world, config);
    for (uint32_t b = 0; b < config.max_blocks; ++b) {
      ccl::impl::BlockState state = {};
      state.epoch = GetParam();
      rank.Write(AtOffset<ccl::impl::BlockState>(
                     rank.ctx, rank.rank(),
                     comm.workspace_offset_bytes + ccl::impl::OffsetsOf(3, comm.config).sync_bytes +
                         b * ccl::impl::SyncBytes(3)),
                 state);
    }
    float* x = rank.New<float>(1000);
    float* sum = rank.New<float>(1000);
    float* all = rank.New<float>(3000);
    uint64_t* bad = rank.New<uint64_t>(1);
    const float* none = nullptr;
    rank.HostBarrier();
    for (uint32_t round = 0; round < 12; ++round) {
      rank.Launch({1, 32}, FillRound, x, uint64_t{1000}, rank.rank(), round);
      ExpectOk(ccl::AllReduce(comm, x, sum, 1000, DType::kF32, ReduceOp::kSum, rank.stream,
                              round % 3 == 0 ? Variant::kTwoShot : Variant::kOneShot));
      ExpectOk(ccl::AllGather(comm, x, all, 1000, DType::kF32, rank.stream));
      rank.Launch({1, 32}, CheckRound, static_cast<const float*>(sum),
                  static_cast<const float*>(all), none, uint64_t{1000}, rank.n(), round, bad);
    }
    EXPECT_EQ(rank.Read(bad), 0u);
    ExpectOk(ccl::CheckError(comm));
  });
}

// Numbers of operations.

// Gives a Comm the state that it has behind so many operations.
void SetNumber(Rank& rank, const Comm& comm, uint32_t operations) {
  ccl::impl::Header header = {};
  header.sequence = operations;
  rank.Write(AtOffset<ccl::impl::Header>(rank.ctx, rank.rank(), comm.workspace_offset_bytes),
             header);
}

TEST(NumberWrapTest, WhoWaitsLongSeesNoMistake) {
  World(3).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    SetNumber(rank, comm, 0xfffffffdu);
    uint32_t* x = rank.New<uint32_t>(300);
    uint32_t* sum = rank.New<uint32_t>(300);
    rank.Write(x, std::vector<uint32_t>(300, rank.rank() + 1));
    rank.HostBarrier();
    for (uint32_t round = 0; round < 6; ++round) {
      if (rank.rank() == round % 3) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ExpectOk(ccl::AllReduce(comm, x, sum, 300 - round, DType::kI32, ReduceOp::kSum, rank.stream,
                              round % 2 == 0 ? Variant::kTwoShot : Variant::kPackets));
      rank.Synchronize();
      ExpectOk(ccl::CheckError(comm));
      EXPECT_EQ(rank.Read(sum), 6u) << "operation " << round;
    }
  });
}

TEST(NumberWrapTest, CallsThatDifferAreTold) {
  World(3).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    SetNumber(rank, comm, 0xffffffffu);
    float* x = rank.New<float>(300);
    rank.HostBarrier();
    ExpectOk(ccl::AllReduce(comm, x, x, rank.rank() == 1 ? 200 : 300, DType::kF32, ReduceOp::kSum,
                            rank.stream, Variant::kTwoShot));
    rank.Synchronize();
    ccl::ErrorInfo info;
    EXPECT_EQ(ccl::CheckError(comm, &info).code, StatusCode::kInvalidArgument);
    EXPECT_EQ(info.sequence, 0xffffffffu);
    EXPECT_EQ(info.mismatch.most, 5u);
    EXPECT_EQ(info.mismatch.other, 2u);
    EXPECT_EQ(ccl::Unpack(info.mismatch.most_call).count, 300u);
    EXPECT_EQ(ccl::Unpack(info.mismatch.other_call).count, 200u);
  });
}

// Failures.

Config ShortConfig() {
  Config config = SmallConfig();
  config.timeout_ns = 20 * kMillisecondNs;
  return config;
}

// Lets every rank but `absent` start `operation`, and expects them to name it.
void ExpectMissing(uint32_t absent, Operation operation,
                   const std::function<Result(Rank&, const Comm&, float*)>& call) {
  World(3).Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, ShortConfig());
    float* x = rank.New<float>(3000);
    rank.HostBarrier();
    if (rank.rank() != absent) {
      ExpectOk(call(rank, comm, x));
      rank.Synchronize();
      ccl::ErrorInfo info;
      EXPECT_EQ(ccl::CheckError(comm, &info).code, StatusCode::kDeadlineExceeded);
      EXPECT_EQ(info.operation, operation);
      EXPECT_EQ(info.member_index, absent);
      EXPECT_EQ(call(rank, comm, x).code, StatusCode::kFailedPrecondition);
    } else {
      ExpectOk(ccl::CheckError(comm));
    }
  });
}

TEST(FailureTest, OneShotNamesTheMissing) {
  ExpectMissing(1, Operation::kAllReduce, [](Rank& rank, const Comm& comm, float* x) {
    return ccl::AllReduce(comm, x, x, 10, DType::kF32, ReduceOp::kSum, rank.stream,
                          Variant::kOneShot);
  });
}

TEST(FailureTest, TwoShotNamesTheMissing) {
  ExpectMissing(2, Operation::kAllReduce, [](Rank& rank, const Comm& comm, float* x) {
    return ccl::AllReduce(comm, x, x, 3000, DType::kF32, ReduceOp::kSum, rank.stream,
                          Variant::kTwoShot);
  });
}

TEST(FailureTest, PushNamesTheMissing) {
  ExpectMissing(1, Operation::kReduceScatter, [](Rank& rank, const Comm& comm, float* x) {
    return ccl::ReduceScatter(comm, x, x + 1000 * rank.rank(), 1000, DType::kF32, ReduceOp::kSum,
                              rank.stream, Variant::kPush);
  });
}

TEST(FailureTest, AllGatherNamesTheMissing) {
  ExpectMissing(0, Operation::kAllGather, [](Rank& rank, const Comm& comm, float* x) {
    return ccl::AllGather(comm, x, x + 1000, 600, DType::kF32, rank.stream);
  });
}

TEST(FailureTest, BroadcastNamesTheMissingRoot) {
  ExpectMissing(0, Operation::kBroadcast, [](Rank& rank, const Comm& comm, float* x) {
    return ccl::Broadcast(comm, nullptr, x, 10, DType::kF32, 0, rank.stream);
  });
}

TEST(FailureTest, BarrierNamesTheMissing) {
  ExpectMissing(1, Operation::kBarrier, [](Rank& rank, const Comm& comm, float* x) {
    return ccl::Barrier(comm, rank.stream);
  });
}

TEST(FailureTest, AbortEndsItAndIsNoTimeout) {
  World world(2);
  world.Run([&](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, SmallConfig());
    float* x = rank.New<float>(10);
    rank.HostBarrier();
    if (rank.rank() == 1) {
      world.Abort();
      return;
    }
    ExpectOk(ccl::AllReduce(comm, x, x, 10, DType::kF32, ReduceOp::kSum, rank.stream));
    rank.Synchronize();
    ccl::ErrorInfo info;
    EXPECT_EQ(ccl::CheckError(comm, &info).code, StatusCode::kAborted);
    EXPECT_EQ(info.member_index, 1u);
    EXPECT_EQ(info.operation, Operation::kAllReduce);
  });
}

TEST(FailureTest, WhatIsAlreadyOnTheStreamFailsAtOnce) {
  World(2).Run([&](Rank& rank) {
    Config config = SmallConfig();
    config.timeout_ns = 500 * kMillisecondNs;
    const Comm comm = rank.NewComm(rank.ctx.world, config);
    float* x = rank.New<float>(10);
    rank.HostBarrier();
    if (rank.rank() == 1) return;
    const uint64_t start = backend::ClockNanoseconds();
    // 40 waits of 0.5 s, if each waited for itself.
    for (uint32_t k = 0; k < 40; ++k) {
      ExpectOk(ccl::AllReduce(comm, x, x, 10, DType::kF32, ReduceOp::kSum, rank.stream));
    }
    rank.Synchronize();
    EXPECT_LT(backend::ClockNanoseconds() - start, 40ull * 500 * kMillisecondNs);
    EXPECT_EQ(ccl::CheckError(comm).code, StatusCode::kDeadlineExceeded);
  });
}

TEST(FailureTest, AfterPreparingAgainItWorks) {
  World(3).Run([](Rank& rank) {
    const Comm comm = rank.NewComm(rank.ctx.world, ShortConfig());
    float* x = rank.New<float>(100);
    rank.HostBarrier();
    if (rank.rank() != 1) {
      ExpectOk(ccl::AllReduce(comm, x, x, 100, DType::kF32, ReduceOp::kSum, rank.stream));
      rank.Synchronize();
      EXPECT_FALSE(ccl::CheckError(comm).ok());
    }
    rank.HostBarrier();
    ExpectOk(ccl::PrepareWorkspace(comm, rank.stream));
    rank.Synchronize();
    ccl::ResetError(comm);
    rank.HostBarrier();
    Comm longer = comm;
    longer.config.timeout_ns = 0;
    rank.Write(x, std::vector<float>(100, 1.0f));
    ExpectOk(ccl::AllReduce(longer, x, x, 100, DType::kF32, ReduceOp::kSum, rank.stream));
    EXPECT_EQ(rank.Read(x, 100), std::vector<float>(100, 3.0f));
    ExpectOk(ccl::CheckError(longer));
  });
}

// Ranks that do not agree on what they call.
void ExpectMismatch(const std::function<Result(Rank&, const Comm&, float*)>& call) {
  World(3).Run([&](Rank& rank) {
    Config config = SmallConfig();
    config.max_blocks = 1;  // the same grid for all
    config.packet_blocks = 1;
    const Comm comm = rank.NewComm(rank.ctx.world, config);
    float* x = rank.New<float>(3000);
    rank.HostBarrier();
    ExpectOk(call(rank, comm, x));
    rank.Synchronize();
    ccl::ErrorInfo info;
    EXPECT_EQ(ccl::CheckError(comm, &info).code, StatusCode::kInvalidArgument);
    // Ranks 0 and 1 agree, rank 2 differs: they name it.
    if (rank.rank() != 2) {
      EXPECT_EQ(info.member_index, 2u);
    }
    EXPECT_EQ(call(rank, comm, x).code, StatusCode::kFailedPrecondition);
  });
}

TEST(OneCallMismatchTest, Count) {
  ExpectMismatch([](Rank& rank, const Comm& comm, float* x) {
    return ccl::AllReduce(comm, x, x, rank.rank() == 2 ? 11 : 10, DType::kF32, ReduceOp::kSum,
                          rank.stream);
  });
}

TEST(OneCallMismatchTest, Type) {
  ExpectMismatch([](Rank& rank, const Comm& comm, float* x) {
    return ccl::AllReduce(comm, x, x, 10, rank.rank() == 2 ? DType::kI32 : DType::kF32,
                          ReduceOp::kSum, rank.stream);
  });
}

TEST(OneCallMismatchTest, ReduceOp) {
  ExpectMismatch([](Rank& rank, const Comm& comm, float* x) {
    return ccl::AllReduce(comm, x, x, 10, DType::kF32,
                          rank.rank() == 2 ? ReduceOp::kMax : ReduceOp::kSum, rank.stream);
  });
}

TEST(OneCallMismatchTest, Variant) {
  ExpectMismatch([](Rank& rank, const Comm& comm, float* x) {
    return ccl::AllReduce(comm, x, x, 10, DType::kF32, ReduceOp::kSum, rank.stream,
                          rank.rank() == 2 ? Variant::kTwoShot : Variant::kOneShot);
  });
}

TEST(OneCallMismatchTest, Root) {
  ExpectMismatch([](Rank& rank, const Comm& comm, float* x) {
    return ccl::Broadcast(comm, x, x, 10, DType::kF32, rank.rank() == 2 ? 1 : 0, rank.stream);
  });
}

TEST(OneCallMismatchTest, Operation) {
  ExpectMismatch([](Rank& rank, const Comm& comm, float* x) {
    if (rank.rank() == 2) return ccl::Barrier(comm, rank.stream);
    return ccl::AllGather(comm, x, x + 1000, 600, DType::kF32, rank.stream);
  });
}

}  // namespace
}  // namespace iris::conformance
