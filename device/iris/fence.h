// Fences order the calling thread's accesses, with the meanings of OpenSHMEM. If a block wrote
// together, it calls BlockSync first, then one thread fences and signals. On mapped memory a put is
// a series of stores, so a fence only has to order these.
#pragma once

#include "iris/backend/select.h"
#include "iris/backend/types.h"

namespace iris {

// Orders this thread's earlier puts, stores and reads before its later atomic stores, signals and
// read-modify-writes, for all devices and the host. Pairs with an acquire of the latter.
IRIS_DEVICE inline void Fence() { backend::Fence<Scope::kSystem, Order::kAcqRel>(); }

// Does what Fence does, and makes this thread's earlier stores visible to all ranks before its
// later accesses, loads included. All such fences have one total order, as store buffering and
// shmem_quiet need.
IRIS_DEVICE inline void Quiet() { backend::Fence<Scope::kSystem, Order::kSeqCst>(); }

}  // namespace iris
