// The primitives of kernels, with their contracts: all code outside the backends calls these. They
// use the functions that each backend supplies (spec.h). C++17.
//
// In operations on memory, T is trivially copyable and has 1, 2, 4 or 8 bytes: integers, floats,
// pointers, Half, Bfloat16. Pointers are aligned to sizeof(T).
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/backend/types.h"
#include "iris/backend/words.h"

namespace iris::backend {

// Orders this thread's earlier accesses before its later ones. kSeqCst also orders stores before
// loads, and all such fences have one order.
template <Scope S, Order O>
IRIS_DEVICE void Fence();

namespace impl {

template <typename T>
IRIS_HOST_DEVICE constexpr void CheckAtomicType() {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8,
                "an atomic has 1, 2, 4 or 8 bytes");
}

template <AtomicOp Op, typename T>
IRIS_HOST_DEVICE inline T Apply(T old, T operand) {
  if constexpr (Op == AtomicOp::kAdd) {
    return static_cast<T>(old + operand);
  } else if constexpr (Op == AtomicOp::kSub) {
    return static_cast<T>(old - operand);
  } else if constexpr (Op == AtomicOp::kAnd) {
    return static_cast<T>(old & operand);
  } else if constexpr (Op == AtomicOp::kOr) {
    return static_cast<T>(old | operand);
  } else if constexpr (Op == AtomicOp::kXor) {
    return static_cast<T>(old ^ operand);
  } else if constexpr (Op == AtomicOp::kMin) {
    return operand < old ? operand : old;
  } else if constexpr (Op == AtomicOp::kMax) {
    return old < operand ? operand : old;
  } else {
    static_assert(Op == AtomicOp::kExchange);
    return operand;
  }
}

// Calls `access`, which is relaxed, between the fences that give it the order.
template <Scope S, Order O, typename Access>
IRIS_DEVICE inline auto Fenced(Access access) {
  if constexpr (Releases(O)) Fence<S, Order::kRelease>();
  const auto result = access();
  if constexpr (Acquires(O)) Fence<S, Order::kAcquire>();
  return result;
}

// Locates a narrower word within the aligned 4-byte word that contains it.
struct Part {
  void* around;
  uint32_t shift;
  uint32_t mask;
};

template <typename W>
IRIS_DEVICE inline Part PartOf(void* p) {
  const uint32_t at = static_cast<uint32_t>(reinterpret_cast<uint64_t>(p) & 3);
  return {static_cast<char*>(p) - at, at * 8, ((1u << (8 * sizeof(W))) - 1) << (at * 8)};
}

// Replaces the word by update(old) and returns the old value. May call `update` several times.
template <Scope S, Order O, typename W, typename Update>
IRIS_DEVICE inline W UpdateWord(void* p, Update update) {
  if constexpr (Traits::kOrdersByFences && O != Order::kRelaxed) {
    return Fenced<S, O>([&] { return UpdateWord<S, Order::kRelaxed, W>(p, update); });
  } else if constexpr (sizeof(W) >= Traits::kNarrowestExchangeBytes) {
    W old = raw::LoadWord<S, Order::kRelaxed, W>(p);
    for (;;) {
      const W seen = raw::CompareExchangeWord<S, O, W>(p, old, static_cast<W>(update(old)));
      if (seen == old) return seen;
      old = seen;
    }
  } else {
    const Part part = PartOf<W>(p);
    uint32_t old = raw::LoadWord<S, Order::kRelaxed, uint32_t>(part.around);
    for (;;) {
      const W mine = static_cast<W>(old >> part.shift);
      const uint32_t desired =
          (old & ~part.mask) | (static_cast<uint32_t>(static_cast<W>(update(mine))) << part.shift);
      const uint32_t seen = raw::CompareExchangeWord<S, O, uint32_t>(part.around, old, desired);
      if (seen == old) return mine;
      old = seen;
    }
  }
}

template <Scope S, Order O, typename W>
IRIS_DEVICE inline W CompareExchangeBits(void* p, W expected, W desired) {
  if constexpr (sizeof(W) < Traits::kNarrowestExchangeBytes) {
    return UpdateWord<S, O, W>(
        p, [expected, desired](W old) -> W { return old == expected ? desired : old; });
  } else if constexpr (Traits::kOrdersByFences && O != Order::kRelaxed) {
    return Fenced<S, O>(
        [&] { return raw::CompareExchangeWord<S, Order::kRelaxed, W>(p, expected, desired); });
  } else {
    return raw::CompareExchangeWord<S, O, W>(p, expected, desired);
  }
}

// Uses one instruction of the backend. T is integer or floating.
template <AtomicOp Op, Scope S, Order O, typename T>
IRIS_DEVICE inline T FetchWhole(void* p, T operand) {
  if constexpr (Traits::kOrdersByFences && O != Order::kRelaxed) {
    return Fenced<S, O>([&] { return raw::Fetch<Op, S, Order::kRelaxed, T>(p, operand); });
  } else {
    return raw::Fetch<Op, S, O, T>(p, operand);
  }
}

// Returns the addend that subtracts `value`.
template <typename T>
IRIS_DEVICE inline T Negated(T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(Word<T>{0} - static_cast<Word<T>>(value));
  } else {
    return -value;
  }
}

}  // namespace impl

