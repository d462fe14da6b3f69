// Tiles (tile.h), against a model: any strides, masks and alignments, by a thread, a warp and a
// block. What surrounds a tile must stay as it is.
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "iris/device.h"
#include "tests/conformance/world.h"

namespace iris::conformance {
namespace {

enum class Op : uint32_t { kLoad, kStore, kGet, kPut };

struct Case {
  Op op;
  Tile tile;          // of the side in the heap of the peer
  TileStrides local;  // of the other side
  uint64_t far_at;    // elements before the tile
  uint64_t near_at;
};

constexpr uint64_t kRoom = 4096;

template <typename T>
T ValueOf(uint64_t number) {
  T value;
  uint8_t bytes[sizeof(T)];
  for (uint64_t i = 0; i < sizeof(T); ++i) {
    bytes[i] = static_cast<uint8_t>(number * 31 + number / 251 + i * 7);
  }
  memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
std::vector<T> Pattern(uint64_t seed, uint64_t n) {
  std::vector<T> values(n);
  for (uint64_t i = 0; i < n; ++i) values[i] = ValueOf<T>(seed + i);
  return values;
}

// Where two differ first, or -1.
template <typename T>
int64_t Differ(const std::vector<T>& a, const std::vector<T>& b) {
  for (uint64_t i = 0; i < a.size(); ++i) {
    if (memcmp(&a[i], &b[i], sizeof(T)) != 0) return static_cast<int64_t>(i);
  }
  return -1;
}

template <typename T, CacheHint H, typename Coop>
IRIS_KERNEL void Move(DeviceContext ctx, uint32_t peer, T* far_side, T* near_side, Case c,
                      T other) {
  T* const there = far_side + c.far_at;
  T* const here = near_side + c.near_at;
  switch (c.op) {
    case Op::kLoad:
      return LoadTile<H>(ctx, peer, there, c.tile, here, Coop{}, other);
    case Op::kStore:
      return StoreTile<H>(ctx, peer, there, c.tile, here, Coop{});
    case Op::kGet:
      return GetTile<H>(ctx, peer, here, c.local, there, c.tile, Coop{});
    case Op::kPut:
      return PutTile<H>(ctx, peer, there, c.tile, here, c.local, Coop{});
  }
}

// What a case makes of the side that it writes.
template <typename T>
void Model(const Case& c, std::vector<T>& far_side, std::vector<T>& near_side, T other) {
  const bool dense = c.op == Op::kLoad || c.op == Op::kStore;
  for (uint64_t r = 0; r < c.tile.rows; ++r) {
    for (uint64_t k = 0; k < c.tile.columns; ++k) {
      T& there = far_side[c.far_at + r * c.tile.row_stride + k * c.tile.column_stride];
      T& here = near_side[c.near_at +
                          (dense ? r * c.tile.columns + k : r * c.local.row + k * c.local.column)];
      const bool valid = r < c.tile.valid_rows && k < c.tile.valid_columns;
      if (c.op == Op::kLoad) {
        here = valid ? there : other;
      } else if (valid && c.op == Op::kGet) {
        here = there;
      } else if (valid) {
        there = here;
      }
    }
  }
}

// A layout of so many rows and columns, in which no two elements are at the same place.
TileStrides RandomStrides(std::mt19937& random, uint64_t rows, uint64_t columns, bool aligned) {
  const auto below = [&](uint32_t n) { return static_cast<uint64_t>(random() % n); };
  const uint64_t step = below(4) == 0 ? 1 + below(3) : 1;
  const uint64_t pad = aligned ? 0 : below(6);
  const auto line = [&](uint64_t length) {
    const uint64_t stride = (length == 0 ? 1 : length) * step + pad;
    return aligned ? (stride + 15) / 16 * 16 : stride;
  };
  if (below(4) == 0) return {step, line(rows)};  // by columns
  return {line(columns), step};
}

Case RandomCase(std::mt19937& random) {
  const auto below = [&](uint32_t n) { return static_cast<uint64_t>(random() % n); };
  Case c;
  c.op = static_cast<Op>(below(4));
  const bool aligned = below(3) == 0;  // the way of 16 bytes
  c.tile.rows = below(14);
  c.tile.columns = aligned ? 16 * below(3) : below(40);
  const TileStrides far_strides = RandomStrides(random, c.tile.rows, c.tile.columns, aligned);
  c.tile.row_stride = far_strides.row;
  c.tile.column_stride = far_strides.column;
  c.local = RandomStrides(random, c.tile.rows, c.tile.columns, aligned);
  if (below(2) == 0) c.tile.valid_rows = below(16);
  if (below(2) == 0) c.tile.valid_columns = below(42);
  c.far_at = aligned ? 16 * below(3) : below(30);
  c.near_at = aligned ? 16 * below(3) : below(30);
  return c;
}

template <typename T, CacheHint H, typename Coop>
void CheckTiles(uint32_t seed) {
  std::vector<Case> cases;
  std::mt19937 random(seed);
  for (uint32_t i = 0; i < 160 / kSlower; ++i) cases.push_back(RandomCase(random));
  World(2).Run([&](Rank& rank) {
    T* far_side = rank.New<T>(kRoom);
    T* near_side = rank.New<T>(kRoom);
    const T other = ValueOf<T>(77);
    const uint32_t peer = rank.next();
    // One warp is short.
    const uint32_t threads = std::is_same_v<Coop, Thread> ? 1
                             : std::is_same_v<Coop, Warp> ? 24
                                                          : 40;
    for (uint64_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      std::vector<T> far_of[2], near_of[2];
      for (uint32_t r = 0; r < 2; ++r) {
        far_of[r] = Pattern<T>(1000 * r + i, kRoom);
        near_of[r] = Pattern<T>(1000 * r + i + 500, kRoom);
      }
      rank.Write(far_side, far_of[rank.rank()]);
      rank.Write(near_side, near_of[rank.rank()]);
      rank.HostBarrier();
      rank.Launch({1, threads}, Move<T, H, Coop>, rank.ctx, peer, far_side, near_side, c, other);
      rank.Synchronize();
      rank.HostBarrier();
      Model(c, far_of[0], near_of[1], other);
      Model(c, far_of[1], near_of[0], other);
      const int64_t far_differs = Differ(rank.Read(far_side, kRoom), far_of[rank.rank()]);
      const int64_t near_differs = Differ(rank.Read(near_side, kRoom), near_of[rank.rank()]);
      rank.HostBarrier();
      ASSERT_TRUE(far_differs == -1 && near_differs == -1)
          << "case " << i << ", operation " << static_cast<int>(c.op) << ": " << c.tile.rows
          << " x " << c.tile.columns << ", strides " << c.tile.row_stride << " and "
          << c.tile.column_stride << ", valid " << c.tile.valid_rows << " x "
          << c.tile.valid_columns << ", the other side's " << c.local.row << " and "
          << c.local.column << ", at " << c.far_at << " and " << c.near_at
          << ": differs at element " << far_differs << " of the heap's side, " << near_differs
          << " of the other";
    }
  });
}

TEST(TileTest, BytesByBlock) { CheckTiles<uint8_t, CacheHint::kDefault, Block>(1); }
TEST(TileTest, HalvesByWarpStreaming) { CheckTiles<Half, CacheHint::kStreaming, Warp>(2); }
TEST(TileTest, WordsByBlockStreaming) { CheckTiles<float, CacheHint::kStreaming, Block>(3); }
TEST(TileTest, LongWordsByThreadVolatile) { CheckTiles<uint64_t, CacheHint::kVolatile, Thread>(4); }
TEST(TileTest, SixteenBytesByWarp) { CheckTiles<Bytes16, CacheHint::kDefault, Warp>(5); }

// In registers. Each thread has a tile of its own, kApart elements behind that of the one before;
// it stores all of its registers to `all`, and the valid ones to `some`.

constexpr uint64_t kApart = 128;

template <typename T, uint32_t kRows, uint32_t kColumns>
IRIS_KERNEL void MoveRegisters(DeviceContext ctx, uint32_t peer, const T* from, T* all, T* some,
                               Tile tile, T other) {
  const uint64_t at = backend::ThreadIndex() * kApart;
  T values[kRows][kColumns];
  LoadTile(ctx, peer, from + at, tile, values, other);
  StoreTile(ctx, ctx.rank, all + at, Tile{kRows, kColumns, kColumns}, values);
  StoreTile<CacheHint::kStreaming>(ctx, ctx.rank, some + at, tile, values);
}

template <typename T, uint32_t kRows, uint32_t kColumns>
void CheckRegisters(const Tile& tile, uint64_t at) {
  constexpr uint32_t kThreads = 8;
  constexpr uint64_t kCount = kThreads * kApart + 16;
  World(2).Run([&](Rank& rank) {
    T* from = rank.New<T>(kCount);
    T* all = rank.New<T>(kCount);
    T* some = rank.New<T>(kCount);
    const T other = ValueOf<T>(3);
    const std::vector<T> theirs = Pattern<T>(1000 * (1 - rank.rank()), kCount);
    std::vector<T> expected_all = Pattern<T>(5000, kCount);
    std::vector<T> expected_some = expected_all;
    rank.Write(from, Pattern<T>(1000 * rank.rank(), kCount));
    rank.Write(all, expected_all);
    rank.Write(some, expected_some);
    rank.HostBarrier();
    rank.Launch({1, kThreads}, MoveRegisters<T, kRows, kColumns>, rank.ctx, rank.next(),
                static_cast<const T*>(from + at), all + at, some + at, tile, other);
    rank.Synchronize();
    for (uint64_t t = 0; t < kThreads; ++t) {
      for (uint64_t r = 0; r < kRows; ++r) {
        for (uint64_t k = 0; k < kColumns; ++k) {
          const bool valid =
              r < tile.rows && r < tile.valid_rows && k < tile.columns && k < tile.valid_columns;
          const uint64_t place = at + t * kApart + r * tile.row_stride + k * tile.column_stride;
          expected_all[at + t * kApart + r * kColumns + k] = valid ? theirs[place] : other;
          if (valid) expected_some[place] = theirs[place];
        }
      }
    }
    EXPECT_EQ(Differ(rank.Read(all, kCount), expected_all), -1);
    EXPECT_EQ(Differ(rank.Read(some, kCount), expected_some), -1);
    rank.HostBarrier();
  });
}

TEST(TileRegistersTest, WholeRowsMove16BytesAtATime) {
  CheckRegisters<float, 4, 8>({4, 8, 12}, 0);
  CheckRegisters<float, 4, 8>({4, 8, 12, 1, 3}, 4);
}
TEST(TileRegistersTest, UnalignedAndMasked) {
  CheckRegisters<float, 4, 8>({4, 8, 13}, 1);
  CheckRegisters<float, 4, 8>({4, 8, 12, 1, 9, 5}, 0);
  CheckRegisters<float, 4, 8>({3, 7, 9, 1, 0, 5}, 0);
}
TEST(TileRegistersTest, ByColumns) { CheckRegisters<float, 4, 8>({4, 8, 1, 5, 3}, 2); }
TEST(TileRegistersTest, TheLargest) {
  CheckRegisters<float, 2, 32>({2, 32, 64}, 0);
  CheckRegisters<float, 2, 32>({2, 31, 67, 1, 2, 30}, 1);
  CheckRegisters<uint8_t, 32, 2>({32, 2, 4}, 0);
}
TEST(TileRegistersTest, Narrow) { CheckRegisters<Half, 2, 3>({2, 3, 9}, 3); }

}  // namespace
}  // namespace iris::conformance
