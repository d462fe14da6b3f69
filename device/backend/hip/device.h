// The kernels' half of the hip backend. Included by backend.h alone.
//
// Choices that a reader of the assembly will ask about (tests/isa asserts them):
//   - A release is a fence, a wait for all memory accesses of the wave, and a relaxed store. The
//     compiler's own releases are not enough. At block scope they do not wait, since the waves of a
//     block share a cache: but when another wave later releases to the device or the system, it
//     waits for its own accesses alone, and ours must have arrived by then. At system scope, LLVM
//     up to 22 drops the wait behind the write-back of the L2 (its pull request 178316).
//   - Words of scope kDevice and kSystem lie in global memory, never in shared memory of a block:
//     the accesses are global_*, which wait for one counter, not flat_*, which wait for two.
//   - Of the read-modify-writes only add, subtract, exchange and compare-exchange are single
//     instructions. Links between devices and to the host carry no other, and drop them in
//     silence; floats additionally are added by the memory only where it is coarse-grained, which a
//     symmetric heap is not. All others are loops over compare-exchange.
//   - kVolatile accesses of 16 bytes are two of 8, each single-copy atomic: a volatile access of 16
//     would wait for each load before the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/backend/types.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx90a__) && !defined(__gfx940__) && \
    !defined(__gfx941__) && !defined(__gfx942__) && !defined(__gfx950__)
#error "the hip backend knows gfx90a, gfx940, gfx941, gfx942 and gfx950"
#endif

namespace iris::backend {

namespace hip {

// Any object seen as a word of its size.
template <uint64_t kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  typedef uint8_t Type __attribute__((may_alias));
};
template <>
struct WordOf<2> {
  typedef uint16_t Type __attribute__((may_alias));
};
template <>
struct WordOf<4> {
  typedef uint32_t Type __attribute__((may_alias));
};
template <>
struct WordOf<8> {
  typedef uint64_t Type __attribute__((may_alias));
};

typedef uint32_t Vector4 __attribute__((ext_vector_type(4)));
typedef Vector4 AliasingVector4 __attribute__((may_alias));

// A pointer known to be to global memory.
template <typename T>
using Global = T __attribute__((address_space(1)))*;

template <typename T>
constexpr void CheckAtomicType() {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8,
                "an atomic has 1, 2, 4 or 8 bytes");
}

template <typename T>
inline constexpr bool kIsNarrowFloat = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;

constexpr int BuiltinScope(Scope scope) {
  switch (scope) {
    case Scope::kBlock:
      return __HIP_MEMORY_SCOPE_WORKGROUP;
    case Scope::kDevice:
      return __HIP_MEMORY_SCOPE_AGENT;
    case Scope::kSystem:
      return __HIP_MEMORY_SCOPE_SYSTEM;
  }
  return __HIP_MEMORY_SCOPE_SYSTEM;
}

// A word as the atomics take it.
template <Scope S, typename W>
IRIS_DEVICE inline auto Address(W* p) {
  if constexpr (S == Scope::kBlock) {
    return p;
  } else {
    return (Global<W>)(p);
  }
}

template <typename To, typename From>
IRIS_DEVICE inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// The machine has compare-exchange of 4 and 8 bytes: smaller words are changed inside theirs.
template <Scope S, typename W>
IRIS_DEVICE inline W CompareExchangeRelaxed(W* p, W expected, W desired) {
  if constexpr (sizeof(W) >= 4) {
    (void)__hip_atomic_compare_exchange_strong(Address<S>(p), &expected, desired, __ATOMIC_RELAXED,
                                               __ATOMIC_RELAXED, BuiltinScope(S));
    return expected;
  } else {
    using Wide = WordOf<4>::Type;
    const uint32_t at = static_cast<uint32_t>(reinterpret_cast<uint64_t>(p) & 3);
    Wide* wide = reinterpret_cast<Wide*>(reinterpret_cast<char*>(p) - at);
    const uint32_t shift = at * 8;
    const uint32_t mask = ((1u << (8 * sizeof(W))) - 1) << shift;
    uint32_t seen = __hip_atomic_load(Address<S>(wide), __ATOMIC_RELAXED, BuiltinScope(S));
    for (;;) {
      const W narrow = static_cast<W>(seen >> shift);
      if (narrow != expected) return narrow;
      const uint32_t changed = (seen & ~mask) | static_cast<uint32_t>(desired) << shift;
      const uint32_t found = CompareExchangeRelaxed<S, Wide>(wide, seen, changed);
      if (found == seen) return expected;
      seen = found;
    }
  }
}

