// Order of one thread's accesses, with the meanings of OpenSHMEM. Both act for the calling thread
// alone: a block that wrote together calls BlockSync first, then one thread fences and signals.
//
// On memory that is mapped, a put is a series of stores, so nothing is "in flight" behind the
// caller's back: what remains is the order in which others see it.
#pragma once

#include "iris/backend/select.h"
#include "iris/backend/types.h"

namespace iris {

// Everything that this thread put, stored or read before is ordered before every atomic store,
// signal or read-modify-write that it makes after, as all devices and the host see it. Pairs with
// an acquire by whoever sees that later store.
IRIS_DEVICE inline void Fence() { backend::Fence<Scope::kSystem, Order::kAcqRel>(); }

// Fence, and more: this thread's earlier stores are visible to all ranks before any of its later
// accesses, loads included (one total order of all such fences). It is what store buffering needs,
// and what shmem_quiet promises.
IRIS_DEVICE inline void Quiet() { backend::Fence<Scope::kSystem, Order::kSeqCst>(); }

}  // namespace iris
