// Tiles with a signal after them, which a kernel sends to another rank.
//
//   // A block has made a tile of a GEMM in shared memory, and signals the peer:
//   backend::BlockSync();
//   StoreTileSignal(ctx, peer, d + row * n + column, tile, &shared[0], {ready, 1, SignalOp::kAdd},
//                   Block{});
//
// The signal releases: a thread that waits for it (signal.h) sees the whole tile, and everything
// that the caller saw or wrote before. T, Tile, strides, masks and hints are those of tile.h. The
// first argument is the DeviceContext or HeapBases.
//
// BulkStoreTileSignal and BulkTileQueue send tiles from shared memory by the device's copy unit, if
// it has one (backend/bulk.h), so that the threads are free meanwhile.
#pragma once

#include <cstdint>

#include "iris/backend/bulk.h"
#include "iris/backend/select.h"
#include "iris/impl/check.h"
#include "iris/impl/coop.h"
#include "iris/impl/mutation.h"
#include "iris/impl/tile.h"
#include "iris/impl/trace.h"
#include "iris/signal.h"
#include "iris/tile.h"
#include "iris/types.h"

namespace iris {

namespace impl {

// Syncs the set of threads, and signals from one of them, so that the signal follows their data.
template <typename Heaps, typename Coop>
IRIS_DEVICE inline void TellBehind(const Heaps& heaps, uint32_t peer, const SignalTo& signal,
                                   Coop coop) {
  CoopSyncBeforePublish(coop);
  if (CoopIndex(coop) != 0) return;
  SendSignal(heaps, peer, signal.word, signal.value, signal.op);
}

// Returns the bytes that a tile moves, without masked elements.
template <typename T>
IRIS_HOST_DEVICE constexpr uint64_t MovedBytes(const Tile& tile) {
  return Least(tile.rows, tile.valid_rows) * Least(tile.columns, tile.valid_columns) * sizeof(T);
}

// Starts bulk copies of a dense tile's rows. Returns false if the tile does not allow them.
template <typename T, typename Coop>
IRIS_DEVICE inline bool StartBulkRows(T* theirs, const Tile& tile, const T* shared, Coop coop) {
  const uint64_t rows = Least(tile.rows, tile.valid_rows);
  const uint64_t columns = Least(tile.columns, tile.valid_columns);
  constexpr uint64_t kMask = backend::kBulkAlignmentBytes - 1;
  uint64_t row_bytes = columns * sizeof(T);
  const uint64_t to_bytes = tile.row_stride * sizeof(T);
  const uint64_t from_bytes = tile.columns * sizeof(T);
  const uint64_t all = reinterpret_cast<uint64_t>(theirs) | reinterpret_cast<uint64_t>(shared) |
                       row_bytes | (rows > 1 ? to_bytes | from_bytes : 0);
  if ((all & kMask) != 0 || (columns > 1 && tile.column_stride != 1)) return false;
  if (row_bytes > backend::kBulkMaxBytes) return false;
  uint64_t copies = rows;
  if (to_bytes == row_bytes && from_bytes == row_bytes &&
      rows * row_bytes <= backend::kBulkMaxBytes) {
    copies = rows == 0 ? 0 : 1;
    row_bytes *= rows;
  }
  if (row_bytes == 0) return true;
  const uint32_t n = CoopSize(coop);
  for (uint64_t row = CoopIndex(coop); row < copies; row += n) {
    backend::BulkStore(reinterpret_cast<char*>(theirs) + row * to_bytes,
                       reinterpret_cast<const char*>(shared) + row * from_bytes,
                       static_cast<uint32_t>(row_bytes));
  }
  return true;
}

}  // namespace impl

// Does StoreTile of a dense tile at `local`, in any memory, then signals. All threads of `coop`
// call it with the same arguments; the tile may be overwritten once they have synced.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void StoreTileSignal(const Heaps& heaps, uint32_t peer, T* dst, const Tile& tile,
                                        const typename impl::NotDeduced<T>::Type* local,
                                        const SignalTo& signal, Coop coop = Coop{}) {
  const impl::SpanOf<Coop, Heaps> span(heaps, TraceOp::kPutSignal, peer, impl::MovedBytes<T>(tile),
                                       signal.value, coop);
  StoreTile<H>(heaps, peer, dst, tile, local, coop);
  impl::TellBehind(heaps, peer, signal, coop);
}

// Does PutTile of a tile in any memory, with its own strides, then signals.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void PutTileSignal(const Heaps& heaps, uint32_t peer, T* dst,
                                      const Tile& dst_tile,
                                      const typename impl::NotDeduced<T>::Type* src,
                                      const TileStrides& src_strides, const SignalTo& signal,
                                      Coop coop = Coop{}) {
  const impl::SpanOf<Coop, Heaps> span(heaps, TraceOp::kPutSignal, peer,
                                       impl::MovedBytes<T>(dst_tile), signal.value, coop);
  PutTile<H>(heaps, peer, dst, dst_tile, src, src_strides, coop);
  impl::TellBehind(heaps, peer, signal, coop);
}

