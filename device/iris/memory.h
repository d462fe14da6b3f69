// Loads, stores and copies of plain data in the heaps of peers. These accesses have no order: after
// a barrier, a signal or an atomic, other ranks may read the data. To poll, use signal.h; a plain
// load in a loop may never see a change.
//
// Load, Store and Copy reach the ranks of this node (Reaches in translate.h). Put and Get also
// reach those of other nodes, through the port: there the other side of the call must lie in the
// caller's heap, too, or be a Put of up to 8 bytes, or a Get of an aligned word of 4 or 8 bytes.
// One thread makes the call for the coop. If it fails, because the job is aborted or time is up,
// the next Quiet(ctx) says so (fence.h).
//
// The first argument is the DeviceContext, or HeapBases (heap_bases.h). Every call has a cache hint
// as its first template argument. mask.h has calls with conditions, tile.h has calls for tiles of a
// matrix.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/impl/check.h"
#include "iris/impl/copy.h"
#include "iris/impl/port.h"
#include "iris/impl/trace.h"
#include "iris/translate.h"
#include "iris/types.h"

namespace iris {

// Reads a T (trivially copyable; 1, 2, 4, 8 or 16 bytes, aligned) from the heap of `peer`, which
// may be the caller. Up to 8 bytes do not tear. With kVolatile a load also sees what a peer wrote
// since an earlier load.
template <CacheHint H = CacheHint::kDefault, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T Load(const Heaps& ctx, uint32_t peer, const T* src) {
  return impl::LoadValue<H>(impl::OfPeer<sizeof(T)>(ctx, peer, src, sizeof(T), "Load"));
}

// Writes a T into the heap of `peer`, with the types and guarantees of Load.
template <CacheHint H = CacheHint::kDefault, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void Store(const Heaps& ctx, uint32_t peer, T* dst,
                              typename impl::NotDeduced<T>::Type value) {
  impl::StoreValue<H>(impl::OfPeer<sizeof(T)>(ctx, peer, dst, sizeof(T), "Store"),
                      static_cast<T>(value));
}

// Copies `count` elements between any two addresses; elements of void are bytes. All threads of
// `coop` call it with the same arguments and share the work. Any alignment is allowed: Copy moves
// 16 bytes at a time if both sides allow that, else 8, 4, 2 or 1, and never accesses a byte outside
// the ranges. The ranges must not overlap, unless they are the same.
//
// There is no barrier: when Copy returns in a thread, that thread has copied its part. Use
// BlockSync, WarpSync or a signal before another thread reads the result or overwrites the source.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread,
          typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void Copy(T* dst, const typename impl::NotDeduced<T>::Type* src, uint64_t count,
                             Coop coop = Coop{}) {
  impl::CopyBytes<H>(dst, src, impl::BytesOf<T>(count), coop);
}

// Copies from the heap of `src_peer` to that of `dst_peer`, by addresses in the caller's heap.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void Copy(const Heaps& ctx, uint32_t dst_peer, T* dst, uint32_t src_peer,
                             const typename impl::NotDeduced<T>::Type* src, uint64_t count,
                             Coop coop = Coop{}) {
  const uint64_t bytes = impl::BytesOf<T>(count);
  impl::CopyBytes<H>(impl::OfPeer<1>(ctx, dst_peer, dst, bytes, "Copy"),
                     impl::OfPeer<1>(ctx, src_peer, src, bytes, "Copy"), bytes, coop);
}

// Copies as Copy does, from `src`, any address that the caller can read, to the heap of `peer`.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void Put(const Heaps& ctx, uint32_t peer, T* dst,
                            const typename impl::NotDeduced<T>::Type* src, uint64_t count,
                            Coop coop = Coop{}) {
  const uint64_t bytes = impl::BytesOf<T>(count);
  const impl::SpanOf<Coop, Heaps> span(ctx, TraceOp::kPut, peer, bytes, 0, coop);
  if (impl::OnPort(ctx, peer)) {
    if (impl::CoopIndex(coop) == 0) {
      impl::PortPut(ctx, peer, dst, src, bytes, nullptr, 0, SignalOp::kSet, "Put");
    }
    return;
  }
  impl::CopyBytes<H>(impl::OfPeer<1>(ctx, peer, dst, bytes, "Put"),
                     impl::AnyAddress(ctx, src, bytes, "Put"), bytes, coop);
}

// Copies as Copy does, from the heap of `peer` to `dst`, any address that the caller can write.
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void Get(const Heaps& ctx, uint32_t peer, T* dst,
                            const typename impl::NotDeduced<T>::Type* src, uint64_t count,
                            Coop coop = Coop{}) {
  const uint64_t bytes = impl::BytesOf<T>(count);
  const impl::SpanOf<Coop, Heaps> span(ctx, TraceOp::kGet, peer, bytes, 0, coop);
  if (impl::OnPort(ctx, peer)) {
    if (impl::CoopIndex(coop) == 0) impl::PortGet(ctx, peer, dst, src, bytes, "Get");
    return;
  }
  impl::CopyBytes<H>(impl::AnyAddress(ctx, dst, bytes, "Get"),
                     impl::OfPeer<1>(ctx, peer, src, bytes, "Get"), bytes, coop);
}

// With Strided, Put and Get copy rows of a matrix, which must not overlap:
//
//   Put(ctx, peer, column, matrix + 3, Strided{n_rows, 1, 1, n_columns}, Block{});  // column 3
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void Put(const Heaps& ctx, uint32_t peer, T* dst,
                            const typename impl::NotDeduced<T>::Type* src, const Strided& rows,
                            Coop coop = Coop{}) {
  if (impl::OnPort(ctx, peer)) {
    if (impl::CoopIndex(coop) == 0) {
      impl::PortCopyRows(ctx, peer, /*puts=*/true, dst, src, impl::InBytes<T>(rows), "Put");
    }
    return;
  }
  impl::CopyRows<H>(
      impl::OfPeer<1>(ctx, peer, dst, impl::SpanBytes<T>(rows, rows.dst_stride), "Put"),
      impl::AnyAddress(ctx, src, impl::SpanBytes<T>(rows, rows.src_stride), "Put"), rows, coop);
}
template <CacheHint H = CacheHint::kDefault, typename T, typename Coop = Thread, typename Heaps,
          typename = impl::IfHeaps<Heaps>, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline void Get(const Heaps& ctx, uint32_t peer, T* dst,
                            const typename impl::NotDeduced<T>::Type* src, const Strided& rows,
                            Coop coop = Coop{}) {
  if (impl::OnPort(ctx, peer)) {
    if (impl::CoopIndex(coop) == 0) {
      impl::PortCopyRows(ctx, peer, /*puts=*/false, dst, src, impl::InBytes<T>(rows), "Get");
    }
    return;
  }
  impl::CopyRows<H>(
      impl::AnyAddress(ctx, dst, impl::SpanBytes<T>(rows, rows.dst_stride), "Get"),
      impl::OfPeer<1>(ctx, peer, src, impl::SpanBytes<T>(rows, rows.src_stride), "Get"), rows,
      coop);
}

}  // namespace iris