template <AtomicOp Op, typename T>
IRIS_DEVICE inline T Apply(T old, T operand) {
  if constexpr (Op == AtomicOp::kAdd) {
    return old + operand;
  } else if constexpr (Op == AtomicOp::kSub) {
    return old - operand;
  } else if constexpr (Op == AtomicOp::kAnd) {
    return old & operand;
  } else if constexpr (Op == AtomicOp::kOr) {
    return old | operand;
  } else if constexpr (Op == AtomicOp::kXor) {
    return old ^ operand;
  } else if constexpr (Op == AtomicOp::kMin) {
    return operand < old ? operand : old;
  } else if constexpr (Op == AtomicOp::kMax) {
    return old < operand ? operand : old;
  } else {
    static_assert(Op == AtomicOp::kExchange);
    return operand;
  }
}

}  // namespace hip

// Memory

namespace hip {

// Everything that this wave has loaded, stored or written back is done. See the top of this file.
IRIS_DEVICE inline void WaitForMemory() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }

// A relaxed access behind the one releases, one before the other acquires.
template <Scope S>
IRIS_DEVICE inline void ReleaseFence() {
  if constexpr (S == Scope::kBlock) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  } else if constexpr (S == Scope::kDevice) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  } else {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
  }
  WaitForMemory();
}

template <Scope S>
IRIS_DEVICE inline void AcquireFence() {
  if constexpr (S == Scope::kBlock) {
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  } else if constexpr (S == Scope::kDevice) {
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
  } else {
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
  }
}

// Around a relaxed access that is to have order O.
template <Scope S, Order O>
IRIS_DEVICE inline void FenceBefore() {
  if constexpr (O != Order::kRelaxed && O != Order::kAcquire) ReleaseFence<S>();
}

template <Scope S, Order O>
IRIS_DEVICE inline void FenceAfter() {
  if constexpr (O != Order::kRelaxed && O != Order::kRelease) AcquireFence<S>();
}

}  // namespace hip

// kSeqCst: the wait between the two halves keeps later loads behind earlier stores.
template <Scope S, Order O>
IRIS_DEVICE inline void Fence() {
  hip::FenceBefore<S, O>();
  hip::FenceAfter<S, O>();
}

template <Scope S, Order O, typename T>
IRIS_DEVICE inline T Load(const T* p) {
  static_assert(O == Order::kRelaxed || O == Order::kAcquire, "a load is relaxed or acquires");
  hip::CheckAtomicType<T>();
  using Word = typename hip::WordOf<sizeof(T)>::Type;
  constexpr int kOrder = O == Order::kAcquire ? __ATOMIC_ACQUIRE : __ATOMIC_RELAXED;
  const Word word = __hip_atomic_load(hip::Address<S>(reinterpret_cast<const Word*>(p)), kOrder,
                                      hip::BuiltinScope(S));
  return hip::BitCast<T>(word);
}

template <Scope S, Order O, typename T>
IRIS_DEVICE inline void Store(T* p, T value) {
  static_assert(O == Order::kRelaxed || O == Order::kRelease, "a store is relaxed or releases");
  hip::CheckAtomicType<T>();
  using Word = typename hip::WordOf<sizeof(T)>::Type;
  hip::FenceBefore<S, O>();
  __hip_atomic_store(hip::Address<S>(reinterpret_cast<Word*>(p)), hip::BitCast<Word>(value),
                     __ATOMIC_RELAXED, hip::BuiltinScope(S));
}

