// Requests of kernels to ranks of other nodes, through the kernels' ring of port_types.h.
//
// All functions here run in one thread. Callers have found by OnPort that the peer is on another
// node. Threads take places in the ring by a counter in the memory of the device, and write a
// request there. The port process carries out the requests to one rank in the order of the places.
//
// The functions that are IRIS_COLD take numbers alone: a reference to the context would make every
// thread of a kernel on a GPU keep a copy of it in memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/backend/words.h"
#include "iris/impl/check.h"
#include "iris/impl/wait.h"
#include "iris/port_types.h"
#include "iris/translate.h"
#include "iris/types.h"

namespace iris::impl {

static_assert(SyncArea::kMaxBlocks * 8 == kPortSlots);
static_assert(sizeof(PortRequest) == 64 && sizeof(PortRows) == 64);

// What a caller waits for after it has posted a request.
enum class PortUntil : uint32_t {
  kPosted,    // a place in the ring
  kRead,      // the source may be overwritten
  kComplete,  // the result is here
};

// Where this rank's kernels count and note their requests: in the area of the world.
IRIS_DEVICE inline SyncArea::Slot* PortState(const DeviceContext& ctx) {
  return AtOffset<SyncArea>(ctx, ctx.rank, ctx.world.sync_offset_bytes)->slots;
}

// Not 0 while a thread has yet to read the result of the request at this place. The place is not
// given to another request before.
IRIS_DEVICE inline uint32_t* PortWaits(SyncArea::Slot* state, uint64_t number) {
  const uint32_t slot = static_cast<uint32_t>(number % kPortSlots);
  return &state[slot / 8].port_waits[slot % 8];
}

// A context with what waits need of it.
IRIS_DEVICE inline DeviceContext WaitContext(uint64_t timeout_ns, const uint32_t* abort_word) {
  DeviceContext ctx;
  ctx.timeout_ns = timeout_ns;
  ctx.abort_word = abort_word;
  return ctx;
}

// Ends waits once the port process takes no more requests.
struct PortStopped {
  const PortRingWords* words;
  IRIS_DEVICE bool operator()() const {
    return backend::Load<Scope::kSystem, Order::kAcquire>(&words->stopped) != 0;
  }
};

// The first word of a PortRequest.
IRIS_HOST_DEVICE constexpr uint64_t PortHead(PortOp op, PortSpace space,
                                             SignalOp signal_op = SignalOp::kSet) {
  return static_cast<uint64_t>(op) | static_cast<uint64_t>(space) << 8 |
         static_cast<uint64_t>(signal_op) << 32;
}
IRIS_HOST_DEVICE constexpr uint64_t PortHead(PortAtomic op, PortType type) {
  return static_cast<uint64_t>(PortOp::kAtomic) | static_cast<uint64_t>(op) << 16 |
         static_cast<uint64_t>(type) << 24;
}

// A stage (DevicePort::stages) is free if its word is not above the ring's count of complete
// requests. A thread claims it for its block, and gives it back with the number that the count has
// to reach.
inline constexpr uint64_t kStageClaimed = ~0ull;
IRIS_DEVICE inline uint64_t* StageWord(SyncArea::Slot* state, uint32_t stage) {
  return &state[1 + stage].port_posted;
}
// Claims a free stage, if there is one.
IRIS_DEVICE inline bool TryClaimStage(const DevicePort* port, SyncArea::Slot* state,
                                      uint32_t* stage) {
  const uint64_t completed =
      backend::Load<Scope::kSystem, Order::kAcquire>(&port->words->completed);
  for (uint32_t s = 0; s < kPortStages; ++s) {
    uint64_t* const word = StageWord(state, s);
    const uint64_t seen = backend::Load<Scope::kDevice, Order::kRelaxed>(word);
    if (seen > completed || backend::CompareExchange<Scope::kDevice, Order::kAcquire>(
                                word, seen, kStageClaimed) != seen) {
      continue;
    }
    *stage = s;
    return true;
  }
  return false;
}
IRIS_DEVICE inline void FreeStage(SyncArea::Slot* state, uint32_t stage, uint64_t completed = 0) {
  backend::Store<Scope::kDevice, Order::kRelease>(StageWord(state, stage), completed);
}

// Writes seven words of a slot, then the sequence.
IRIS_DEVICE inline void WritePortSlot(PortRequest* slot, uint64_t number, uint64_t a, uint64_t b,
                                      uint64_t c, uint64_t d, uint64_t e, uint64_t f, uint64_t g) {
  uint64_t* const to = reinterpret_cast<uint64_t*>(slot);
  const auto set = [to](uint32_t k, uint64_t word) {
    backend::Store<Scope::kSystem, Order::kRelaxed>(to + k, word);
  };
  set(0, a);
  set(1, b);
  set(2, c);
  set(3, d);
  set(4, e);
  set(5, f);
  set(6, g);
  backend::Store<Scope::kSystem, Order::kRelease>(to + 7, number + 1);
}

// Posts a request, whose fields follow `to`, and sets *posted to its number. If `n_rows` is not 0,
// a PortRows follows it. If its space is kInline, `src` is the address of the bytes. The calling
// thread releases what it wrote before, and after a BlockSync what its block wrote. With
// `keeps_result` the place of the result stays until AwaitPort or DropPort.
IRIS_DEVICE inline WaitResult PostToPort(const DevicePort* port, SyncArea::Slot* state,
                                         const DeviceContext& wait, bool keeps_result,
                                         uint64_t head, uint32_t to, uint64_t dst, uint64_t src,
                                         uint64_t bytes, uint64_t signal, uint64_t signal_value,
                                         uint64_t n_rows, uint64_t dst_stride, uint64_t src_stride,
                                         uint64_t* posted) {
  if (port == nullptr) backend::Trap("iris: the rank is on another node, and there is no port");
  const PortRingWords* const words = port->words;
  const uint32_t places = n_rows != 0 ? 2 : 1;
  uint64_t number = 0;
  // A place is taken only when it is free, so a thread that gives up leaves no gap.
  const WaitResult result = BoundedWait<Polls::kSmall>(
      wait, 0,
      [&] {
        uint64_t seen = backend::Load<Scope::kDevice, Order::kRelaxed>(&state->port_posted);
        for (;;) {
          // Acquires what earlier owners of the places did before they posted, their notes
          // included.
          const uint64_t completed =
              backend::Load<Scope::kSystem, Order::kAcquire>(&words->completed);
          bool free = seen + places - completed <= kPortSlots;
          for (uint32_t i = 0; i < places; ++i) {
            free = free &&
                   backend::Load<Scope::kDevice, Order::kAcquire>(PortWaits(state, seen + i)) == 0;
          }
          if (!free) return false;
          const uint64_t found = backend::CompareExchange<Scope::kDevice, Order::kRelaxed>(
              &state->port_posted, seen, seen + places);
          if (found == seen) break;
          seen = found;
        }
        number = seen;
        return true;
      },
      PortStopped{words});
  if (result != WaitResult::kOk) return result;
  if (keeps_result) {
    backend::Store<Scope::kDevice, Order::kRelaxed>(PortWaits(state, number), 1u);
  }
  if (n_rows != 0) {
    WritePortSlot(port->slots + (number + 1) % kPortSlots, number + 1, n_rows, dst_stride,
                  src_stride, 0, 0, 0, 0);
  }
  if ((head >> 8 & 0xff) == static_cast<uint64_t>(PortSpace::kInline)) {
    const uint8_t* const from = reinterpret_cast<const uint8_t*>(src);
    src = 0;
    for (uint64_t i = 0; i < bytes; ++i) {
      src |= uint64_t{backend::LoadPlain(from + i)} << (8 * i);
    }
  }
  WritePortSlot(port->slots + number % kPortSlots, number, head, to, dst, src, bytes, signal,
                signal_value);
  backend::WakeHost(port->asleep, port->wake_fd);
  *posted = number;
  return WaitResult::kOk;
}

// Gives up the result of a request that was posted with `keeps_result`.
IRIS_DEVICE inline void DropPort(SyncArea::Slot* state, uint64_t number) {
  backend::Store<Scope::kDevice, Order::kRelease>(PortWaits(state, number), 0u);
}

// Waits until a request that was posted with `keeps_result` is complete. If so, sets *code to its
// StatusCode and *value to the value of its result, and acquires.
IRIS_DEVICE inline WaitResult AwaitPort(const DevicePort* port, SyncArea::Slot* state,
                                        const DeviceContext& wait, uint64_t number, uint32_t* code,
                                        uint64_t* value) {
  const PortResult* const slot = port->results + number % kPortSlots;
  uint64_t done = 0;
  const WaitResult result = BoundedWait<Polls::kSmall>(
      wait, 0,
      [&] {
        done = backend::Load<Scope::kSystem, Order::kAcquire>(&slot->done);
        return done >> 8 == number + 1;
      },
      PortStopped{port->words});
  if (result == WaitResult::kOk) {
    *code = static_cast<uint32_t>(done & 0xff);
    *value = backend::Load<Scope::kSystem, Order::kRelaxed>(&slot->value);
  }
  DropPort(state, number);
  return result;
}

// Posts a request as PostToPort does, and waits. Returns the value of the result, or 0 without one.
// With kComplete it acquires.
IRIS_COLD uint64_t CallPort(const DevicePort* port, SyncArea::Slot* state, uint64_t timeout_ns,
                            const uint32_t* abort_word, PortUntil until, uint64_t head, uint32_t to,
                            uint64_t dst, uint64_t src, uint64_t bytes, uint64_t signal,
                            uint64_t signal_value, uint64_t n_rows, uint64_t dst_stride,
                            uint64_t src_stride) {
  const DeviceContext wait = WaitContext(timeout_ns, abort_word);
  uint64_t number = 0;
  WaitResult result =
      PostToPort(port, state, wait, until == PortUntil::kComplete, head, to, dst, src, bytes,
                 signal, signal_value, n_rows, dst_stride, src_stride, &number);
  if (result != WaitResult::kOk || until == PortUntil::kPosted) return 0;
  if (until == PortUntil::kRead) {
    const uint64_t end = number + (n_rows != 0 ? 2 : 1);
    (void)BoundedWait<Polls::kSmall>(
        wait, 0,
        [&] { return backend::Load<Scope::kSystem, Order::kAcquire>(&port->words->read) >= end; },
        PortStopped{port->words});
    return 0;
  }
  uint32_t code = 0;
  uint64_t value = 0;
  result = AwaitPort(port, state, wait, number, &code, &value);
  return result == WaitResult::kOk && code == 0 ? value : 0;
}

// Waits until all requests that have been posted are complete. kAborted also if one has failed.
IRIS_COLD WaitResult QuietPort(const DevicePort* port, SyncArea::Slot* state, uint64_t timeout_ns,
                               const uint32_t* abort_word) {
  const DeviceContext ctx = WaitContext(timeout_ns, abort_word);
  const PortRingWords* const words = port->words;
  const uint64_t posted = backend::Load<Scope::kDevice, Order::kRelaxed>(&state->port_posted);
  const WaitResult result = BoundedWait<Polls::kSmall>(
      ctx, 0,
      [&] { return backend::Load<Scope::kSystem, Order::kAcquire>(&words->completed) >= posted; },
      PortStopped{words});
  if (result != WaitResult::kOk) return result;
  const bool failed = backend::Load<Scope::kSystem, Order::kRelaxed>(&words->failed) != 0;
  return failed ? WaitResult::kAborted : WaitResult::kOk;
}

// Checks, on the emulator, that `p` with so many bytes is in this rank's heap, for a rank that
// exists. Returns the offset.
IRIS_DEVICE inline uint64_t PortOffset(const DeviceContext& ctx, uint32_t peer, const void* p,
                                       uint64_t bytes, uint64_t alignment, const char* call) {
  const uint64_t offset = OffsetBytes(ctx, p);
  if constexpr (kChecked) {
    using Why = backend::BadAccess::Why;
    const uint64_t address = reinterpret_cast<uint64_t>(p);
    if (peer >= ctx.n_ranks) Refuse(ctx, Why::kPeer, call, peer, ctx.rank, address, bytes, 1);
    if (bytes > 0 && (offset >= ctx.stride_bytes || bytes > ctx.stride_bytes - offset)) {
      Refuse(ctx, Why::kAddress, call, peer, ctx.rank, address, bytes, 1);
    }
    if (address % alignment != 0) {
      Refuse(ctx, Why::kAlignment, call, peer, ctx.rank, address, bytes, alignment);
    }
    if (bytes > 0) CheckAllocation(ctx, call, peer, peer, offset, address, bytes);
  } else {
    (void)peer;
    (void)bytes;
    (void)alignment;
    (void)call;
  }
  return offset;
}

// Checks, on the emulator, the local side of a copy, which must be in this rank's heap.
IRIS_DEVICE inline uint64_t PortLocalOffset(const DeviceContext& ctx, uint32_t peer, const void* p,
                                            uint64_t bytes, const char* call) {
  const uint64_t offset = OffsetBytes(ctx, p);
  if constexpr (kChecked) {
    if (offset >= ctx.stride_bytes || bytes > ctx.stride_bytes - offset) {
      Refuse(ctx, backend::BadAccess::Why::kOutsideHeap, call, peer, ctx.rank,
             reinterpret_cast<uint64_t>(p), bytes, 1);
    }
    CheckAllocation(ctx, call, peer, ctx.rank, offset, reinterpret_cast<uint64_t>(p), bytes);
  } else {
    (void)peer;
    (void)bytes;
    (void)call;
  }
  return offset;
}

// Puts `bytes` bytes, which may be 0, then sends the signal unless `word` is null. Returns once
// `src` may be overwritten.
IRIS_DEVICE inline void PortPut(const DeviceContext& ctx, uint32_t peer, const void* dst,
                                const void* src, uint64_t bytes, const uint64_t* word,
                                uint64_t value, SignalOp op, const char* call) {
  if (bytes == 0 && word == nullptr) return;
  const uint64_t dst_offset = bytes == 0 ? 0 : PortOffset(ctx, peer, dst, bytes, 1, call);
  const uint64_t signal = word == nullptr
                              ? kNoPortSignal
                              : PortOffset(ctx, peer, word, sizeof(*word), sizeof(*word), call);
  const bool is_inline = bytes <= sizeof(PortRequest::src);
  (void)CallPort(
      ctx.port, PortState(ctx), ctx.timeout_ns, ctx.abort_word,
      is_inline ? PortUntil::kPosted : PortUntil::kRead,
      PortHead(PortOp::kPut, is_inline ? PortSpace::kInline : PortSpace::kHeap, op), peer,
      dst_offset,
      is_inline ? reinterpret_cast<uint64_t>(src) : PortLocalOffset(ctx, peer, src, bytes, call),
      bytes, signal, value, 0, 0, 0);
}

// Sends a signal alone.
IRIS_DEVICE inline void PortSignal(const DeviceContext& ctx, uint32_t peer, const uint64_t* word,
                                   uint64_t value, SignalOp op, const char* call) {
  PortPut(ctx, peer, nullptr, nullptr, 0, word, value, op, call);
}

template <typename T>
IRIS_HOST_DEVICE constexpr PortType PortTypeOf() {
  if constexpr (std::is_same_v<T, Half>) {
    return PortType::kHalf;
  } else if constexpr (std::is_same_v<T, Bfloat16>) {
    return PortType::kBfloat16;
  } else if constexpr (std::is_floating_point_v<T>) {
    return sizeof(T) == 4 ? PortType::kFloat : PortType::kDouble;
  } else if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 4 ? PortType::kInt32 : PortType::kInt64;
  } else {
    return sizeof(T) == 4 ? PortType::kUint32 : PortType::kUint64;
  }
}

