// Fences order the calling thread's accesses, with the meanings of OpenSHMEM. If a block wrote
// together, it calls BlockSync first, then one thread fences and signals. On mapped memory a put is
// a series of stores, so a fence only has to order these.
//
// A put, signal or atomic to a rank of another node is a request, which the port process of the
// node carries out. Requests to one rank take effect in their order, so Fence() orders them, too.
// Nothing orders requests to different ranks, or requests and stores, but Quiet(ctx). Atomics
// through the port are atomic to those of the word's own node, too.
#pragma once

#include "iris/backend/select.h"
#include "iris/backend/types.h"
#include "iris/impl/port.h"
#include "iris/types.h"

namespace iris {

// Orders this thread's earlier puts, stores and reads before its later atomic stores, signals and
// read-modify-writes, for all devices and the host. Pairs with an acquire of the latter.
IRIS_DEVICE inline void Fence() { backend::Fence<Scope::kSystem, Order::kAcqRel>(); }

// Does what Fence does, and makes this thread's earlier stores visible to all ranks before its
// later accesses, loads included. All such fences have one total order, as store buffering and
// shmem_quiet need.
IRIS_DEVICE inline void Quiet() { backend::Fence<Scope::kSystem, Order::kSeqCst>(); }

// Does what Quiet() does for ranks of other nodes, too: waits until all requests that kernels of
// this rank have posted are complete, which is until everything has arrived, or has failed.
// kAborted if the job is aborted, or if a request of this rank's kernels has ever failed; then
// iris::Context::Quiet (<iris/context.h>) says why. The calling thread alone waits.
IRIS_DEVICE inline WaitResult Quiet(const DeviceContext& ctx, uint64_t timeout_ns = 0) {
  Quiet();
  if (__builtin_expect(ctx.port == nullptr, 1)) return WaitResult::kOk;
  return impl::QuietPort(ctx.port, impl::PortState(ctx),
                         timeout_ns != 0 ? timeout_ns : ctx.timeout_ns, ctx.abort_word);
}

}  // namespace iris