// Reads the word. O: kRelaxed or kAcquire.
template <Scope S, Order O, typename T>
IRIS_DEVICE inline T Load(const T* p) {
  static_assert(O == Order::kRelaxed || O == Order::kAcquire, "a load is relaxed or acquires");
  impl::CheckAtomicType<T>();
  raw::NotePoll();
  return BitCast<T>(raw::LoadWord<S, O, Word<T>>(p));
}

// Writes the word. O: kRelaxed or kRelease.
template <Scope S, Order O, typename T>
IRIS_DEVICE inline void Store(T* p, T value) {
  static_assert(O == Order::kRelaxed || O == Order::kRelease, "a store is relaxed or releases");
  impl::CheckAtomicType<T>();
  raw::NoteStore();
  if constexpr (Traits::kOrdersByFences && O == Order::kRelease) {
    Fence<S, Order::kRelease>();
    raw::StoreWord<S, Order::kRelaxed, Word<T>>(p, BitCast<Word<T>>(value));
  } else {
    raw::StoreWord<S, O, Word<T>>(p, BitCast<Word<T>>(value));
  }
}

// Writes `desired` if the word is `expected`, compared by bits. Returns the old value.
template <Scope S, Order O, typename T>
IRIS_DEVICE inline T CompareExchange(T* p, T expected, T desired) {
  impl::CheckAtomicType<T>();
  using W = Word<T>;
  raw::NotePoll();
  const W seen = impl::CompareExchangeBits<S, O, W>(p, BitCast<W>(expected), BitCast<W>(desired));
  if (seen == BitCast<W>(expected)) raw::NoteStore();
  return BitCast<T>(seen);
}

// Returns the old value. Integers have all operations; floats, Half and Bfloat16 add, sub, min, max
// and exchange; other types exchange. Min and max ignore a NaN operand and keep a NaN in memory.
template <AtomicOp Op, Scope S, Order O, typename T>
IRIS_DEVICE inline T FetchOp(T* p, T operand) {
  impl::CheckAtomicType<T>();
  static_assert((std::is_integral_v<T> && !std::is_same_v<T, bool>) ||
                    std::is_floating_point_v<T> || kIsNarrowFloat<T> || Op == AtomicOp::kExchange,
                "no arithmetic on this type");
  static_assert(std::is_integral_v<T> || !IsBitwise(Op), "bitwise operations are for integers");
  using W = Word<T>;
  raw::NotePoll();
  raw::NoteStore();
  if constexpr (Op == AtomicOp::kExchange && raw::kHasFetch<Op, W>) {
    return BitCast<T>(impl::FetchWhole<Op, S, O, W>(p, BitCast<W>(operand)));
  } else if constexpr (Op == AtomicOp::kSub && raw::kHasFetch<AtomicOp::kAdd, T>) {
    return impl::FetchWhole<AtomicOp::kAdd, S, O, T>(p, impl::Negated(operand));
  } else if constexpr (raw::kHasFetch<Op, T>) {
    return impl::FetchWhole<Op, S, O, T>(p, operand);
  } else {
    return BitCast<T>(impl::UpdateWord<S, O, W>(p, [operand](W old) -> W {
      return BitCast<W>(impl::Apply<Op>(BitCast<T>(old), operand));
    }));
  }
}

