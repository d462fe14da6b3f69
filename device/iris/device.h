// The device API of Iris: functions with which a kernel reaches the symmetric heaps of its peers.
// Header-only, C++17.
//
//   IRIS_KERNEL void Hello(iris::DeviceContext ctx, int* x) {   // x: the same offset in every heap
//     const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
//     iris::Store(ctx, next, x, 42);                            // into the heap of `next`
//     iris::Barrier(ctx, ctx.world);                            // all see each other's stores
//   }
//
// Style of the calls: the first arguments of a function are the context and, for an access to a
// peer, the peer's world rank. A pointer always is an address in the caller's own heap; the call
// translates it. The last argument names the team of threads that makes the call together: Thread{}
// (the default), Warp{} or Block{}.
//
// docs/memory_model.md defines visibility; docs/programming_model.md shows how to write kernels.
#pragma once

#include "iris/atomic.h"
#include "iris/backend/select.h"
#include "iris/barrier.h"
#include "iris/fence.h"
#include "iris/heap_bases.h"
#include "iris/mask.h"
#include "iris/memory.h"
#include "iris/share.h"
#include "iris/signal.h"
#include "iris/tile.h"
#include "iris/tile_grid.h"
#include "iris/trace.h"
#include "iris/translate.h"
#include "iris/types.h"