IRIS_HOST_DEVICE constexpr PortAtomic PortAtomicOf(AtomicOp op) {
  switch (op) {
    case AtomicOp::kAdd:
      return PortAtomic::kAdd;
    case AtomicOp::kSub:
      return PortAtomic::kSub;
    case AtomicOp::kExchange:
      return PortAtomic::kExchange;
    case AtomicOp::kAnd:
      return PortAtomic::kAnd;
    case AtomicOp::kOr:
      return PortAtomic::kOr;
    case AtomicOp::kXor:
      return PortAtomic::kXor;
    case AtomicOp::kMin:
      return PortAtomic::kMin;
    case AtomicOp::kMax:
      return PortAtomic::kMax;
  }
  return PortAtomic::kLoad;
}

// Returns the old value, or T() if the request failed or was not awaited.
template <typename T>
IRIS_DEVICE inline T PortFetch(const DeviceContext& ctx, uint32_t peer, const T* p, PortAtomic op,
                               T value, T compare, bool waits, const char* call) {
  using W = backend::Word<T>;
  const uint64_t old =
      CallPort(ctx.port, PortState(ctx), ctx.timeout_ns, ctx.abort_word,
               waits ? PortUntil::kComplete : PortUntil::kPosted, PortHead(op, PortTypeOf<T>()),
               peer, PortOffset(ctx, peer, p, sizeof(T), sizeof(T), call),
               backend::BitCast<W>(compare), backend::BitCast<W>(value), kNoPortSignal, 0, 0, 0, 0);
  return backend::BitCast<T>(static_cast<W>(old));
}