// Loads one value of bulk data, without tearing and without an order.
template <typename T>
IRIS_DEVICE inline T LoadPlain(const T* p) {
  static_assert(std::is_trivially_copyable_v<T>);
  return raw::LoadPlain(p);
}

template <typename T>
IRIS_DEVICE inline void StorePlain(T* p, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  raw::StorePlain(p, value);
}

// Loads or stores a word of 1, 2, 4 or 8 bytes that is used once (CacheHint::kStreaming).
template <typename W>
IRIS_DEVICE inline W LoadStreaming(const W* p) {
  static_assert(std::is_unsigned_v<W>);
  return raw::LoadStreaming<W>(p);
}

template <typename W>
IRIS_DEVICE inline void StoreStreaming(W* p, W word) {
  static_assert(std::is_unsigned_v<W>);
  raw::StoreStreaming<W>(p, word);
}

// Loads or stores 16 aligned bytes. kVolatile: relaxed at system scope, no half of 8 bytes tears.
template <CacheHint H>
IRIS_DEVICE inline Bytes16 Load16(const void* p) {
  if constexpr (H == CacheHint::kVolatile && !Traits::kHasVolatile16) {
    const uint64_t* const words = static_cast<const uint64_t*>(p);
    Bytes16 value;
    value.lo = Load<Scope::kSystem, Order::kRelaxed>(words);
    value.hi = Load<Scope::kSystem, Order::kRelaxed>(words + 1);
    return value;
  } else {
    return raw::Load16<H>(p);
  }
}

template <CacheHint H>
IRIS_DEVICE inline void Store16(void* p, Bytes16 value) {
  if constexpr (H == CacheHint::kVolatile && !Traits::kHasVolatile16) {
    uint64_t* const words = static_cast<uint64_t*>(p);
    Store<Scope::kSystem, Order::kRelaxed>(words, value.lo);
    Store<Scope::kSystem, Order::kRelaxed>(words + 1, value.hi);
  } else {
    raw::Store16<H>(p, value);
  }
}

// Threads. Blocks and grids have one dimension; indices count from 0.

IRIS_DEVICE uint32_t ThreadIndex();
IRIS_DEVICE uint32_t BlockIndex();
IRIS_DEVICE uint32_t BlockSize();
IRIS_DEVICE uint32_t GridSize();
IRIS_HOST_DEVICE constexpr uint32_t WarpSize() { return Traits::kWarpThreads; }
IRIS_DEVICE inline uint32_t LaneIndex() { return ThreadIndex() % Traits::kWarpThreads; }
IRIS_DEVICE inline uint32_t WarpIndex() { return ThreadIndex() / Traits::kWarpThreads; }

// For loops in which each thread takes every ThreadsOfGrid()-th element from ThreadOfGrid() on.
IRIS_DEVICE inline uint64_t ThreadOfGrid() {
  return uint64_t{BlockIndex()} * BlockSize() + ThreadIndex();
}
IRIS_DEVICE inline uint64_t ThreadsOfGrid() { return uint64_t{GridSize()} * BlockSize(); }

// Waits for all threads of the block; also orders their memory accesses at block scope.
IRIS_DEVICE void BlockSync();

