// How kernels write events. See trace_area.h for the layout, and trace.h for programs. A program
// with IRIS_NO_TRACE has no trace code in its kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/impl/coop.h"
#include "iris/trace_area.h"
#include "iris/types.h"

namespace iris::impl {

#ifdef IRIS_NO_TRACE
inline constexpr bool kTraces = false;
#else
inline constexpr bool kTraces = true;
#endif

// The head of a rank's trace. until_ns 0: it is off, or there is none.
struct TraceHead {
  uint64_t until_ns = 0;
  uint32_t generation = 0;
  uint32_t capacity = 0;
};

// One load that nobody has to wait for before the answer is used.
IRIS_DEVICE inline TraceHead ReadTraceHead(const DeviceContext& ctx) {
  if (!kTraces || ctx.trace == nullptr) return {};
  const Bytes16 words = backend::Load16<CacheHint::kVolatile>(&ctx.trace->until_ns);
  return {words.lo, static_cast<uint32_t>(words.hi), static_cast<uint32_t>(words.hi >> 32)};
}

// The answer is on its way for as long as a load; who wants it much later waits for nothing.
IRIS_DEVICE inline uint64_t ReserveTraceSlot(TraceArea* area) {
  return backend::FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kRelaxed>(&area->position,
                                                                           uint64_t{1});
}

// Writes an event of `head`'s generation, so a trace that begins meanwhile ignores it. The words go
// out in any order, without a release, which would cost more: a reader detects a missing one by the
// last.
IRIS_DEVICE inline void WriteTraceEvent(TraceArea* area, TraceHead head, uint64_t slot,
                                        const TraceEvent& event) {
  if (slot >= head.capacity) return;
  const auto pair = [](uint64_t low, uint64_t high) { return low | high << 32; };
  uint64_t words[8];
  words[0] = event.start_ns;
  words[1] = event.end_ns;
  words[2] = event.bytes;
  words[3] = event.detail;
  words[4] = pair(event.first_ns, event.last_ns);
  words[5] = pair(event.wait_ns, event.number);
  words[6] = pair(event.op | static_cast<uint32_t>(event.peer) << 16,
                  event.multiprocessor | static_cast<uint32_t>(event.thread) << 16);
  uint64_t folded = event.block;
  IRIS_UNROLL(7)
  for (uint32_t k = 0; k < 7; ++k) folded ^= words[k];
  words[7] = pair(event.block, head.generation ^ static_cast<uint32_t>(folded) ^
                                   static_cast<uint32_t>(folded >> 32));
  uint64_t* const to = reinterpret_cast<uint64_t*>(area + 1) + slot * 8;
  IRIS_UNROLL(4)
  for (uint32_t k = 0; k < 8; k += 2) {
    backend::Store16<CacheHint::kVolatile>(to + k, {words[k], words[k + 1]});
  }
}

// A time between two looks at the clock, as an event has room for it.
IRIS_DEVICE inline uint32_t TraceTimeBetween(uint64_t from_ns, uint64_t to_ns) {
  const uint64_t between = to_ns - from_ns;
  return between < ~uint32_t{0} ? static_cast<uint32_t>(between) : ~uint32_t{0};
}

IRIS_DEVICE inline TraceEvent NewTraceEvent(TraceOp op, uint32_t peer, uint64_t bytes,
                                            uint64_t detail) {
  TraceEvent event = {};
  event.bytes = bytes;
  event.detail = detail;
  event.op = static_cast<uint16_t>(op);
  event.peer = static_cast<uint16_t>(peer);
  event.block = backend::BlockIndex();
  event.multiprocessor = static_cast<uint16_t>(backend::MultiprocessorIndex());
  event.thread = static_cast<uint16_t>(backend::ThreadIndex());
  return event;
}

// A call until the end of the scope, reported by its first thread. The trace's state is loaded at
// the beginning and read at the end, so that a call whose trace is off waits for nothing.
template <typename Coop>
class CallSpan {
 public:
  IRIS_DEVICE CallSpan(const DeviceContext& ctx, TraceOp op, uint32_t peer, uint64_t bytes,
                       uint64_t detail, Coop coop)
      : area_(CoopIndex(coop) == 0 ? ctx.trace : nullptr) {
    if (area_ == nullptr) return;
    head_ = ReadTraceHead(ctx);
    start_ns_ = backend::ClockNanoseconds();
    op_ = op;
    peer_ = peer;
    bytes_ = bytes;
    detail_ = detail;
  }
  IRIS_DEVICE ~CallSpan() {
    if (area_ == nullptr || start_ns_ >= head_.until_ns) return;
    const uint64_t slot = ReserveTraceSlot(area_);
    TraceEvent event = NewTraceEvent(op_, peer_, bytes_, detail_);
    event.start_ns = start_ns_;
    event.end_ns = backend::ClockNanoseconds();
    WriteTraceEvent(area_, head_, slot, event);
  }
  CallSpan(const CallSpan&) = delete;
  CallSpan& operator=(const CallSpan&) = delete;

 private:
  TraceArea* const area_;
  TraceHead head_;
  uint64_t start_ns_ = 0;
  uint64_t bytes_ = 0;
  uint64_t detail_ = 0;
  TraceOp op_ = TraceOp::kNone;
  uint32_t peer_ = kNoTracePeer;
};

// For calls of single threads, by HeapBases, which has no trace, and where traces are left out.
struct NoSpan {
  template <typename Heaps, typename Coop>
  IRIS_DEVICE NoSpan(const Heaps&, TraceOp, uint32_t, uint64_t, uint64_t, Coop) {}
};
template <typename Coop, typename Heaps = DeviceContext>
using SpanOf = std::conditional_t<kTraces && !std::is_same_v<Coop, Thread> &&
                                      std::is_same_v<Heaps, DeviceContext>,
                                  CallSpan<Coop>, NoSpan>;
template <typename Coop>
using UserSpan = std::conditional_t<kTraces, CallSpan<Coop>, NoSpan>;

}  // namespace iris::impl