// Gets `bytes` bytes, and returns once they are at `dst`.
IRIS_DEVICE inline void PortGet(const DeviceContext& ctx, uint32_t peer, void* dst, const void* src,
                                uint64_t bytes, const char* call) {
  if (bytes == 0) return;
  const uint64_t there = PortOffset(ctx, peer, src, bytes, 1, call);
  // An aligned word may go anywhere, as the result of an atomic.
  const bool is_word = (bytes == 4 || bytes == 8) && there % bytes == 0 && !InHeap(ctx, dst);
  const uint64_t value = CallPort(
      ctx.port, PortState(ctx), ctx.timeout_ns, ctx.abort_word, PortUntil::kComplete,
      is_word ? PortHead(PortAtomic::kLoad, bytes == 4 ? PortType::kUint32 : PortType::kUint64)
              : PortHead(PortOp::kGet, PortSpace::kHeap),
      peer, is_word ? there : PortLocalOffset(ctx, peer, dst, bytes, call), is_word ? 0 : there,
      is_word ? 0 : bytes, kNoPortSignal, 0, 0, 0, 0);
  if (!is_word) return;
  for (uint64_t i = 0; i < bytes; ++i) {
    backend::StorePlain(static_cast<uint8_t*>(dst) + i, static_cast<uint8_t>(value >> (8 * i)));
  }
}

