// HeapBases in place of a DeviceContext: for kernels that are not Iris's own, and have a table of
// the heaps' addresses, as Iris for Python gives it (`heap_bases`) and Context::heap_bases() does.
//
//   IRIS_KERNEL void Foreign(const uint64_t* heap_bases, uint32_t rank, uint32_t to, int* x) {
//     const iris::HeapBases heaps = {heap_bases, rank};
//     iris::Store(heaps, to, x, 42);                    // x: an address in the heap of `rank`
//     iris::AtomicAdd(heaps, to, x + 1, 1);
//   }
//
// It is the same calls with the same meanings, and one implementation: Load, Store, Get, Put, Copy
// (memory.h), the atomics (atomic.h), SignalSet, SignalAdd and PutSignal (signal.h), masks (mask.h)
// and tiles (tile.h). The pointers are addresses in the heap of `rank`, which need not be the rank
// that runs the kernel: give the rank in whose heap they lie. A translation reads two words of the
// table, where a DeviceContext needs none. Waits and barriers take a DeviceContext alone: they need
// its deadline and its abort word; Test and TestEpoch (signal.h) look once and need neither.
//
// Checks of the emulator: alignment always; the peer if `n_ranks` is known, and that the address
// lies in the heap if `heap_bytes` is.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/check.h"
#include "iris/types.h"

namespace iris {

// Where `p`, an address in the heap of `from`, lies in the heap of `to`.
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

// Where `p`, an address in the heap of `heaps.rank`, lies in the heap of `to`.
template <typename T>
IRIS_HOST_DEVICE inline T* Translate(const HeapBases& heaps, uint32_t to, T* p) {
  return Translate(heaps, heaps.rank, to, p);
}

// Writes the table of a context: `bases` has room for ctx.n_ranks words. On the host, or by one
// thread of a kernel.
IRIS_HOST_DEVICE inline void FillHeapBases(const DeviceContext& ctx, uint64_t* bases) {
  for (uint32_t r = 0; r < ctx.n_ranks; ++r) bases[r] = ctx.base + r * ctx.stride_bytes;
}

}  // namespace iris
