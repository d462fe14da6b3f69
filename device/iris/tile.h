// Tiles: rectangles of a matrix in a heap, moved by a thread, a warp or a block.
//
//   // 32 x 32 of a matrix of n_rows x n_columns, which may end inside the tile:
//   const Tile tile = {32, 32, n_columns, 1, n_rows - row, n_columns - column};
//   LoadTile(ctx, peer, matrix + row * n_columns + column, tile, shared, Block{});
//   backend::BlockSync();
//
// What is outside of the valid rows and columns is masked: never read or written in the heap. Where
// strides and addresses allow, 16 bytes move at a time; a column-major matrix (row_stride 1) is as
// fast as a row-major one if both sides are, and a transposition moves element by element.
//
// T: trivially copyable, 1, 2, 4, 8 or 16 bytes; all pointers are aligned to sizeof(T). The first
// argument is the DeviceContext or HeapBases. A hint is for the side in the heap of the peer; the
// other side is accessed as by default. As Copy, the calls have no barrier, at the beginning or at
// the end: before another thread reads what was moved, BlockSync, WarpSync or a signal. The sides
// must not overlap.
//
// For collectives of tiles, see collective/tile.h.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/check.h"
#include "iris/impl/coop.h"
#include "iris/impl/copy.h"
#include "iris/impl/tile.h"
#include "iris/types.h"

