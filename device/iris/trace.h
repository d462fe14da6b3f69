// Spans of a program's own in the trace of its rank, beside those of the device API and of the
// collectives. docs/tracing.md tells how a trace is taken and read.
#pragma once

#include <cstdint>

#include "iris/impl/trace.h"
#include "iris/types.h"

namespace iris {

// What the calling threads do from here to the end of the scope:
//
//   {
//     iris::TraceSpan span(ctx, kLoadTile, iris::Block{});   // "user 7" in the trace, for tag 7
//     ...
//   }
//
// The first thread of `coop` tells its times; the others do nothing. While no trace is on, or the
// job has none, it costs a load that nobody waits for and a look at the clock. No sync: what the
// other threads do may begin earlier and end later. `peer`: the world rank that it is about, if
// any; `bytes`: how much, likewise. Spans of the same threads nest.
template <typename Coop>
class TraceSpan {
 public:
  IRIS_DEVICE TraceSpan(const DeviceContext& ctx, uint64_t tag, Coop coop,
                        uint32_t peer = kNoTracePeer, uint64_t bytes = 0)
      : span_(ctx, TraceOp::kUser, peer, bytes, tag, coop) {}
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  impl::UserSpan<Coop> span_;
};

}  // namespace iris
