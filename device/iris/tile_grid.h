// TileGrid: a matrix as a grid of tiles, of which the last ones may extend beyond its edges.
//
//   // Blocks take the tiles of D[m, n] round robin:
//   const TileGrid tiles(m, n, /*tile_rows=*/128, /*tile_columns=*/128);
//   for (uint32_t t = backend::BlockIndex(); t < tiles.size(); t += backend::GridSize()) {
//     const GridTile tile = tiles[t];
//     ... makes tile.rows x tile.columns elements in `shared`, whose rows have room for 128 ...
//     StoreTile(ctx, peer, d + tile.Offset(0, n), tile.Rows(0, 128, n), shared, Block{});
//   }
//
// A TileGrid only does arithmetic, on hosts and in kernels. TileProduct makes such tiles; StoreTile
// and others of tile.h move them.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/tile.h"

namespace iris {

// A tile of a TileGrid. Numbers are of elements; rows and columns count from 0.
struct GridTile {
  uint32_t row = 0;           // of the matrix, at which the tile begins
  uint32_t column = 0;        // of the matrix, at which the tile begins
  uint32_t rows = 0;          // of the tile inside the matrix: fewer at its lower edge
  uint32_t columns = 0;       // of the tile inside the matrix: fewer at its right edge
  uint32_t full_columns = 0;  // of a tile that no edge cuts

  // Returns the offset of row `below` of the tile in a matrix whose rows are `row_stride` apart.
  IRIS_HOST_DEVICE constexpr uint64_t Offset(uint32_t below, uint64_t row_stride) const {
    return (uint64_t{row} + below) * row_stride + column;
  }

  // Returns `n` rows of the tile, from row `below` on, as a Tile for tile.h; rows and columns past
  // the tile are masked. The local side has rows of full_columns elements.
  IRIS_HOST_DEVICE constexpr Tile Rows(uint32_t below, uint32_t n, uint64_t row_stride) const {
    return {n, full_columns, row_stride, 1, below < rows ? rows - below : 0u, columns};
  }
};

// The tiles of a matrix, numbered down the columns, so that neighbours share columns. A trivially
// copyable value. At most 2^32 - 1 tiles.
class TileGrid {
 public:
  // Makes a grid without tiles.
  TileGrid() = default;
  // Makes a grid of rows x columns elements in tiles of tile_rows x tile_columns, both at least 1.
  IRIS_HOST_DEVICE constexpr TileGrid(uint32_t rows, uint32_t columns, uint32_t tile_rows,
                                      uint32_t tile_columns)
      : rows_(rows),
        columns_(columns),
        tile_rows_(tile_rows),
        tile_columns_(tile_columns),
        down_(rows / tile_rows + (rows % tile_rows != 0)),
        size_(down_ * (columns / tile_columns + (columns % tile_columns != 0))) {}

  IRIS_HOST_DEVICE constexpr uint32_t size() const { return size_; }
  IRIS_HOST_DEVICE constexpr uint32_t down() const { return down_; }  // tiles in a column

  // Returns tile `t`, which is less than size().
  IRIS_HOST_DEVICE constexpr GridTile operator[](uint32_t t) const {
    const uint32_t row = t % down_ * tile_rows_, column = t / down_ * tile_columns_;
    return {row, column, Least(rows_ - row, tile_rows_), Least(columns_ - column, tile_columns_),
            tile_columns_};
  }

 private:
  IRIS_HOST_DEVICE static constexpr uint32_t Least(uint32_t a, uint32_t b) { return a < b ? a : b; }

  uint32_t rows_ = 0;
  uint32_t columns_ = 0;
  uint32_t tile_rows_ = 1;
  uint32_t tile_columns_ = 1;
  uint32_t down_ = 0;
  uint32_t size_ = 0;
};

}  // namespace iris
