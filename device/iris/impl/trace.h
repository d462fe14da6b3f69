// How kernels write events. See trace_area.h for what lies where, and trace.h for what programs
// use.
//
// IRIS_NO_TRACE, defined for a whole program, leaves nothing of it in its kernels.
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

// Until when the trace of this rank is on; 0: it is off, or there is none. A load that nobody has
// to wait for before the answer is used.
IRIS_DEVICE inline uint64_t TraceUntil(const DeviceContext& ctx) {
  if (!kTraces || ctx.trace == nullptr) return 0;
  return backend::Load<Scope::kSystem, Order::kRelaxed>(&ctx.trace->until_ns);
}

IRIS_DEVICE inline uint64_t ReserveTraceSlot(TraceArea* area) {
  return backend::FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kRelaxed>(&area->position,
                                                                           uint64_t{1});
}

// Whole words, so that who reads meanwhile sees no torn one. The last one tells that all are there:
// on emulated devices in this order, on GPUs soon after, for a release would cost more than all the
// rest. Who reads waits a moment once the trace is off.
IRIS_DEVICE inline void WriteTraceEvent(TraceArea* area, uint64_t slot, const TraceEvent& event) {
  if (slot >= area->capacity) return;
  uint64_t* const to =
      reinterpret_cast<uint64_t*>(area + 1) + slot * (sizeof(TraceEvent) / sizeof(uint64_t));
  const uint32_t generation = backend::Load<Scope::kSystem, Order::kRelaxed>(&area->generation);
  const auto store = [to](uint32_t k, uint64_t low, uint64_t high, uint32_t shift) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(to + k, low | high << shift);
  };
  store(0, event.start_ns, 0, 0);
  store(1, event.end_ns, 0, 0);
  store(2, event.bytes, 0, 0);
  store(3, event.detail, 0, 0);
  store(4, event.first_ns, event.last_ns, 32);
  store(5, event.wait_ns, event.number, 32);
  store(6, event.op | static_cast<uint64_t>(event.peer) << 16,
        event.block | static_cast<uint64_t>(event.multiprocessor) << 16, 32);
  constexpr Order kReady = backend::Traits::kEmulated ? Order::kRelease : Order::kRelaxed;
  backend::Store<Scope::kSystem, kReady>(to + 7, event.thread | static_cast<uint64_t>(generation)
                                                                    << 32);
}

IRIS_DEVICE inline TraceEvent NewTraceEvent(TraceOp op, uint32_t peer, uint64_t bytes,
                                            uint64_t detail) {
  TraceEvent event = {};
  event.bytes = bytes;
  event.detail = detail;
  event.op = static_cast<uint16_t>(op);
  event.peer = static_cast<uint16_t>(peer);
  event.block = static_cast<uint16_t>(backend::BlockIndex());
  event.multiprocessor = static_cast<uint16_t>(backend::MultiprocessorIndex());
  event.thread = static_cast<uint16_t>(backend::ThreadIndex());
  return event;
}

// A call from its beginning to the end of the scope, told by the first thread of those that make it
// together. Whether the trace is on is asked at the beginning and looked at at the end, so that a
// call whose trace is off waits for nothing.
template <typename Coop>
class CallSpan {
 public:
  IRIS_DEVICE CallSpan(const DeviceContext& ctx, TraceOp op, uint32_t peer, uint64_t bytes,
                       uint64_t detail, Coop coop)
      : area_(CoopIndex(coop) == 0 ? ctx.trace : nullptr) {
    if (area_ == nullptr) return;
    until_ns_ = TraceUntil(ctx);
    start_ns_ = backend::ClockNanoseconds();
    op_ = op;
    peer_ = peer;
    bytes_ = bytes;
    detail_ = detail;
  }
  IRIS_DEVICE ~CallSpan() {
    if (area_ == nullptr || start_ns_ >= until_ns_) return;
    const uint64_t slot = ReserveTraceSlot(area_);
    TraceEvent event = NewTraceEvent(op_, peer_, bytes_, detail_);
    event.start_ns = start_ns_;
    event.end_ns = backend::ClockNanoseconds();
    WriteTraceEvent(area_, slot, event);
  }
  CallSpan(const CallSpan&) = delete;
  CallSpan& operator=(const CallSpan&) = delete;

 private:
  TraceArea* const area_;
  uint64_t until_ns_ = 0;
  uint64_t start_ns_ = 0;
  uint64_t bytes_ = 0;
  uint64_t detail_ = 0;
  TraceOp op_ = TraceOp::kNone;
  uint32_t peer_ = kNoTracePeer;
};

// Of what is not told: calls of single threads, calls by a table of heaps (HeapBases), which has no
// trace, and everything where traces are left out.
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