// Compares bits, so that floats behave like integers of their size.
template <Scope S, Order O, typename T>
IRIS_DEVICE inline T CompareExchange(T* p, T expected, T desired) {
  hip::CheckAtomicType<T>();
  using Word = typename hip::WordOf<sizeof(T)>::Type;
  hip::FenceBefore<S, O>();
  const Word seen = hip::CompareExchangeRelaxed<S, Word>(
      reinterpret_cast<Word*>(p), hip::BitCast<Word>(expected), hip::BitCast<Word>(desired));
  hip::FenceAfter<S, O>();
  return hip::BitCast<T>(seen);
}

// Min and max of floats leave a NaN in memory as it is, and ignore a NaN operand.
template <AtomicOp Op, Scope S, Order O, typename T>
IRIS_DEVICE inline T FetchOp(T* p, T operand) {
  hip::CheckAtomicType<T>();
  static_assert((std::is_integral_v<T> && !std::is_same_v<T, bool>) ||
                    std::is_floating_point_v<T> || hip::kIsNarrowFloat<T> ||
                    Op == AtomicOp::kExchange,
                "no arithmetic on this type");
  static_assert((Op != AtomicOp::kAnd && Op != AtomicOp::kOr && Op != AtomicOp::kXor) ||
                    std::is_integral_v<T>,
                "bitwise operations are for integers");
  using Word = typename hip::WordOf<sizeof(T)>::Type;
  Word* word = reinterpret_cast<Word*>(p);
  constexpr bool kAdds = std::is_integral_v<T> && (Op == AtomicOp::kAdd || Op == AtomicOp::kSub);
  Word seen;
  hip::FenceBefore<S, O>();
  if constexpr (sizeof(T) >= 4 && Op == AtomicOp::kExchange) {
    seen = __hip_atomic_exchange(hip::Address<S>(word), hip::BitCast<Word>(operand),
                                 __ATOMIC_RELAXED, hip::BuiltinScope(S));
  } else if constexpr (sizeof(T) >= 4 && kAdds) {
    const Word bits = hip::BitCast<Word>(operand);
    seen = __hip_atomic_fetch_add(hip::Address<S>(word), Op == AtomicOp::kAdd ? bits : 0 - bits,
                                  __ATOMIC_RELAXED, hip::BuiltinScope(S));
  } else {
    seen = __hip_atomic_load(hip::Address<S>(word), __ATOMIC_RELAXED, hip::BuiltinScope(S));
    for (;;) {
      const T old = hip::BitCast<T>(seen);
      const Word changed = hip::BitCast<Word>(static_cast<T>(hip::Apply<Op>(old, operand)));
      const Word found = hip::CompareExchangeRelaxed<S, Word>(word, seen, changed);
      if (found == seen) break;
      seen = found;
    }
  }
  hip::FenceAfter<S, O>();
  return hip::BitCast<T>(seen);
}

template <typename T>
IRIS_DEVICE inline T LoadPlain(const T* p) {
  static_assert(std::is_trivially_copyable_v<T>);
  return hip::BitCast<T>(*reinterpret_cast<const typename hip::WordOf<sizeof(T)>::Type*>(p));
}

template <typename T>
IRIS_DEVICE inline void StorePlain(T* p, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  using Word = typename hip::WordOf<sizeof(T)>::Type;
  *reinterpret_cast<Word*>(p) = hip::BitCast<Word>(value);
}

template <CacheHint H>
IRIS_DEVICE inline Bytes16 Load16(const void* p) {
  if constexpr (H == CacheHint::kVolatile) {
    const uint64_t* words = static_cast<const uint64_t*>(p);
    Bytes16 value;
    value.lo = Load<Scope::kSystem, Order::kRelaxed>(words);
    value.hi = Load<Scope::kSystem, Order::kRelaxed>(words + 1);
    return value;
  } else {
    const hip::AliasingVector4* vector = static_cast<const hip::AliasingVector4*>(p);
    if constexpr (H == CacheHint::kStreaming) {
      return __builtin_bit_cast(Bytes16, __builtin_nontemporal_load(vector));
    } else {
      return __builtin_bit_cast(Bytes16, *vector);
    }
  }
}

