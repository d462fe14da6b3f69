#include "iris/tile_grid.h"

#include <cstdint>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

namespace iris {
namespace {

static_assert(std::is_trivially_copyable_v<TileGrid>, "kernels get it by value");

TEST(TileGridTest, TilesAreNumberedDownTheColumns) {
  const TileGrid tiles(64, 96, 32, 48);
  EXPECT_EQ(tiles.size(), 4u);
  EXPECT_EQ(tiles.down(), 2u);
  EXPECT_EQ(tiles[1].row, 32u);
  EXPECT_EQ(tiles[1].column, 0u);
  EXPECT_EQ(tiles[2].row, 0u);
  EXPECT_EQ(tiles[2].column, 48u);
}

TEST(TileGridTest, EdgesCutTiles) {
  const GridTile last = TileGrid(70, 100, 32, 48)[8];
  EXPECT_EQ(last.row, 64u);
  EXPECT_EQ(last.column, 96u);
  EXPECT_EQ(last.rows, 6u);
  EXPECT_EQ(last.columns, 4u);
  EXPECT_EQ(last.full_columns, 48u);
}

TEST(TileGridTest, NoRowsOrNoColumnsAreNoTiles) {
  EXPECT_EQ(TileGrid().size(), 0u);
  EXPECT_EQ(TileGrid(0, 5, 4, 4).size(), 0u);
  EXPECT_EQ(TileGrid(5, 0, 4, 4).size(), 0u);
}

// Some rows of a GEMM's tile may lie below the matrix, for instance.
TEST(TileGridTest, RowsOutsideAreMasked) {
  const GridTile tile = TileGrid(70, 100, 64, 48)[1];  // of which 6 rows exist
  const Tile inside = tile.Rows(4, 32, 1000);
  EXPECT_EQ(inside.rows, 32u);
  EXPECT_EQ(inside.columns, 48u);
  EXPECT_EQ(inside.row_stride, 1000u);
  EXPECT_EQ(inside.column_stride, 1u);
  EXPECT_EQ(inside.valid_rows, 2u);
  EXPECT_EQ(inside.valid_columns, 48u);
  EXPECT_EQ(tile.Rows(6, 32, 1000).valid_rows, 0u);
  EXPECT_EQ(tile.Rows(32, 32, 1000).valid_rows, 0u);
  EXPECT_EQ(tile.Offset(4, 1000), 68u * 1000);
}

TEST(TileGridTest, OffsetsHave64Bits) {
  const uint32_t n = 1u << 20;
  const TileGrid tiles(n, n, 128, 128);
  const GridTile last = tiles[tiles.size() - 1];
  EXPECT_EQ(last.Offset(127, n), (uint64_t{n} - 1) * n + n - 128);
}

TEST(TileGridTest, EachElementIsInOneTile) {
  for (const uint32_t rows : {1u, 31u, 32u, 33u, 70u}) {
    for (const uint32_t columns : {1u, 48u, 49u}) {
      const TileGrid tiles(rows, columns, 32, 48);
      std::vector<int> seen(rows * columns);
      for (uint32_t t = 0; t < tiles.size(); ++t) {
        const GridTile tile = tiles[t];
        for (uint32_t r = 0; r < tile.rows; ++r) {
          for (uint32_t c = 0; c < tile.columns; ++c) ++seen[tile.Offset(r, columns) + c];
        }
      }
      EXPECT_EQ(seen, std::vector<int>(rows * columns, 1)) << rows << " x " << columns;
    }
  }
}

}  // namespace
}  // namespace iris
