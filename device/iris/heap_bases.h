// HeapBases replaces a DeviceContext in kernels that are not Iris's own and get a table of the
// heaps' addresses from Iris for Python (`heap_bases`) or Context::heap_bases().
//
//   IRIS_KERNEL void Foreign(const uint64_t* heap_bases, uint32_t rank, uint32_t to, int* x) {
//     const iris::HeapBases heaps = {heap_bases, rank};
//     iris::Store(heaps, to, x, 42);                    // x: an address in the heap of `rank`
//     iris::AtomicAdd(heaps, to, x + 1, 1);
//   }
//
// Load, Store, Get, Put, Copy (memory.h), the atomics (atomic.h), SignalSet, SignalAdd and
// PutSignal (signal.h), masks (mask.h) and tiles (tile.h) accept HeapBases. Pointers are addresses
// in the heap of `rank`, which need not be the rank that runs the kernel. A translation reads two
// words of the table. Waits and barriers need a DeviceContext's deadline and abort word; Test and
// TestEpoch (signal.h) need neither.
//
// The emulator checks the alignment; it checks the peer if `n_ranks` is set, and the range if
// `heap_bytes` is.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/check.h"
#include "iris/types.h"

namespace iris {

// Returns the address in the heap of `to` that corresponds to `p` in the heap of `from`.
template <typename T>
IRIS_HOST_DEVICE inline T* Translate(const HeapBases& heaps, uint32_t from, uint32_t to, T* p) {
  if constexpr (impl::kChecked) {
    if (heaps.n_ranks != 0 && (from >= heaps.n_ranks || to >= heaps.n_ranks)) {
      impl::Refuse(impl::AsContext(heaps), backend::BadAccess::Why::kPeer, "Translate",
                   to >= heaps.n_ranks ? to : from, heaps.rank, reinterpret_cast<uint64_t>(p), 0,
                   1);
    }
  }
  return impl::Moved(heaps, from, to, p);
}

// Returns the address in the heap of `to` that corresponds to `p` in the heap of `heaps.rank`.
template <typename T>
IRIS_HOST_DEVICE inline T* Translate(const HeapBases& heaps, uint32_t to, T* p) {
  return Translate(heaps, heaps.rank, to, p);
}

// Writes the table of a context: ctx.n_ranks words. Call it on the host, or in one thread.
IRIS_HOST_DEVICE inline void FillHeapBases(const DeviceContext& ctx, uint64_t* bases) {
  for (uint32_t r = 0; r < ctx.n_ranks; ++r) bases[r] = ctx.base + r * ctx.stride_bytes;
}

}  // namespace iris
