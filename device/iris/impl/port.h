// Requests of kernels to ranks of other nodes, through the kernels' ring of port_types.h.
//
// All functions here run in one thread. Callers have found by OnPort that the peer is on another
// node. Threads take places in the ring by a counter in the memory of the device, and write a
// request there. The port process carries out the requests to one rank in the order of the places.
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
enum class PortUntil {
  kPosted,    // a place in the ring
  kRead,      // the source may be overwritten
  kComplete,  // the result is here
};

struct PortAnswer {
  WaitResult result = WaitResult::kOk;  // kAborted also if the request has failed
  uint64_t value = 0;                   // of kAtomic, with kComplete
};

IRIS_DEVICE inline SyncArea::Slot* PortState(const DeviceContext& ctx) {
  return AtOffset<SyncArea>(ctx, ctx.rank, ctx.world.sync_offset_bytes)->slots;
}

// Not 0 while a thread has yet to read the result of the request at this place. The place is not
// given to another request before.
IRIS_DEVICE inline uint32_t* PortWaits(SyncArea::Slot* state, uint64_t number) {
  const uint32_t slot = static_cast<uint32_t>(number % kPortSlots);
  return &state[slot / 8].port_waits[slot % 8];
}

// Writes the words of a slot, the sequence last. The port process reads the other words meanwhile
// only if it is wrong about the sequence.
template <typename Slot>
IRIS_DEVICE inline void WritePortSlot(const DevicePort& port, uint64_t number, const Slot& slot) {
  uint64_t words[8];
  __builtin_memcpy(words, &slot, sizeof(words));
  uint64_t* const to = reinterpret_cast<uint64_t*>(port.slots + number % kPortSlots);
  IRIS_UNROLL(7)
  for (uint32_t k = 0; k < 7; ++k)
    backend::Store<Scope::kSystem, Order::kRelaxed>(to + k, words[k]);
  backend::Store<Scope::kSystem, Order::kRelease>(to + 7, number + 1);
}