// Puts or gets rows of so many bytes, whose strides are in bytes, too.
IRIS_DEVICE inline void PortCopyRows(const DeviceContext& ctx, uint32_t peer, bool puts,
                                     const void* dst, const void* src, const Strided& rows,
                                     const char* call) {
  if (rows.rows == 0 || rows.length == 0) return;
  const uint64_t dst_bytes = (rows.rows - 1) * rows.dst_stride + rows.length;
  const uint64_t src_bytes = (rows.rows - 1) * rows.src_stride + rows.length;
  (void)CallPort(ctx.port, PortState(ctx), ctx.timeout_ns, ctx.abort_word,
                 puts ? PortUntil::kRead : PortUntil::kComplete,
                 PortHead(puts ? PortOp::kPutRows : PortOp::kGetRows, PortSpace::kHeap), peer,
                 puts ? PortOffset(ctx, peer, dst, dst_bytes, 1, call)
                      : PortLocalOffset(ctx, peer, dst, dst_bytes, call),
                 puts ? PortLocalOffset(ctx, peer, src, src_bytes, call)
                      : PortOffset(ctx, peer, src, src_bytes, 1, call),
                 rows.length, kNoPortSignal, 0, rows.rows, rows.dst_stride, rows.src_stride);
}

// Tables of heaps reach mapped ranks alone, and never come here.
template <typename... Arguments>
IRIS_DEVICE inline void PortPut(const HeapBases&, Arguments...) {}
template <typename... Arguments>
IRIS_DEVICE inline void PortSignal(const HeapBases&, Arguments...) {}
template <typename... Arguments>
IRIS_DEVICE inline void PortGet(const HeapBases&, Arguments...) {}
template <typename... Arguments>
IRIS_DEVICE inline void PortCopyRows(const HeapBases&, Arguments...) {}
template <typename T>
IRIS_DEVICE inline T PortFetch(const HeapBases&, uint32_t, const T*, PortAtomic, T, T, bool,
                               const char*) {
  return T();
}

}  // namespace iris::impl