// Does StoreTileSignal from shared memory, by bulk copies if the device has them and the tile
// allows them: rows are contiguous on both sides, and both addresses, the strides and the bytes of
// a (valid) row are multiples of 16. Otherwise it uses 16-byte or shorter stores.
//
// The threads that have written the tile call backend::BulkPublishShared and sync before; those of
// `coop` may be others. When the call returns in a thread, the thread's part of the tile has left
// shared memory and is at the peer; the others of `coop` may overwrite the tile after a sync.
template <typename T, typename Coop = Thread, typename Heaps, typename = impl::IfHeaps<Heaps>,
          typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void BulkStoreTileSignal(const Heaps& heaps, uint32_t peer, T* dst,
                                            const Tile& tile,
                                            const typename impl::NotDeduced<T>::Type* shared,
                                            const SignalTo& signal, Coop coop = Coop{}) {
  static_assert(impl::kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
  const impl::SpanOf<Coop, Heaps> span(heaps, TraceOp::kPutSignal, peer, impl::MovedBytes<T>(tile),
                                       signal.value, coop);
  if constexpr (backend::HasBulkCopies()) {
    const impl::Steps to = {tile.row_stride, tile.column_stride};
    T* theirs =
        impl::OfPeer<sizeof(T)>(heaps, peer, dst,
                                impl::TileBytes<T>(to, impl::Least(tile.rows, tile.valid_rows),
                                                   impl::Least(tile.columns, tile.valid_columns)),
                                "BulkStoreTileSignal");
    if (impl::StartBulkRows(theirs, tile, shared, coop)) {
      backend::BulkCommit();
      backend::BulkAwait();
      impl::TellBehind(heaps, peer, signal, coop);
      return;
    }
  }
  StoreTile(heaps, peer, dst, tile, shared, coop);
  impl::TellBehind(heaps, peer, signal, coop);
}

// One thread sends tiles one after another by bulk copies, with up to kInFlight of them in flight.
// It waits for a tile, and signals it to the peer, in Store of the kInFlight-th tile after it, or
// in Finish. For a thread that only sends, while others make tiles (see ring.h).
//
//   BulkTileQueue<2> queue;                                     // one thread
//   for (...) {
//     ... a tile is complete in shared memory ...
//     queue.Store(ctx, peer, dst, tile, shared, {ready, 1, SignalOp::kAdd});
//     // The tile of the call kInFlight calls ago is at the peer: its memory may be used again.
//   }
//   queue.Finish(ctx);
//
// As for BulkStoreTileSignal, the threads that have written a tile call backend::BulkPublishShared
// and sync before. The thread itself stores, in order, a tile that bulk copies cannot move. All
// calls use the same `Heaps`.
template <uint32_t kInFlight>
class BulkTileQueue {
  static_assert(kInFlight >= 1 && kInFlight <= 8, "1 to 8 tiles under way");

 public:
  BulkTileQueue() = default;

  // Starts to send the tile. If kInFlight are in flight, first waits for the oldest and signals it.
  template <typename T, typename Heaps, typename = impl::IfHeaps<Heaps>>
  IRIS_DEVICE void Store(const Heaps& heaps, uint32_t peer, T* dst, const Tile& tile,
                         const typename impl::NotDeduced<T>::Type* shared, const SignalTo& signal) {
    static_assert(impl::kIsTileElement<T>, "a tile has elements of 1, 2, 4, 8 or 16 bytes");
    if (n_ == kInFlight) Tell(heaps);
    bool started = false;
    if constexpr (backend::HasBulkCopies()) {
      const impl::Steps to = {tile.row_stride, tile.column_stride};
      T* theirs =
          impl::OfPeer<sizeof(T)>(heaps, peer, dst,
                                  impl::TileBytes<T>(to, impl::Least(tile.rows, tile.valid_rows),
                                                     impl::Least(tile.columns, tile.valid_columns)),
                                  "BulkTileQueue::Store");
      started = impl::StartBulkRows(theirs, tile, shared, Thread{});
    }
    if (!started) StoreTile(heaps, peer, dst, tile, shared);
    backend::BulkCommit();  // even without copies: there is a group for each tile
    // The loop moves all entries, because a variable index would put the array into memory.
    IRIS_UNROLL(8)
    for (uint32_t i = kInFlight; i > 1; --i) told_[i - 1] = told_[i - 2];
    told_[0] = {signal, peer};
    ++n_;
  }

  // Waits until the last tile that was given to Store, and all before it, have left shared memory.
  IRIS_DEVICE void AwaitRead() { backend::BulkAwaitRead(); }

  // Waits for all tiles in flight, and signals them.
  template <typename Heaps, typename = impl::IfHeaps<Heaps>>
  IRIS_DEVICE void Finish(const Heaps& heaps) {
    while (n_ != 0) Tell(heaps);
  }

 private:
  struct Told {
    SignalTo signal;
    uint32_t peer;
  };

  // Waits for the oldest tile, and thus for all groups but the n_ - 1 after it, and signals it. The
  // instruction takes a constant, so all cases are written out.
  template <typename Heaps>
  IRIS_DEVICE void Tell(const Heaps& heaps) {
    IRIS_UNROLL(8)
    for (uint32_t i = 0; i < kInFlight; ++i) {
      if (i + 1 != n_) continue;
      if (i == 0) backend::BulkAwait<0>();
      if (i == 1) backend::BulkAwait<1>();
      if (i == 2) backend::BulkAwait<2>();
      if (i == 3) backend::BulkAwait<3>();
      if (i == 4) backend::BulkAwait<4>();
      if (i == 5) backend::BulkAwait<5>();
      if (i == 6) backend::BulkAwait<6>();
      if (i == 7) backend::BulkAwait<7>();
      impl::TellBehind(heaps, told_[i].peer, told_[i].signal, Thread{});
    }
    --n_;
  }

  Told told_[kInFlight] = {};
  uint32_t n_ = 0;
};

}  // namespace iris
