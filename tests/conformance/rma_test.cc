// Loads, stores, get, put and copy.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

// Single values.

struct Bytes3 {  // no size that the hardware has, inside one that it has
  uint8_t a[3];
  uint8_t pad;
};
struct alignas(16) Quad {
  float x[4];
};

template <typename T>
T ValueOf(uint32_t number) {
  T value;
  uint8_t bytes[sizeof(T)];
  for (uint32_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<uint8_t>(number * 29 + i * 7 + 1);
  memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
bool SameBits(const T& a, const T& b) {
  return memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T, CacheHint H>
IRIS_KERNEL void StoreToAll(DeviceContext ctx, T* slots, const T* values) {
  for (uint32_t peer = 0; peer < ctx.n_ranks; ++peer) {
    Store<H>(ctx, peer, slots + ctx.rank, values[peer]);
  }
}

template <typename T, CacheHint H>
IRIS_KERNEL void LoadFromAll(DeviceContext ctx, const T* slots, T* values) {
  for (uint32_t peer = 0; peer < ctx.n_ranks; ++peer) {
    values[peer] = Load<H>(ctx, peer, slots + ctx.rank);
  }
}

template <typename T>
class ValueTest : public testing::Test {
 protected:
  template <CacheHint H>
  void Check() {
    World(3).Run([](Rank& rank) {
      T* slots = rank.New<T>(rank.n());
      T* values = rank.New<T>(rank.n());
      std::vector<T> sent(rank.n());
      for (uint32_t p = 0; p < rank.n(); ++p) sent[p] = ValueOf<T>(10 * rank.rank() + p);
      rank.Write(values, sent);
      rank.HostBarrier();
      rank.Launch({}, StoreToAll<T, H>, rank.ctx, slots, static_cast<const T*>(values));
      rank.Synchronize();
      rank.HostBarrier();
      const std::vector<T> got = rank.Read(slots, rank.n());
      for (uint32_t p = 0; p < rank.n(); ++p) {
        EXPECT_TRUE(SameBits(got[p], ValueOf<T>(10 * p + rank.rank()))) << "from rank " << p;
      }
      // slots[r] of rank p is what r sent to p: loading it gives back what was sent.
      rank.Write(values, std::vector<T>(rank.n(), ValueOf<T>(99)));
      rank.Launch({}, LoadFromAll<T, H>, rank.ctx, static_cast<const T*>(slots), values);
      rank.Synchronize();
      const std::vector<T> loaded = rank.Read(values, rank.n());
      for (uint32_t p = 0; p < rank.n(); ++p) {
        EXPECT_TRUE(SameBits(loaded[p], sent[p])) << "of rank " << p;
      }
    });
  }
};

using ValueTypes =
    testing::Types<int8_t, uint8_t, char, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t,
                   float, double, Half, Bfloat16, void*, Bytes3, Bytes16, Quad>;
TYPED_TEST_SUITE(ValueTest, ValueTypes);

TYPED_TEST(ValueTest, StoreAndLoadDefault) { this->template Check<CacheHint::kDefault>(); }
TYPED_TEST(ValueTest, StoreAndLoadStreaming) { this->template Check<CacheHint::kStreaming>(); }
TYPED_TEST(ValueTest, StoreAndLoadVolatile) { this->template Check<CacheHint::kVolatile>(); }

// All ranks, several blocks.

template <typename T>
IRIS_KERNEL void SumOverRanks(DeviceContext ctx, const T* x, float* sum, uint32_t count) {
  const uint32_t n_threads = backend::GridSize() * backend::BlockSize();
  for (uint32_t i = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
       i < count; i += n_threads) {
    float total = 0;
    for (uint32_t p = 0; p < ctx.n_ranks; ++p) total += static_cast<float>(Load(ctx, p, x + i));
    sum[i] = total;
  }
}

template <typename T>
IRIS_KERNEL void StoreEverywhere(DeviceContext ctx, T* x, T value, uint32_t count) {
  const uint32_t n_threads = backend::GridSize() * backend::BlockSize();
  for (uint32_t i = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
       i < count; i += n_threads) {
    // Each rank writes its part of x, on all ranks.
    if (i % ctx.n_ranks != ctx.rank) continue;
    for (uint32_t p = 0; p < ctx.n_ranks; ++p) Store(ctx, p, x + i, value);
  }
}

template <typename T>
IRIS_KERNEL void PartnerExchange(DeviceContext ctx, const T* x, T* y, uint32_t count) {
  const uint32_t partner = (ctx.rank + ctx.n_ranks / 2) % ctx.n_ranks;
  const uint32_t n_threads = backend::GridSize() * backend::BlockSize();
  for (uint32_t i = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
       i < count; i += n_threads) {
    Store(ctx, partner, y + i, Load(ctx, ctx.rank, x + i));
  }
}

template <typename T>
class GridTest : public testing::Test {};
using GridTypes = testing::Types<int8_t, Half, Bfloat16, float>;
TYPED_TEST_SUITE(GridTest, GridTypes);

constexpr uint32_t kGridCount = 999;

template <typename T>
void CheckSum(uint32_t blocks) {
  World(4).Run([blocks](Rank& rank) {
    T* x = rank.New<T>(kGridCount);
    float* sum = rank.New<float>(kGridCount);
    rank.Write(x, std::vector<T>(kGridCount, T(1)));
    rank.HostBarrier();
    rank.Launch({blocks, 32}, SumOverRanks<T>, rank.ctx, static_cast<const T*>(x), sum, kGridCount);
    rank.Synchronize();
    EXPECT_EQ(rank.Read(sum, kGridCount),
              std::vector<float>(kGridCount, static_cast<float>(rank.n())));
    rank.HostBarrier();
  });
}

TYPED_TEST(GridTest, OnesOverRanksSumToTheirNumberWith1Block) { CheckSum<TypeParam>(1); }
TYPED_TEST(GridTest, OnesOverRanksSumToTheirNumberWith8Blocks) { CheckSum<TypeParam>(8); }
TYPED_TEST(GridTest, OnesOverRanksSumToTheirNumberWith16Blocks) { CheckSum<TypeParam>(16); }
TYPED_TEST(GridTest, OnesOverRanksSumToTheirNumberWith32Blocks) { CheckSum<TypeParam>(32); }

TYPED_TEST(GridTest, EveryRankStoresItsPartEverywhere) {
  using T = TypeParam;
  World(4).Run([](Rank& rank) {
    T* x = rank.New<T>(kGridCount);
    rank.HostBarrier();
    rank.Launch({8, 32}, StoreEverywhere<T>, rank.ctx, x, T(42), kGridCount);
    rank.Synchronize();
    rank.HostBarrier();
    for (const T& value : rank.Read(x, kGridCount)) ASSERT_TRUE(SameBits(value, T(42)));
  });
}

TYPED_TEST(GridTest, PartnerGetsTheData) {
  using T = TypeParam;
  World(5).Run([](Rank& rank) {
    T* x = rank.New<T>(kGridCount);
    T* y = rank.New<T>(kGridCount);
    rank.Write(x, std::vector<T>(kGridCount, T(static_cast<float>(rank.rank() + 1))));
    rank.HostBarrier();
    rank.Launch({4, 32}, PartnerExchange<T>, rank.ctx, static_cast<const T*>(x), y, kGridCount);
    rank.Synchronize();
    rank.HostBarrier();
    const uint32_t from = (rank.rank() + rank.n() - rank.n() / 2) % rank.n();
    for (const T& value : rank.Read(y, kGridCount)) {
      ASSERT_TRUE(SameBits(value, T(static_cast<float>(from + 1))));
    }
  });
}

// Ranges: every misalignment, guarded.

enum class Direction { kPut, kGet, kCopy };
enum class CoopKind { kThread, kWarp, kBlock };

template <Direction D, CacheHint H, typename Coop>
IRIS_DEVICE void Transfer(const DeviceContext& ctx, uint32_t peer, uint8_t* dst, const uint8_t* src,
                          uint64_t bytes, Coop coop) {
  if constexpr (D == Direction::kPut) {
    Put<H>(ctx, peer, dst, src, bytes, coop);
  } else if constexpr (D == Direction::kGet) {
    Get<H>(ctx, peer, dst, src, bytes, coop);
  } else {
    Copy<H>(ctx, (peer + 1) % ctx.n_ranks, dst, peer, src, bytes, coop);
  }
}

// 256 transfers, one for each pair of misalignments. Case (d, s) is at distance d * 16 + s cells,
// cell_bytes apart.
template <Direction D, CacheHint H>
IRIS_KERNEL void TransferAll(DeviceContext ctx, CoopKind coop, uint8_t* dst, const uint8_t* src,
                             uint64_t bytes, uint64_t cell_bytes) {
  const uint32_t peer = (ctx.rank + 1) % ctx.n_ranks;
  const uint32_t n_warps = (backend::BlockSize() + backend::WarpSize() - 1) / backend::WarpSize();
  for (uint32_t i = 0; i < 256; ++i) {
    uint8_t* to = dst + i * cell_bytes + 16 + i / 16;
    const uint8_t* from = src + i % 16;
    if (coop == CoopKind::kBlock) {
      Transfer<D, H>(ctx, peer, to, from, bytes, Block{});
    } else if (coop == CoopKind::kWarp && i % n_warps == backend::WarpIndex()) {
      Transfer<D, H>(ctx, peer, to, from, bytes, Warp{});
    } else if (coop == CoopKind::kThread && i % backend::BlockSize() == backend::ThreadIndex()) {
      Transfer<D, H>(ctx, peer, to, from, bytes, Thread{});
    }
  }
}

using RangeParam = std::tuple<Direction, CoopKind, uint64_t>;

class RangeTest : public testing::TestWithParam<RangeParam> {
 protected:
  template <CacheHint H>
  void Check(uint32_t n_ranks) {
    const auto [direction, coop, bytes] = GetParam();
    const uint64_t cell_bytes = (bytes + 64) / 16 * 16;
    const Direction d = direction;
    const CoopKind c = coop;
    const uint64_t b = bytes;
    World(n_ranks, 257 * cell_bytes + 8192).Run([=](Rank& rank) {
      uint8_t* src = rank.New<uint8_t>(b + 16);
      uint8_t* dst = rank.New<uint8_t>(256 * cell_bytes);
      std::vector<uint8_t> pattern(b + 16);
      for (uint64_t i = 0; i < pattern.size(); ++i) {
        pattern[i] =
            static_cast<uint8_t>((i * 131 + i / 251 + rank.rank() * 17) % 255);  // never 255
      }
      rank.Write(src, pattern);
      rank.Write(dst, std::vector<uint8_t>(256 * cell_bytes, 255));
      rank.HostBarrier();
      // 40 threads: one warp is short.
      const LaunchConfig config = {1, 40};
      const uint8_t* from = src;
      if constexpr (H != CacheHint::kDefault) {  // the hints are tried with puts alone
        rank.Launch(config, TransferAll<Direction::kPut, H>, rank.ctx, c, dst, from, b, cell_bytes);
      } else if (d == Direction::kPut) {
        rank.Launch(config, TransferAll<Direction::kPut, H>, rank.ctx, c, dst, from, b, cell_bytes);
      } else if (d == Direction::kGet) {
        rank.Launch(config, TransferAll<Direction::kGet, H>, rank.ctx, c, dst, from, b, cell_bytes);
      } else {
        rank.Launch(config, TransferAll<Direction::kCopy, H>, rank.ctx, c, dst, from, b,
                    cell_bytes);
      }
      rank.Synchronize();
      rank.HostBarrier();
      // A put comes from the rank before, a get from the next. A copy is made by the rank two
      // before, of the one before.
      const uint32_t n = rank.n();
      const uint32_t source = (rank.rank() + (d == Direction::kGet ? 1 : n - 1)) % n;
      std::vector<uint8_t> expected(256 * cell_bytes, 255);
      for (uint32_t i = 0; i < 256; ++i) {
        for (uint64_t k = 0; k < b; ++k) {
          const uint64_t at = i % 16 + k;
          expected[i * cell_bytes + 16 + i / 16 + k] =
              static_cast<uint8_t>((at * 131 + at / 251 + source * 17) % 255);
        }
      }
      const std::vector<uint8_t> got = rank.Read(dst, 256 * cell_bytes);
      for (uint64_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i], expected[i])
            << "case " << i / cell_bytes << ", byte " << static_cast<int64_t>(i % cell_bytes) - 16;
      }
    });
  }
};

std::string RangeName(const testing::TestParamInfo<RangeParam>& info) {
  const char* const directions[] = {"Put", "Get", "Copy"};
  const char* const coops[] = {"Thread", "Warp", "Block"};
  return std::string(directions[static_cast<int>(std::get<0>(info.param))]) + "By" +
         coops[static_cast<int>(std::get<1>(info.param))] +
         std::to_string(std::get<2>(info.param)) + "Bytes";
}

TEST_P(RangeTest, EveryMisalignment) { Check<CacheHint::kDefault>(3); }

INSTANTIATE_TEST_SUITE_P(
    Ranges, RangeTest,
    testing::Combine(testing::Values(Direction::kPut, Direction::kGet, Direction::kCopy),
                     testing::Values(CoopKind::kThread, CoopKind::kWarp, CoopKind::kBlock),
                     testing::Values(0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 127, 300, 1025,
                                     4099)),
    RangeName);

class HintTest : public RangeTest {};
TEST_P(HintTest, Streaming) { Check<CacheHint::kStreaming>(2); }
TEST_P(HintTest, Volatile) { Check<CacheHint::kVolatile>(2); }

INSTANTIATE_TEST_SUITE_P(Hints, HintTest,
                         testing::Combine(testing::Values(Direction::kPut),
                                          testing::Values(CoopKind::kThread, CoopKind::kWarp,
                                                          CoopKind::kBlock),
                                          testing::Values(1, 37, 512)),
                         RangeName);

// A range that ends where its allocation ends: a sanitizer sees any byte read or written beyond.
template <typename Coop>
IRIS_KERNEL void CopyExactly(uint8_t* dst, const uint8_t* src, uint64_t bytes) {
  Copy(dst, src, bytes, Coop{});
}

TEST(ExactRangeTest, NoByteBeyondAnAllocation) {
  World(1).Run([](Rank& rank) {
    for (uint64_t bytes = 1; bytes <= 100; ++bytes) {
      uint8_t* src = static_cast<uint8_t*>(backend::MallocDevice(bytes));
      uint8_t* dst = static_cast<uint8_t*>(backend::MallocDevice(bytes));
      std::vector<uint8_t> pattern(bytes);
      std::iota(pattern.begin(), pattern.end(), static_cast<uint8_t>(bytes));
      rank.Write(src, pattern);
      const uint8_t* from = src;
      if (bytes % 2 == 0) {
        rank.Launch({1, 64}, CopyExactly<Block>, dst, from, bytes);
      } else {
        rank.Launch({1, 1}, CopyExactly<Thread>, dst, from, bytes);
      }
      rank.Synchronize();
      EXPECT_EQ(rank.Read(dst, bytes), pattern) << bytes;
      backend::FreeDevice(src);
      backend::FreeDevice(dst);
    }
  });
}

TEST(RangeOntoItselfTest, CopyingARangeOntoItselfKeepsIt) {
  World(1).Run([](Rank& rank) {
    uint8_t* x = rank.New<uint8_t>(1000);
    std::vector<uint8_t> pattern(1000);
    std::iota(pattern.begin(), pattern.end(), uint8_t{0});
    rank.Write(x, pattern);
    rank.Launch({1, 64}, CopyExactly<Block>, x + 3, static_cast<const uint8_t*>(x + 3),
                uint64_t{900});
    rank.Synchronize();
    EXPECT_EQ(rank.Read(x, 1000), pattern);
  });
}

// Rows of matrices.

template <bool kPut, typename T, typename Coop>
IRIS_KERNEL void MoveRows(DeviceContext ctx, uint32_t peer, T* dst, const T* src, Strided rows) {
  if constexpr (kPut) {
    Put(ctx, peer, dst, src, rows, Coop{});
  } else {
    Get(ctx, peer, dst, src, rows, Coop{});
  }
}

template <typename T, typename Coop>
void CheckRows() {
  World(2).Run([](Rank& rank) {
    constexpr uint64_t kRoom = 12000;
    T* src = rank.New<T>(kRoom);
    T* dst = rank.New<T>(kRoom);
    const uint32_t peer = 1 - rank.rank();
    std::vector<T> sent(kRoom), came(kRoom);
    for (uint64_t i = 0; i < kRoom; ++i) sent[i] = static_cast<T>(i * 7 + i / 251);
    rank.Write(src, sent);
    const Strided cases[] = {
        {0, 5, 5, 5},          {5, 0, 5, 5},          {1, 1, 1, 1},     {100, 1, 1, 97},
        {100, 1, 97, 1},       {33, 3, 5, 7},         {16, 16, 64, 32}, {7, 13, 13, 13},
        {4, 1031, 1033, 1049}, {3, 2048, 2052, 2048},
    };
    const uint32_t threads = std::is_same_v<Coop, Thread> ? 1
                             : std::is_same_v<Coop, Warp> ? 32
                                                          : 96;
    for (const Strided& rows : cases) {
      for (const uint64_t at : {0, 1, 2}) {
        for (const bool put : {true, false}) {
          rank.Write(dst, std::vector<T>(kRoom, T{99}));
          rank.HostBarrier();
          const T* from = src + at;
          T* to = dst + 3;
          if (put) {
            rank.Launch({1, threads}, MoveRows<true, T, Coop>, rank.ctx, peer, to, from, rows);
          } else {
            rank.Launch({1, threads}, MoveRows<false, T, Coop>, rank.ctx, peer, to, from, rows);
          }
          rank.Synchronize();
          rank.HostBarrier();
          std::vector<T> expected(kRoom, T{99});
          for (uint64_t r = 0; r < rows.rows; ++r) {
            for (uint64_t i = 0; i < rows.length; ++i) {
              expected[3 + r * rows.dst_stride + i] = sent[at + r * rows.src_stride + i];
            }
          }
          EXPECT_EQ(rank.Read(dst, kRoom), expected)
              << rows.rows << " rows of " << rows.length << " from " << at << " put " << put;
        }
      }
    }
  });
}

TEST(RowsTest, Bytes) { CheckRows<uint8_t, Block>(); }
TEST(RowsTest, Halves) { CheckRows<uint16_t, Warp>(); }
TEST(RowsTest, Words) { CheckRows<uint32_t, Block>(); }
TEST(RowsTest, WordsOfAThread) { CheckRows<uint32_t, Thread>(); }
TEST(RowsTest, LongWords) { CheckRows<uint64_t, Block>(); }

// Counts are elements, and bytes where the pointers have no type.
IRIS_KERNEL void CopyBoth(DeviceContext ctx, uint32_t* dst, const uint32_t* src) {
  Put(ctx, ctx.rank, dst, src, 3);
  Put(ctx, ctx.rank, static_cast<void*>(dst + 10), src, 5);
  Copy(dst + 20, src, 2, Thread{});
  Get(ctx, ctx.rank, dst + 30, src, 4);
}

TEST(CountsTest, AreOfElementsOrOfBytes) {
  World(1).Run([](Rank& rank) {
    uint32_t* src = rank.New<uint32_t>(16);
    uint32_t* dst = rank.New<uint32_t>(40);
    rank.Write(src, std::vector<uint32_t>(16, 0x01010101));
    const uint32_t* from = src;
    rank.Launch({1, 1}, CopyBoth, rank.ctx, dst, from);
    std::vector<uint32_t> expected(40, 0);
    for (const uint32_t i : {0, 1, 2, 10, 20, 21, 30, 31, 32, 33}) expected[i] = 0x01010101;
    expected[11] = 1;
    EXPECT_EQ(rank.Read(dst, 40), expected);
  });
}

IRIS_KERNEL void PutToAll(DeviceContext ctx, uint64_t* to, const uint64_t* from, uint64_t count) {
  for (uint32_t p = 0; p < ctx.n_ranks; ++p) {
    Put(ctx, p, to + ctx.rank * count, from, count, Block{});
  }
}

TEST(LargeRangeTest, AMebibyteToEveryPeer) {
  constexpr uint64_t kCount = (1 << 20) / 8;
  World(4, 6 << 20).Run([](Rank& rank) {
    uint64_t* src = rank.New<uint64_t>(kCount);
    uint64_t* dst = rank.New<uint64_t>(kCount * rank.n());
    std::vector<uint64_t> pattern(kCount);
    for (uint64_t i = 0; i < kCount; ++i) pattern[i] = i * 0x9e3779b97f4a7c15 + rank.rank();
    rank.Write(src, pattern);
    rank.HostBarrier();
    rank.Launch({1, 128}, PutToAll, rank.ctx, dst, static_cast<const uint64_t*>(src), kCount);
    rank.Synchronize();
    rank.HostBarrier();
    const std::vector<uint64_t> got = rank.Read(dst, kCount * rank.n());
    for (uint64_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], (i % kCount) * 0x9e3779b97f4a7c15 + i / kCount) << i;
    }
  });
}

