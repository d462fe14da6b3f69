// Bodies of tile.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/impl/coop.h"
#include "iris/impl/copy.h"
#include "iris/types.h"

namespace iris::impl {

template <typename T>
inline constexpr bool kIsTileElement = std::is_trivially_copyable_v<T> &&
                                       (sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 ||
                                        sizeof(T) == 8 || sizeof(T) == 16);

// Elements from a row to the next, and from a column to the next.
struct Steps {
  uint64_t row;
  uint64_t column;
};

IRIS_HOST_DEVICE constexpr uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }

// Returns the bytes from the beginning of the first element to the end of the last one.
template <typename T>
IRIS_HOST_DEVICE constexpr uint64_t TileBytes(Steps steps, uint64_t rows, uint64_t columns) {
  return rows == 0 || columns == 0
             ? 0
             : ((rows - 1) * steps.row + (columns - 1) * steps.column + 1) * sizeof(T);
}

// The unmasked part of a tile.
struct TilePart {
  uint64_t rows;
  uint64_t columns;
  Steps steps;
};
template <typename T, typename Tile>
IRIS_HOST_DEVICE constexpr TilePart PartOf(const Tile& tile) {
  static_assert(kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
  return {Least(tile.rows, tile.valid_rows),
          Least(tile.columns, tile.valid_columns),
          {tile.row_stride, tile.column_stride}};
}

// Element by element. Neighbouring threads have neighbouring elements of the far side.
template <CacheHint L, CacheHint S, typename T, typename Coop>
IRIS_DEVICE inline void CopyElements(T* dst, Steps to, const T* src, Steps from, Steps far,
                                     uint64_t rows, uint64_t columns, Coop coop) {
  const bool down = far.row < far.column;
  const uint64_t inner = down ? rows : columns;
  const uint32_t n = CoopSize(coop);
  for (uint64_t i = CoopIndex(coop); i < rows * columns; i += n) {
    const uint64_t line = i / inner;
    const uint64_t at = i - line * inner;
    const uint64_t row = down ? at : line;
    const uint64_t column = down ? line : at;
    StoreValue<S>(dst + row * to.row + column * to.column,
                  LoadValue<L>(src + row * from.row + column * from.column));
  }
}

// `far` is the layout of the side that is in another heap: that of dst or of src.
template <CacheHint L, CacheHint S, typename T, typename Coop>
IRIS_DEVICE inline void CopyTile(T* dst, Steps to, const T* src, Steps from, Steps far,
                                 uint64_t rows, uint64_t columns, Coop coop) {
  if (rows == 0 || columns == 0) return;
  // One call of CopyRows, which is much code: rows, or columns, or all of it as one row.
  Strided lines = {rows, columns, to.row, from.row};
  if (to.column != 1 || from.column != 1) {
    if (to.row != 1 || from.row != 1) {
      CopyElements<L, S>(dst, to, src, from, far, rows, columns, coop);
      return;
    }
    lines = {columns, rows, to.column, from.column};
  }
  if (lines.dst_stride == lines.length && lines.src_stride == lines.length) {
    lines = {1, rows * columns, rows * columns, rows * columns};
  }
  CopyRows<L, S>(dst, src, lines, coop);
}

// Fills a dense tile with `value` outside of its first `rows` rows and `columns` columns.
template <typename T, typename Coop>
IRIS_DEVICE inline void FillRest(T* tile, uint64_t tile_rows, uint64_t tile_columns, uint64_t rows,
                                 uint64_t columns, T value, Coop coop) {
  if (rows == tile_rows && columns == tile_columns) return;
  const uint32_t n = CoopSize(coop);
  for (uint64_t i = CoopIndex(coop); i < tile_rows * tile_columns; i += n) {
    const uint64_t row = i / tile_columns;
    if (row >= rows || i - row * tile_columns >= columns) {
      StoreValue<CacheHint::kDefault>(tile + i, value);
    }
  }
}

// 16 bytes of a row, in registers.
template <typename T>
struct RowPart {
  T values[16 / sizeof(T)];
};

// All loops of a tile in registers are unrolled, so that each element keeps its register.
inline constexpr uint32_t kRegisterTileSide = 32;
inline constexpr uint64_t kRegisterTileBytes = 256;

template <typename T, uint32_t kRows, uint32_t kColumns>
inline constexpr bool kFitsRegisters = kRows <= kRegisterTileSide&& kColumns <=
                                       kRegisterTileSide&& uint64_t{kRows} *
                                           kColumns*(sizeof(T) < 4 ? 4 : sizeof(T)) <=
                                       kRegisterTileBytes;

// The elements of a tile that a thread has in registers.
template <typename T, uint32_t kRows, uint32_t kColumns, typename Tile>
IRIS_HOST_DEVICE constexpr TilePart PartOf(const Tile& tile) {
  static_assert(kFitsRegisters<T, kRows, kColumns>,
                "a tile in registers has at most 32 rows, 32 columns and 256 bytes (an element "
                "counts at least 4): keep larger ones in shared memory");
  static_assert(kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
  return {Least(Least(tile.rows, tile.valid_rows), kRows),
          Least(Least(tile.columns, tile.valid_columns), kColumns),
          {tile.row_stride, tile.column_stride}};
}

// True if rows of kColumns elements can be moved 16 bytes at a time.
template <uint32_t kColumns, typename T>
IRIS_DEVICE inline bool MovesWhole(const T* p, Steps steps, uint64_t columns) {
  return kColumns * sizeof(T) % 16 == 0 && steps.column == 1 && columns == kColumns &&
         ((reinterpret_cast<uint64_t>(p) | (steps.row * sizeof(T))) & 15) == 0;
}

template <CacheHint H, typename T, uint32_t kRows, uint32_t kColumns>
IRIS_DEVICE inline void LoadRegisters(const T* src, Steps steps, uint64_t rows, uint64_t columns,
                                      T (&values)[kRows][kColumns], T other) {
  constexpr uint32_t kPart = 16 / sizeof(T);
  if (MovesWhole<kColumns>(src, steps, columns)) {
    IRIS_UNROLL(32)
    for (uint32_t r = 0; r < kRows; ++r) {
      IRIS_UNROLL(32)
      for (uint32_t c = 0; c + kPart <= kColumns; c += kPart) {
        RowPart<T> part;
        if (r < rows) {
          part = LoadValue<H>(reinterpret_cast<const RowPart<T>*>(src + r * steps.row + c));
        } else {
          IRIS_UNROLL(16)
          for (uint32_t k = 0; k < kPart; ++k) part.values[k] = other;
        }
        IRIS_UNROLL(16)
        for (uint32_t k = 0; k < kPart; ++k) values[r][c + k] = part.values[k];
      }
    }
    return;
  }
  IRIS_UNROLL(32)
  for (uint32_t r = 0; r < kRows; ++r) {
    IRIS_UNROLL(32)
    for (uint32_t c = 0; c < kColumns; ++c) {
      values[r][c] =
          r < rows && c < columns ? LoadValue<H>(src + r * steps.row + c * steps.column) : other;
    }
  }
}

template <CacheHint H, typename T, uint32_t kRows, uint32_t kColumns>
IRIS_DEVICE inline void StoreRegisters(T* dst, Steps steps, uint64_t rows, uint64_t columns,
                                       const T (&values)[kRows][kColumns]) {
  constexpr uint32_t kPart = 16 / sizeof(T);
  if (MovesWhole<kColumns>(dst, steps, columns)) {
    IRIS_UNROLL(32)
    for (uint32_t r = 0; r < kRows; ++r) {
      IRIS_UNROLL(32)
      for (uint32_t c = 0; c + kPart <= kColumns; c += kPart) {
        if (r >= rows) continue;
        RowPart<T> part;
        IRIS_UNROLL(16)
        for (uint32_t k = 0; k < kPart; ++k) part.values[k] = values[r][c + k];
        StoreValue<H>(reinterpret_cast<RowPart<T>*>(dst + r * steps.row + c), part);
      }
    }
    return;
  }
  IRIS_UNROLL(32)
  for (uint32_t r = 0; r < kRows; ++r) {
    IRIS_UNROLL(32)
    for (uint32_t c = 0; c < kColumns; ++c) {
      if (r < rows && c < columns) {
        StoreValue<H>(dst + r * steps.row + c * steps.column, values[r][c]);
      }
    }
  }
}

}  // namespace iris::impl