// Posts a request, with `rows` if it is not null, and waits. The calling thread releases what it
// wrote before, and after a BlockSync what its block wrote. With kComplete it acquires.
IRIS_COLD PortAnswer CallPort(const DeviceContext& ctx, const PortRequest& request,
                              const PortRows* rows, PortUntil until) {
  if (ctx.port == nullptr) backend::Trap("iris: the rank is on another node, and there is no port");
  const DevicePort& port = *ctx.port;
  SyncArea::Slot* const state = PortState(ctx);
  const auto stopped = [&port] {
    return backend::Load<Scope::kSystem, Order::kAcquire>(&port.words->stopped) != 0;
  };
  const uint32_t places = rows != nullptr ? 2 : 1;
  uint64_t number = 0;
  PortAnswer answer;
  // A place is taken only when it is free, so a thread that gives up leaves no gap.
  answer.result = BoundedWait<Polls::kSmall>(
      ctx, 0,
      [&] {
        uint64_t seen = backend::Load<Scope::kDevice, Order::kRelaxed>(&state->port_posted);
        for (;;) {
          // Acquires what earlier owners of the places did before they posted, their notes included.
          const uint64_t completed =
              backend::Load<Scope::kSystem, Order::kAcquire>(&port.words->completed);
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
      stopped);
  if (answer.result != WaitResult::kOk) return answer;
  uint32_t* const waits = PortWaits(state, number);
  if (until == PortUntil::kComplete) backend::Store<Scope::kDevice, Order::kRelaxed>(waits, 1u);
  if (rows != nullptr) WritePortSlot(port, number + 1, *rows);
  WritePortSlot(port, number, request);
  backend::WakeHost(port.asleep, port.wake_fd);
  if (until == PortUntil::kRead) {
    answer.result = BoundedWait<Polls::kSmall>(
        ctx, 0,
        [&] {
          return backend::Load<Scope::kSystem, Order::kAcquire>(&port.words->read) >=
                 number + places;
        },
        stopped);
  } else if (until == PortUntil::kComplete) {
    const PortResult* const result = port.results + number % kPortSlots;
    uint64_t done = 0;
    answer.result = BoundedWait<Polls::kSmall>(
        ctx, 0,
        [&] {
          done = backend::Load<Scope::kSystem, Order::kAcquire>(&result->done);
          return done >> 8 == number + 1;
        },
        stopped);
    if (answer.result == WaitResult::kOk) {
      answer.value = backend::Load<Scope::kSystem, Order::kRelaxed>(&result->value);
      if ((done & 0xff) != 0) answer = {WaitResult::kAborted, 0};
    }
    backend::Store<Scope::kDevice, Order::kRelease>(waits, 0u);
  }
  return answer;
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
  }
  return offset;
}

inline constexpr SignalTo kNoSignal = {nullptr, 0, SignalOp::kSet};

// Puts `bytes` bytes, which may be 0, then sends the signal unless its word is null. Returns once
// `src` may be overwritten.
IRIS_COLD void PortPut(const DeviceContext& ctx, uint32_t peer, const void* dst, const void* src,
                       uint64_t bytes, const SignalTo& signal, const char* call) {
  PortRequest request = {};
  request.op = PortOp::kPut;
  request.to = peer;
  request.dst = PortOffset(ctx, peer, dst, bytes, 1, call);
  request.bytes = bytes;
  request.signal = kNoPortSignal;
  if (signal.word != nullptr) {
    request.signal = PortOffset(ctx, peer, signal.word, sizeof(uint64_t), sizeof(uint64_t), call);
    request.signal_op = static_cast<uint8_t>(signal.op);
    request.signal_value = signal.value;
  } else if (bytes == 0) {
    return;
  }
  if (bytes == 0) request.dst = 0;
  if (bytes <= sizeof(request.src)) {
    request.space = PortSpace::kInline;
    for (uint64_t i = 0; i < bytes; ++i) {
      request.src |= uint64_t{backend::LoadPlain(static_cast<const uint8_t*>(src) + i)} << (8 * i);
    }
    (void)CallPort(ctx, request, nullptr, PortUntil::kPosted);
    return;
  }
  request.src = PortLocalOffset(ctx, peer, src, bytes, call);
  (void)CallPort(ctx, request, nullptr, PortUntil::kRead);
}

// Sends a signal alone.
IRIS_DEVICE inline void PortSignal(const DeviceContext& ctx, uint32_t peer, const SignalTo& signal,
                                   const char* call) {
  PortPut(ctx, peer, reinterpret_cast<const void*>(ctx.base + ctx.rank * ctx.stride_bytes), nullptr,
          0, signal, call);
}

// Operands and results of atomics are in the lowest bytes.
IRIS_COLD uint64_t CallPortAtomic(const DeviceContext& ctx, uint32_t peer, const void* p,
                                  PortAtomic op, PortType type, uint64_t value, uint64_t compare,
                                  bool waits, uint32_t word_bytes, const char* call) {
  PortRequest request = {};
  request.op = PortOp::kAtomic;
  request.atomic = op;
  request.type = type;
  request.to = peer;
  request.dst = PortOffset(ctx, peer, p, word_bytes, word_bytes, call);
  request.src = compare;
  request.bytes = value;
  request.signal = kNoPortSignal;
  return CallPort(ctx, request, nullptr, waits ? PortUntil::kComplete : PortUntil::kPosted).value;
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
  const uint64_t old = CallPortAtomic(ctx, peer, p, op, PortTypeOf<T>(), backend::BitCast<W>(value),
                                      backend::BitCast<W>(compare), waits, sizeof(T), call);
  return backend::BitCast<T>(static_cast<W>(old));
}

// Gets `bytes` bytes, and returns once they are at `dst`.
IRIS_COLD void PortGet(const DeviceContext& ctx, uint32_t peer, void* dst, const void* src,
                       uint64_t bytes, const char* call) {
  if (bytes == 0) return;
  PortRequest request = {};
  request.op = PortOp::kGet;
  request.to = peer;
  request.src = PortOffset(ctx, peer, src, bytes, 1, call);
  request.bytes = bytes;
  request.signal = kNoPortSignal;
  // A word may go anywhere, as the result of an atomic.
  const bool is_word = (bytes == 4 || bytes == 8) && request.src % bytes == 0;
  if (is_word && !InHeap(ctx, dst)) {
    const uint64_t value = CallPortAtomic(ctx, peer, src, PortAtomic::kLoad,
                                          bytes == 4 ? PortType::kUint32 : PortType::kUint64, 0, 0,
                                          true, static_cast<uint32_t>(bytes), call);
    for (uint64_t i = 0; i < bytes; ++i) {
      backend::StorePlain(static_cast<uint8_t*>(dst) + i, static_cast<uint8_t>(value >> (8 * i)));
    }
    return;
  }
  request.dst = PortLocalOffset(ctx, peer, dst, bytes, call);
  (void)CallPort(ctx, request, nullptr, PortUntil::kComplete);
}

// Puts or gets rows of so many bytes, whose strides are in bytes, too.
IRIS_COLD void PortCopyRows(const DeviceContext& ctx, uint32_t peer, bool puts, const void* dst,
                            const void* src, const Strided& rows, const char* call) {
  if (rows.rows == 0 || rows.length == 0) return;
  const uint64_t dst_bytes = (rows.rows - 1) * rows.dst_stride + rows.length;
  const uint64_t src_bytes = (rows.rows - 1) * rows.src_stride + rows.length;
  PortRequest request = {};
  request.op = puts ? PortOp::kPutRows : PortOp::kGetRows;
  request.to = peer;
  request.dst = puts ? PortOffset(ctx, peer, dst, dst_bytes, 1, call)
                     : PortLocalOffset(ctx, peer, dst, dst_bytes, call);
  request.src = puts ? PortLocalOffset(ctx, peer, src, src_bytes, call)
                     : PortOffset(ctx, peer, src, src_bytes, 1, call);
  request.bytes = rows.length;
  request.signal = kNoPortSignal;
  PortRows strides = {};
  strides.rows = rows.rows;
  strides.dst_stride = rows.dst_stride;
  strides.src_stride = rows.src_stride;
  (void)CallPort(ctx, request, &strides, puts ? PortUntil::kRead : PortUntil::kComplete);
}

// Waits until all requests that have been posted are complete. kAborted also if one has failed.
IRIS_COLD WaitResult QuietPort(const DeviceContext& ctx, uint64_t timeout_ns) {
  if (ctx.port == nullptr) return WaitResult::kOk;
  const PortRingWords* const words = ctx.port->words;
  const uint64_t posted =
      backend::Load<Scope::kDevice, Order::kRelaxed>(&PortState(ctx)->port_posted);
  const WaitResult result = BoundedWait<Polls::kSmall>(
      ctx, timeout_ns,
      [&] { return backend::Load<Scope::kSystem, Order::kAcquire>(&words->completed) >= posted; },
      [words] { return backend::Load<Scope::kSystem, Order::kAcquire>(&words->stopped) != 0; });
  if (result != WaitResult::kOk) return result;
  const bool failed = backend::Load<Scope::kSystem, Order::kRelaxed>(&words->failed) != 0;
  return failed ? WaitResult::kAborted : WaitResult::kOk;
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
