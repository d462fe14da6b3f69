// Order of the calling thread's accesses, with the meanings of OpenSHMEM. A block that wrote
// together calls BlockSync first, then one thread fences and signals. On mapped memory a put is a
// series of stores, so only their order as others see it remains.
#pragma once

#include "iris/backend/select.h"
#include "iris/backend/types.h"

namespace iris {

// Orders what this thread put, stored or read before every later atomic store, signal or
// read-modify-write of it, for all devices and the host. Pairs with an acquire of that store.
IRIS_DEVICE inline void Fence() { backend::Fence<Scope::kSystem, Order::kAcqRel>(); }

// Fence, and this thread's earlier stores are visible to all ranks before its later accesses, loads
// included (one total order of all such fences), as store buffering and shmem_quiet need.
IRIS_DEVICE inline void Quiet() { backend::Fence<Scope::kSystem, Order::kSeqCst>(); }

}  // namespace iris