template <Direction D>
IRIS_KERNEL void TransferOnce(DeviceContext ctx, uint8_t* dst, const uint8_t* src, uint64_t bytes) {
  Transfer<D, CacheHint::kDefault>(ctx, (ctx.rank + 1) % ctx.n_ranks, dst, src, bytes, Block{});
}

// Up to a mebibyte, at every misalignment of the target and every difference of alignments, between
// guards.
template <Direction D>
void CheckLarge() {
  constexpr uint64_t kMaxBytes = 1 << 20;
  World(2, 3 << 20).Run([](Rank& rank) {
    uint8_t* src = rank.New<uint8_t>(kMaxBytes + 32);
    uint8_t* dst = rank.New<uint8_t>(kMaxBytes + 64);
    const auto pattern = [](uint32_t of, uint64_t i) {
      return static_cast<uint8_t>((i * 131 + i / 251 + of * 17) % 255);  // never 255
    };
    std::vector<uint8_t> mine(kMaxBytes + 32), theirs(kMaxBytes + 32);
    for (uint64_t i = 0; i < mine.size(); ++i) {
      mine[i] = pattern(rank.rank(), i);
      theirs[i] = pattern(1 - rank.rank(), i);
    }
    rank.Write(src, mine);
    for (const uint64_t size : {uint64_t{16385}, uint64_t{65533}, uint64_t{262149}, kMaxBytes}) {
      for (uint32_t k = 0; k < 16; k += kSlower == 1 ? 1 : 3) {
        const uint64_t to = 16 + k;
        const uint64_t from = 2 * k % 16 + k / 8;
        const uint64_t bytes = size - k % 7;
        SCOPED_TRACE(testing::Message() << bytes << " bytes from " << from << " to " << to);
        EXPECT_TRUE(backend::FillAsync(dst, 255, size + 64, rank.stream).ok());
        rank.Synchronize();
        rank.HostBarrier();
        rank.Launch({1, 256}, TransferOnce<D>, rank.ctx, dst + to, src + from, bytes);
        rank.Synchronize();
        rank.HostBarrier();
        const std::vector<uint8_t> got = rank.Read(dst, size + 64);
        const auto guard = [](uint8_t byte) { return byte == 255; };
        ASSERT_TRUE(std::all_of(got.begin(), got.begin() + to, guard));
        ASSERT_TRUE(std::equal(got.begin() + to, got.begin() + to + bytes, theirs.begin() + from));
        ASSERT_TRUE(std::all_of(got.begin() + to + bytes, got.end(), guard));
      }
    }
  });
}

TEST(LargeRangeTest, PutsAtEveryMisalignment) { CheckLarge<Direction::kPut>(); }
TEST(LargeRangeTest, GetsAtEveryMisalignment) { CheckLarge<Direction::kGet>(); }
TEST(LargeRangeTest, CopiesAtEveryMisalignment) { CheckLarge<Direction::kCopy>(); }

}  // namespace
}  // namespace iris::conformance