// Waits for all live threads of the warp; also orders their memory accesses within the warp.
IRIS_DEVICE void WarpSync();

// Returns the value that the thread of `lane` passed. T has 1 to 16 bytes. All threads of the warp
// call it together. If `lane` is outside the warp, returns the caller's value.
template <typename T>
IRIS_DEVICE inline T Shuffle(T value, uint32_t lane) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  using Unit = raw::ShuffleUnit;
  constexpr uint32_t kUnits = (sizeof(T) + sizeof(Unit) - 1) / sizeof(Unit);
  const uint32_t source = raw::ShuffleSource(lane);
  Unit units[kUnits] = {};
  __builtin_memcpy(static_cast<void*>(units), static_cast<const void*>(&value), sizeof(T));
  IRIS_UNROLL(4)
  for (uint32_t i = 0; i < kUnits; ++i) units[i] = raw::ShuffleOne(units[i], source);
  __builtin_memcpy(static_cast<void*>(&value), static_cast<const void*>(units), sizeof(T));
  return value;
}

// Shuffles from the lane whose number is the caller's xor `mask`, or the caller's plus `delta`.
template <typename T>
IRIS_DEVICE inline T ShuffleXor(T value, uint32_t mask) {
  return Shuffle(value, LaneIndex() ^ mask);
}

template <typename T>
IRIS_DEVICE inline T ShuffleDown(T value, uint32_t delta) {
  const uint32_t lane = LaneIndex();
  return Shuffle(value, delta < Traits::kWarpThreads - lane ? lane + delta : Traits::kWarpThreads);
}

// Returns a bit for each lane whose thread passed true. All threads of the warp call it together.
IRIS_DEVICE uint64_t Ballot(bool value);
IRIS_DEVICE inline bool WarpAny(bool value) { return Ballot(value) != 0; }
IRIS_DEVICE inline bool WarpAll(bool value) { return Ballot(!value) == 0; }

// Returns true if all threads of the warp certainly make this call together, so that the warp
// executes the next instruction once. Lanes may differ in the result. No sync makes it true.
IRIS_DEVICE bool WarpIsTogether();

// Returns the block's LaunchConfig::shared_bytes of shared memory, aligned to 16.
IRIS_DEVICE void* DynamicShared();

// These are for kernels with LaunchConfig::early. AwaitKernelBefore waits until the kernel before
// this one on the stream has ended and its writes are visible; a kernel calls it before it accesses
// memory of other kernels. LetNextBegin, called by all blocks, lets the next kernel begin. Both do
// nothing where kernels of a stream run one after another.
IRIS_DEVICE void AwaitKernelBefore();
IRIS_DEVICE void LetNextBegin();

// Lets other threads run; for polling loops.
IRIS_DEVICE void Pause();

// Wakes a process of the host for which this thread has stored a request. On emu, if `*asleep` is
// not 0, it is set to 0 and 1 is added to the eventfd; the sleeper sets the word, then looks for
// requests. Hosts of GPUs do not sleep while kernels run, and the call does nothing.
IRIS_DEVICE void WakeHost(uint32_t* asleep, int32_t wake_fd);

// Returns the thread's multiprocessor, on emu its worker, for a trace. Numbers may have gaps.
IRIS_DEVICE uint32_t MultiprocessorIndex();

// Returns a monotonic time, which devices of a node share if the platform allows. Also on the host.
IRIS_HOST_DEVICE uint64_t ClockNanoseconds();

// Ends the kernel, or on emu and on the host the process, for a bug that `literal` describes.
[[noreturn]] IRIS_HOST_DEVICE void Trap(const char* literal);

// The conversions of Half and Bfloat16 (numeric.h). Also on the host.
IRIS_HOST_DEVICE uint16_t HalfBitsOf(float value);
IRIS_HOST_DEVICE float FloatOfHalf(uint16_t half);
IRIS_HOST_DEVICE uint16_t BfloatBitsOf(float value);

}  // namespace iris::backend
