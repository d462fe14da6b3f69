// Arguments of GEMM kernels, the tiles of D, and the layout of the workspace.
//
// The workspace begins where that of the collectives ends:
//
//   arrivals  [kArrivals]: a word for each panel of a rank's rows in all_gather_matmul: the number
//             of the operation in which it last arrived, from 1. Then the number of the last
//             operation, and the value that this rank's copies signal: that number, or 0 if the
//             ranks did not meet.
//   then one of
//   slots     [blocks][2][members - 1][kGroup]: tiles of sums on their way around the ring
//   gathered  [m, k rounded up to kPack]: the rows of all other ranks
//   parts     the results of kPair between its GEMM and its collective; see pair.cc
//
// No rank writes into the workspace for an operation before all ranks have reached that operation:
// each kernel begins with a round, and kernels of a rank do not overlap.
#pragma once

#include <cstdint>

#include "iris/backend/matrix.h"
#include "iris/backend/persistent_product.h"
#include "iris/backend/select.h"
#include "iris/ops/ops.h"
#include "iris/rounds/layout.h"

namespace iris::ops::impl {

using ccl::Operation;
using ccl::impl::Common;

inline constexpr uint32_t kPack = 8;  // elements of f16 or bf16 in 16 bytes
inline constexpr uint64_t kArrivals = 8192;
// A word after the arrivals: see LaunchEndOfReads.
inline constexpr uint64_t kDisturber = kArrivals + 2;
// The offset after these words, where a persistent GEMM keeps state from one launch to the next.
inline constexpr uint64_t kKeptAtBytes = kArrivals * sizeof(uint64_t) + 256;
inline constexpr uint64_t kArrivalBytes = kKeptAtBytes + backend::kPersistentKeptBytes;
// The most pieces in which a member's rows are copied. Copy engines are fast with large pieces.
inline constexpr uint32_t kCopiedPieces = 3;
// Tiles that a block sends around the ring before it waits for the result of the first one.
inline constexpr uint32_t kGroup = 2;

struct TileShape {
  uint32_t rows;
  uint32_t columns;
  uint32_t threads;  // of a block
};
template <typename T>
constexpr TileShape TileShapeOf() {
  using Unit = backend::MatrixUnit<T>;
  return {Unit::kTileRows, Unit::kTileColumns,
          Unit::kWarpRows * Unit::kWarpColumns * backend::Traits::kWarpThreads};
}
// f16 and bf16 have the same tiles.
inline constexpr TileShape kTile = TileShapeOf<Half>();
static_assert(kTile.rows == TileShapeOf<Bfloat16>().rows &&
              kTile.columns == TileShapeOf<Bfloat16>().columns &&
              kTile.threads == TileShapeOf<Bfloat16>().threads);

inline constexpr uint64_t kSlotBytes = uint64_t{kTile.rows} * kTile.columns * sizeof(float);

// IsSum: members' results are summed. IsToAll: a member's tiles go to all members.
IRIS_HOST_DEVICE constexpr bool IsSum(Operation operation) {
  return operation == Operation::kMatmulAllReduce || operation == Operation::kMatmulReduceScatter;
}
IRIS_HOST_DEVICE constexpr bool IsToAll(Operation operation) {
  return operation != Operation::kMatmulReduceScatter && operation != Operation::kAllGatherMatmul;
}

struct MatmulCall {
  const uint8_t* a;
  const uint8_t* b;
  const uint8_t* bias;  // null: none
  uint8_t* d;
  uint64_t lda;
  uint64_t ldb;
  uint64_t ldd;
  uint64_t workspace_offset_bytes;  // in every heap
  uint32_t m;
  uint32_t n;
  uint32_t k;
  DType out;
  DType bias_type;
  Activation activation;
  uint8_t transposed_b;
  uint8_t copied;  // all_gather_matmul: rows of A come by the copy engine
};

// A part of D that one member computes from its A and B.
struct Area {
  uint32_t rows;
  uint32_t columns;
  uint32_t a_row;     // row in this member's A of the first element
  uint32_t b_column;  // column in its B, and in the bias
  uint32_t d_row;
  uint32_t d_column;
};

IRIS_HOST_DEVICE constexpr uint32_t CountTiles(const Area& area) {
  return (area.rows + kTile.rows - 1) / kTile.rows *
         ((area.columns + kTile.columns - 1) / kTile.columns);
}

// Returns tile t of an area. Tiles are numbered down the columns, so that blocks that run at the
// same time share columns of B.
IRIS_HOST_DEVICE constexpr Area TileOf(const Area& area, uint32_t t) {
  const uint32_t down = (area.rows + kTile.rows - 1) / kTile.rows;
  const uint32_t row = t % down * kTile.rows;
  const uint32_t column = t / down * kTile.columns;
  const uint32_t rows = area.rows - row;
  const uint32_t columns = area.columns - column;
  return {rows < kTile.rows ? rows : kTile.rows,
          columns < kTile.columns ? columns : kTile.columns,
          area.a_row + row,
          area.b_column + column,
          area.d_row + row,
          area.d_column + column};
}

// Returns the part of D that belongs to `owner`, in the A and B of the member that computes it.
IRIS_HOST_DEVICE constexpr Area AreaOf(Operation operation, uint32_t m, uint32_t n,
                                       uint32_t members, uint32_t owner) {
  const bool by_columns = operation == Operation::kMatmulAllScatter;
  const Share share = ShareOf(by_columns ? n : m, members, owner);
  const uint32_t begin = static_cast<uint32_t>(share.begin);
  const uint32_t count = static_cast<uint32_t>(share.count);
  switch (operation) {
    case Operation::kMatmulReduceScatter:
      return {count, n, begin, 0, 0, 0};
    case Operation::kAllGatherMatmul:
    case Operation::kMatmulAllGather:
      return {count, n, 0, 0, begin, 0};
    case Operation::kMatmulAllScatter:
      return {m, count, 0, 0, 0, begin};
    default:  // all of it
      return {m, n, 0, 0, 0, 0};
  }
}

// Returns the number of tiles whose sums end at a member: in matmul_all_reduce, every members-th
// tile.
IRIS_HOST_DEVICE constexpr uint32_t CountOwned(Operation operation, uint32_t m, uint32_t n,
                                               uint32_t members, uint32_t owner) {
  const uint32_t tiles = CountTiles(AreaOf(operation, m, n, members, owner));
  if (operation != Operation::kMatmulAllReduce) return tiles;
  return (tiles + members - 1 - owner) / members;
}
IRIS_HOST_DEVICE constexpr Area OwnedTile(Operation operation, uint32_t m, uint32_t n,
                                          uint32_t members, uint32_t owner, uint32_t j) {
  const uint32_t t = operation == Operation::kMatmulAllReduce ? j * members + owner : j;
  return TileOf(AreaOf(operation, m, n, members, owner), t);
}

// Returns the rows of a panel, which all_gather_matmul sends at once: full tiles, and enough of
// them that the arrival words suffice for all panels.
IRIS_HOST_DEVICE constexpr uint32_t PanelRows(uint32_t m, uint32_t members) {
  const uint64_t share = ShareOf(m, members, 0).count;
  const uint64_t tiles = (share + kTile.rows - 1) / kTile.rows;
  const uint64_t most = kArrivals / members;
  return static_cast<uint32_t>((tiles + most - 1) / most * kTile.rows);
}
IRIS_HOST_DEVICE constexpr uint32_t CountPanels(uint32_t rows, uint32_t panel_rows) {
  return (rows + panel_rows - 1) / panel_rows;
}
IRIS_HOST_DEVICE constexpr uint64_t GatheredStride(uint32_t k) {
  return ccl::impl::RoundUp(k, kPack);
}

}  // namespace iris::ops::impl