namespace iris {

// A rectangle of a matrix, which begins where the pointer beside it points to.
struct Tile {
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t row_stride = 0;     // elements from a row to the next
  uint64_t column_stride = 1;  // elements from a column to the next
  // The rows and columns that the matrix has from the beginning of the tile on: the others are
  // masked. More than the tile has: all.
  uint64_t valid_rows = ~uint64_t{0};
  uint64_t valid_columns = ~uint64_t{0};
};

// How the other side of GetTile and PutTile lies in memory: elements from a row to the next, and
// from a column to the next.
struct TileStrides {
  uint64_t row;
  uint64_t column = 1;
};

// Reads a tile from the heap of `peer` into `local`: tile.rows x tile.columns elements, one row
// right behind the other, in shared memory or any other. Masked elements become `other`. All
// threads of `coop` call it with the same arguments.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void LoadTile(const Heaps& heaps, uint32_t peer, const T* src, const Tile& tile,
                                 typename impl::NotDeduced<T>::Type* local, Coop coop = Coop{},
                                 typename impl::NotDeduced<T>::Type other = T()) {
  static_assert(impl::kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
  const uint64_t rows = impl::Least(tile.rows, tile.valid_rows);
  const uint64_t columns = impl::Least(tile.columns, tile.valid_columns);
  const impl::Steps from = {tile.row_stride, tile.column_stride};
  const T* theirs = impl::OfPeer<sizeof(T)>(heaps, peer, src,
                                            impl::TileBytes<T>(from, rows, columns), "LoadTile");
  impl::CopyTile<H, CacheHint::kDefault>(local, {tile.columns, 1}, theirs, from, from, rows,
                                         columns, coop);
  impl::FillRest(local, tile.rows, tile.columns, rows, columns, other, coop);
}

// The same into registers of the calling thread: values[row][column]. The tile has at most kRows
// rows and kColumns columns; what is beyond it becomes `other`, too. It has 32 rows, 32 columns and
// 256 bytes at most, where an element counts at least 4: registers have no addresses, and so the
// compiler unrolls all loops. The kernel, too, must use the values by constant indices.
template <CacheHint H = CacheHint::kDefault, typename T, typename Heaps, uint32_t kRows,
          uint32_t kColumns, typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void LoadTile(const Heaps& heaps, uint32_t peer, const T* src, const Tile& tile,
                                 T (&values)[kRows][kColumns],
                                 typename impl::NotDeduced<T>::Type other = T()) {
  static_assert(impl::kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
  static_assert(impl::kFitsRegisters<T, kRows, kColumns>,
                "a tile in registers has at most 32 rows, 32 columns and 256 bytes (an element "
                "counts at least 4): keep larger ones in shared memory");
  const uint64_t rows = impl::Least(impl::Least(tile.rows, tile.valid_rows), kRows);
  const uint64_t columns = impl::Least(impl::Least(tile.columns, tile.valid_columns), kColumns);
  const impl::Steps from = {tile.row_stride, tile.column_stride};
  const T* theirs = impl::OfPeer<sizeof(T)>(heaps, peer, src,
                                            impl::TileBytes<T>(from, rows, columns), "LoadTile");
  impl::LoadRegisters<H>(theirs, from, rows, columns, values, other);
}

// Writes a tile into the heap of `peer` from `local`, which lies as that of LoadTile. What is
// masked is left as it is.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void StoreTile(const Heaps& heaps, uint32_t peer, T* dst, const Tile& tile,
                                  const typename impl::NotDeduced<T>::Type* local,
                                  Coop coop = Coop{}) {
  static_assert(impl::kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
  const uint64_t rows = impl::Least(tile.rows, tile.valid_rows);
  const uint64_t columns = impl::Least(tile.columns, tile.valid_columns);
  const impl::Steps to = {tile.row_stride, tile.column_stride};
  T* theirs =
      impl::OfPeer<sizeof(T)>(heaps, peer, dst, impl::TileBytes<T>(to, rows, columns), "StoreTile");
  impl::CopyTile<CacheHint::kDefault, H>(theirs, to, local, {tile.columns, 1}, to, rows, columns,
                                         coop);
}

// The same from registers of the calling thread.
template <CacheHint H = CacheHint::kDefault, typename T, typename Heaps, uint32_t kRows,
          uint32_t kColumns, typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void StoreTile(const Heaps& heaps, uint32_t peer, T* dst, const Tile& tile,
                                  const T (&values)[kRows][kColumns]) {
  static_assert(impl::kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
  static_assert(impl::kFitsRegisters<T, kRows, kColumns>,
                "a tile in registers has at most 32 rows, 32 columns and 256 bytes (an element "
                "counts at least 4): keep larger ones in shared memory");
  const uint64_t rows = impl::Least(impl::Least(tile.rows, tile.valid_rows), kRows);
  const uint64_t columns = impl::Least(impl::Least(tile.columns, tile.valid_columns), kColumns);
  const impl::Steps to = {tile.row_stride, tile.column_stride};
  T* theirs =
      impl::OfPeer<sizeof(T)>(heaps, peer, dst, impl::TileBytes<T>(to, rows, columns), "StoreTile");
  impl::StoreRegisters<H>(theirs, to, rows, columns, values);
}

// Copies a tile of the heap of `peer` to `dst`, any memory, which is laid out by `dst_strides`.
// What is masked is not touched, on both sides.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void GetTile(const Heaps& heaps, uint32_t peer, T* dst,
                                const TileStrides& dst_strides,
                                const typename impl::NotDeduced<T>::Type* src, const Tile& src_tile,
                                Coop coop = Coop{}) {
  static_assert(impl::kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
  const uint64_t rows = impl::Least(src_tile.rows, src_tile.valid_rows);
  const uint64_t columns = impl::Least(src_tile.columns, src_tile.valid_columns);
  const impl::Steps from = {src_tile.row_stride, src_tile.column_stride};
  const impl::Steps to = {dst_strides.row, dst_strides.column};
  const T* theirs =
      impl::OfPeer<sizeof(T)>(heaps, peer, src, impl::TileBytes<T>(from, rows, columns), "GetTile");
  T* mine = impl::AnyAddress(heaps, dst, impl::TileBytes<T>(to, rows, columns), "GetTile");
  impl::CopyTile<H, CacheHint::kDefault>(mine, to, theirs, from, from, rows, columns, coop);
}

// Copies a tile from `src`, any memory, which is laid out by `src_strides`, into the heap of
// `peer`. What is masked is not touched, on both sides.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void PutTile(const Heaps& heaps, uint32_t peer, T* dst, const Tile& dst_tile,
                                const typename impl::NotDeduced<T>::Type* src,
                                const TileStrides& src_strides, Coop coop = Coop{}) {
  static_assert(impl::kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
  const uint64_t rows = impl::Least(dst_tile.rows, dst_tile.valid_rows);
  const uint64_t columns = impl::Least(dst_tile.columns, dst_tile.valid_columns);
  const impl::Steps to = {dst_tile.row_stride, dst_tile.column_stride};
  const impl::Steps from = {src_strides.row, src_strides.column};
  T* theirs =
      impl::OfPeer<sizeof(T)>(heaps, peer, dst, impl::TileBytes<T>(to, rows, columns), "PutTile");
  const T* mine = impl::AnyAddress(heaps, src, impl::TileBytes<T>(from, rows, columns), "PutTile");
  impl::CopyTile<CacheHint::kDefault, H>(theirs, to, mine, from, to, rows, columns, coop);
}

}  // namespace iris