template <CacheHint H>
IRIS_DEVICE inline void Store16(void* p, Bytes16 value) {
  if constexpr (H == CacheHint::kVolatile) {
    uint64_t* words = static_cast<uint64_t*>(p);
    Store<Scope::kSystem, Order::kRelaxed>(words, value.lo);
    Store<Scope::kSystem, Order::kRelaxed>(words + 1, value.hi);
  } else {
    hip::AliasingVector4* vector = static_cast<hip::AliasingVector4*>(p);
    if constexpr (H == CacheHint::kStreaming) {
      __builtin_nontemporal_store(__builtin_bit_cast(hip::Vector4, value), vector);
    } else {
      *vector = __builtin_bit_cast(hip::Vector4, value);
    }
  }
}

// Threads

IRIS_DEVICE inline uint32_t ThreadIndex() { return __builtin_amdgcn_workitem_id_x(); }
IRIS_DEVICE inline uint32_t BlockIndex() { return __builtin_amdgcn_workgroup_id_x(); }
IRIS_DEVICE inline uint32_t BlockSize() { return __builtin_amdgcn_workgroup_size_x(); }
IRIS_DEVICE inline uint32_t GridSize() {
  return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}
IRIS_DEVICE inline uint32_t LaneIndex() { return ThreadIndex() % Traits::kWarpThreads; }
IRIS_DEVICE inline uint32_t WarpIndex() { return ThreadIndex() / Traits::kWarpThreads; }

IRIS_DEVICE inline void BlockSync() {
  Fence<Scope::kBlock, Order::kRelease>();
  __builtin_amdgcn_s_barrier();
  Fence<Scope::kBlock, Order::kAcquire>();
}

// The lanes run in step; what remains is to keep the compiler from moving accesses.
IRIS_DEVICE inline void WarpSync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

IRIS_DEVICE inline uint64_t Ballot(bool value) {
  constexpr int kNotEqual = 33;
  return __builtin_amdgcn_uicmp(static_cast<uint32_t>(value), 0u, kNotEqual);
}
IRIS_DEVICE inline bool WarpAny(bool value) { return Ballot(value) != 0; }
IRIS_DEVICE inline bool WarpAll(bool value) { return Ballot(!value) == 0; }

template <typename T>
IRIS_DEVICE inline T Shuffle(T value, uint32_t lane) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  constexpr uint32_t kWords = (sizeof(T) + 3) / 4;
  int words[kWords] = {};
  __builtin_memcpy(words, &value, sizeof(T));
  const uint64_t live = Ballot(true);
  const bool inside = lane < Traits::kWarpThreads && (live >> lane & 1) != 0;
  const uint32_t source = inside ? lane : LaneIndex();
  for (uint32_t i = 0; i < kWords; ++i) {
    words[i] = __builtin_amdgcn_ds_bpermute(static_cast<int>(source * 4), words[i]);
  }
  __builtin_memcpy(static_cast<void*>(&value), words, sizeof(T));
  return value;
}

template <typename T>
IRIS_DEVICE inline T ShuffleXor(T value, uint32_t mask) {
  return Shuffle(value, LaneIndex() ^ mask);
}

template <typename T>
IRIS_DEVICE inline T ShuffleDown(T value, uint32_t delta) {
  const uint32_t lane = LaneIndex();
  return Shuffle(value, delta < Traits::kWarpThreads - lane ? lane + delta : Traits::kWarpThreads);
}

IRIS_DEVICE inline void* DynamicShared() {
  extern __attribute__((shared)) uint64_t iris_dynamic_shared[] __attribute__((aligned(16)));
  return iris_dynamic_shared;
}

// Others

IRIS_DEVICE inline void Pause() { __builtin_amdgcn_s_sleep(1); }

}  // namespace iris::backend
