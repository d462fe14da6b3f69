// Tiles: rectangles of a matrix in a heap, moved by a thread, a warp or a block.
//
//   // 32 x 32 of a matrix of n_rows x n_columns, which may end inside the tile:
//   const Tile tile = {32, 32, n_columns, 1, n_rows - row, n_columns - column};
//   LoadTile(ctx, peer, matrix + row * n_columns + column, tile, shared, Block{});
//   backend::BlockSync();
//
// Elements outside of the valid rows and columns are masked: never read or written in the heap.
// If strides and addresses allow, 16 bytes move at a time, also if both sides are column-major
// (row_stride 1). A transposition moves element by element.
//
// T: trivially copyable, 1, 2, 4, 8 or 16 bytes; all pointers are aligned to sizeof(T). The first
// argument is the DeviceContext or HeapBases. A cache hint applies to the peer's side. As Copy, the
// calls have no barrier: use BlockSync, WarpSync or a signal before another thread reads the tile.
// The two sides must not overlap. collective/tile.h has collectives.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/check.h"
#include "iris/impl/coop.h"
#include "iris/impl/copy.h"
#include "iris/impl/tile.h"
#include "iris/types.h"

namespace iris {

// A rectangle of a matrix, which begins at the pointer passed with it.
struct Tile {
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint64_t row_stride = 0;     // elements from a row to the next
  uint64_t column_stride = 1;  // elements from a column to the next
  // Rows and columns that the matrix has from the tile's beginning on: all others are masked.
  uint64_t valid_rows = ~uint64_t{0};
  uint64_t valid_columns = ~uint64_t{0};
};

// Elements from a row to the next, and from a column to the next, in the memory that GetTile writes
// and PutTile reads.
struct TileStrides {
  uint64_t row;
  uint64_t column = 1;
};

// Reads a tile from the heap of `peer` into `local`, dense and in any memory. Masked elements
// become `other`. All threads of `coop` call it with the same arguments.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void LoadTile(const Heaps& heaps, uint32_t peer, const T* src, const Tile& tile,
                                 typename impl::NotDeduced<T>::Type* local, Coop coop = Coop{},
                                 typename impl::NotDeduced<T>::Type other = T()) {
  const auto [rows, columns, from] = impl::PartOf<T>(tile);
  const T* theirs = impl::OfPeer<sizeof(T)>(heaps, peer, src,
                                            impl::TileBytes<T>(from, rows, columns), "LoadTile");
  impl::CopyTile<H, CacheHint::kDefault>(local, {tile.columns, 1}, theirs, from, from, rows,
                                         columns, coop);
  impl::FillRest(local, tile.rows, tile.columns, rows, columns, other, coop);
}

// Reads a tile into registers of the calling thread. Elements beyond the tile become `other`, too.
// At most 32 rows, 32 columns and 256 bytes, where an element counts at least 4, since the compiler
// unrolls all loops. The kernel must use the values by constant indices.
template <CacheHint H = CacheHint::kDefault, typename T, typename Heaps, uint32_t kRows,
          uint32_t kColumns, typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void LoadTile(const Heaps& heaps, uint32_t peer, const T* src, const Tile& tile,
                                 T (&values)[kRows][kColumns],
                                 typename impl::NotDeduced<T>::Type other = T()) {
  const auto [rows, columns, from] = impl::PartOf<T, kRows, kColumns>(tile);
  const T* theirs = impl::OfPeer<sizeof(T)>(heaps, peer, src,
                                            impl::TileBytes<T>(from, rows, columns), "LoadTile");
  impl::LoadRegisters<H>(theirs, from, rows, columns, values, other);
}

// Writes a tile into the heap of `peer` from `local`, dense. Masked elements are left as they are.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void StoreTile(const Heaps& heaps, uint32_t peer, T* dst, const Tile& tile,
                                  const typename impl::NotDeduced<T>::Type* local,
                                  Coop coop = Coop{}) {
  const auto [rows, columns, to] = impl::PartOf<T>(tile);
  T* theirs =
      impl::OfPeer<sizeof(T)>(heaps, peer, dst, impl::TileBytes<T>(to, rows, columns), "StoreTile");
  impl::CopyTile<CacheHint::kDefault, H>(theirs, to, local, {tile.columns, 1}, to, rows, columns,
                                         coop);
}

// Writes a tile from registers of the calling thread.
template <CacheHint H = CacheHint::kDefault, typename T, typename Heaps, uint32_t kRows,
          uint32_t kColumns, typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void StoreTile(const Heaps& heaps, uint32_t peer, T* dst, const Tile& tile,
                                  const T (&values)[kRows][kColumns]) {
  const auto [rows, columns, to] = impl::PartOf<T, kRows, kColumns>(tile);
  T* theirs =
      impl::OfPeer<sizeof(T)>(heaps, peer, dst, impl::TileBytes<T>(to, rows, columns), "StoreTile");
  impl::StoreRegisters<H>(theirs, to, rows, columns, values);
}

// Copies a tile of the heap of `peer` to `dst`, any memory. Masked elements are not touched.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void GetTile(const Heaps& heaps, uint32_t peer, T* dst,
                                const TileStrides& dst_strides,
                                const typename impl::NotDeduced<T>::Type* src, const Tile& src_tile,
                                Coop coop = Coop{}) {
  const auto [rows, columns, from] = impl::PartOf<T>(src_tile);
  const impl::Steps to = {dst_strides.row, dst_strides.column};
  const T* theirs =
      impl::OfPeer<sizeof(T)>(heaps, peer, src, impl::TileBytes<T>(from, rows, columns), "GetTile");
  T* mine = impl::AnyAddress(heaps, dst, impl::TileBytes<T>(to, rows, columns), "GetTile");
  impl::CopyTile<H, CacheHint::kDefault>(mine, to, theirs, from, from, rows, columns, coop);
}

// Copies a tile from `src`, any memory, to the heap of `peer`. Masked elements are not touched.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void PutTile(const Heaps& heaps, uint32_t peer, T* dst, const Tile& dst_tile,
                                const typename impl::NotDeduced<T>::Type* src,
                                const TileStrides& src_strides, Coop coop = Coop{}) {
  const auto [rows, columns, to] = impl::PartOf<T>(dst_tile);
  const impl::Steps from = {src_strides.row, src_strides.column};
  T* theirs =
      impl::OfPeer<sizeof(T)>(heaps, peer, dst, impl::TileBytes<T>(to, rows, columns), "PutTile");
  const T* mine = impl::AnyAddress(heaps, src, impl::TileBytes<T>(from, rows, columns), "PutTile");
  impl::CopyTile<CacheHint::kDefault, H>(theirs, to, mine, from, to, rows, columns, coop);
}

}  // namespace iris
