// A program's own spans in the trace of its rank, next to those of the device API and of the
// collectives. docs/tracing.md says how to take and read a trace.
#pragma once

#include <cstdint>

#include "iris/impl/trace.h"
#include "iris/types.h"

namespace iris {

// Records the calling threads' span from here to the end of the scope:
//
//   {
//     iris::TraceSpan span(ctx, kLoadTile, iris::Block{});   // "user 7" in the trace, for tag 7
//     ...
//   }
//
// The first thread of `coop` records its times; the others do nothing. Without a trace, the span
// costs a load for which nothing waits, and a read of the clock. It does not sync: the other
// threads' work may begin earlier and end later. `peer` is the world rank that the span concerns,
// if any, and `bytes` the amount of data. Spans of the same threads nest.
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
