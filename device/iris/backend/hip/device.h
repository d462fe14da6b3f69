// The kernels' half of the hip backend. Only backend.h includes it.
//
// Choices that a reader of the assembly will ask about (tests/isa asserts them):
//   - A release is a fence, a wait for all memory accesses of the wave, and a relaxed store. The
//     compiler's own releases do not suffice. At block scope they do not wait, since the waves of a
//     block share a cache. But when another wave later releases to the device or the system, it
//     waits only for its own, and those of this wave must have arrived by then. At system scope,
//     LLVM up to 22 omits the wait after the write-back of the L2 (LLVM's pull request 178316).
//   - Words of scope kDevice and kSystem lie in global memory, never in shared memory of a block:
//     the accesses are global_*, which wait for one counter, not flat_*, which wait for two.
//   - Of the read-modify-writes only add, subtract, exchange and compare-exchange are single
//     instructions. Links between devices and to the host carry no others, and drop them silently.
//     Also, memory adds floats only if it is coarse-grained, which a symmetric heap is not. All
//     other operations are loops over compare-exchange.
//   - kVolatile accesses of 16 bytes are two of 8, each single-copy atomic: a volatile access of 16
//     would wait for each load before the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "iris/backend/types.h"

#if defined(__HIP_DEVICE_COMPILE__) && !defined(__gfx90a__) && !defined(__gfx940__) && \
    !defined(__gfx941__) && !defined(__gfx942__) && !defined(__gfx950__)
#error "the hip backend knows gfx90a, gfx940, gfx941, gfx942 and gfx950"
#endif

namespace iris::backend {

namespace hip {

typedef uint32_t Vector4 __attribute__((ext_vector_type(4)));
typedef Vector4 AliasingVector4 __attribute__((may_alias));

// A pointer known to be to global memory.
template <typename T>
using Global = T __attribute__((address_space(1)))*;

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

// Returns a pointer to a word in the form that the atomics take.
template <Scope S, typename W>
IRIS_DEVICE inline auto Address(void* p) {
  typedef W Aliasing __attribute__((may_alias));
  if constexpr (S == Scope::kBlock) {
    return static_cast<Aliasing*>(p);
  } else {
    return (Global<Aliasing>)(p);
  }
}

template <Scope S, typename W>
IRIS_DEVICE inline auto Address(const void* p) {
  typedef const W Aliasing __attribute__((may_alias));
  if constexpr (S == Scope::kBlock) {
    return static_cast<Aliasing*>(p);
  } else {
    return (Global<Aliasing>)(p);
  }
}

}  // namespace hip

namespace hip {

// Waits until all loads, stores and write-backs of this wave are done. See the top of this file.
IRIS_DEVICE inline void WaitForMemory() { asm volatile("s_waitcnt vmcnt(0)" ::: "memory"); }

// ReleaseFence makes a later relaxed access a release; AcquireFence makes an earlier one an
// acquire.
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

}  // namespace hip

// For kSeqCst, the wait between the two fences keeps later loads after earlier stores.
template <Scope S, Order O>
IRIS_DEVICE inline void Fence() {
  if constexpr (Releases(O)) hip::ReleaseFence<S>();
  if constexpr (Acquires(O)) hip::AcquireFence<S>();
}

namespace raw {

// Empty, because no scheduler watches a thread's progress.
IRIS_DEVICE inline void NotePoll() {}
IRIS_DEVICE inline void NoteStore() {}

template <Scope S, Order O, typename W>
IRIS_DEVICE inline W LoadWord(const void* p) {
  constexpr int kOrder = O == Order::kAcquire ? __ATOMIC_ACQUIRE : __ATOMIC_RELAXED;
  return __hip_atomic_load(hip::Address<S, W>(p), kOrder, hip::BuiltinScope(S));
}

template <Scope S, Order O, typename W>
IRIS_DEVICE inline void StoreWord(void* p, W value) {
  static_assert(O == Order::kRelaxed);
  __hip_atomic_store(hip::Address<S, W>(p), value, __ATOMIC_RELAXED, hip::BuiltinScope(S));
}

template <Scope S, Order O, typename W>
IRIS_DEVICE inline W CompareExchangeWord(void* p, W expected, W desired) {
  static_assert(O == Order::kRelaxed && sizeof(W) >= 4);
  (void)__hip_atomic_compare_exchange_strong(hip::Address<S, W>(p), &expected, desired,
                                             __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                             hip::BuiltinScope(S));
  return expected;
}

template <AtomicOp Op, typename T>
inline constexpr bool kHasFetch = std::is_integral_v<T> && sizeof(T) >= 4 &&
                                  (Op == AtomicOp::kAdd || Op == AtomicOp::kExchange);

template <AtomicOp Op, Scope S, Order O, typename T>
IRIS_DEVICE inline T Fetch(void* p, T operand) {
  static_assert(O == Order::kRelaxed && kHasFetch<Op, T>);
  using W = Word<T>;
  const W word = static_cast<W>(operand);
  if constexpr (Op == AtomicOp::kExchange) {
    return static_cast<T>(
        __hip_atomic_exchange(hip::Address<S, W>(p), word, __ATOMIC_RELAXED, hip::BuiltinScope(S)));
  } else {
    return static_cast<T>(__hip_atomic_fetch_add(hip::Address<S, W>(p), word, __ATOMIC_RELAXED,
                                                 hip::BuiltinScope(S)));
  }
}

template <typename T>
IRIS_DEVICE inline T LoadPlain(const T* p) {
  typedef Word<T> Aliasing __attribute__((may_alias));
  return __builtin_bit_cast(T, *reinterpret_cast<const Aliasing*>(p));
}

template <typename T>
IRIS_DEVICE inline void StorePlain(T* p, T value) {
  typedef Word<T> Aliasing __attribute__((may_alias));
  *reinterpret_cast<Aliasing*>(p) = __builtin_bit_cast(Word<T>, value);
}

template <typename W>
IRIS_DEVICE inline W LoadStreaming(const void* p) {
  typedef W Aliasing __attribute__((may_alias));
  return __builtin_nontemporal_load(static_cast<const Aliasing*>(p));
}

template <typename W>
IRIS_DEVICE inline void StoreStreaming(void* p, W word) {
  typedef W Aliasing __attribute__((may_alias));
  __builtin_nontemporal_store(word, static_cast<Aliasing*>(p));
}

template <CacheHint H>
IRIS_DEVICE inline Bytes16 Load16(const void* p) {
  const hip::AliasingVector4* const vector = static_cast<const hip::AliasingVector4*>(p);
  if constexpr (H == CacheHint::kStreaming) {
    return __builtin_bit_cast(Bytes16, __builtin_nontemporal_load(vector));
  } else {
    return __builtin_bit_cast(Bytes16, *vector);
  }
}

template <CacheHint H>
IRIS_DEVICE inline void Store16(void* p, Bytes16 value) {
  hip::AliasingVector4* const vector = static_cast<hip::AliasingVector4*>(p);
  if constexpr (H == CacheHint::kStreaming) {
    __builtin_nontemporal_store(__builtin_bit_cast(hip::Vector4, value), vector);
  } else {
    *vector = __builtin_bit_cast(hip::Vector4, value);
  }
}

}  // namespace raw

IRIS_DEVICE inline uint32_t ThreadIndex() { return __builtin_amdgcn_workitem_id_x(); }
IRIS_DEVICE inline uint32_t BlockIndex() { return __builtin_amdgcn_workgroup_id_x(); }
IRIS_DEVICE inline uint32_t BlockSize() { return __builtin_amdgcn_workgroup_size_x(); }
IRIS_DEVICE inline uint32_t GridSize() {
  return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}

IRIS_DEVICE inline void BlockSync() {
  Fence<Scope::kBlock, Order::kRelease>();
  __builtin_amdgcn_s_barrier();
  Fence<Scope::kBlock, Order::kAcquire>();
}

// The lanes run in lockstep, so this only keeps the compiler from moving accesses.
IRIS_DEVICE inline void WarpSync() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

IRIS_DEVICE inline uint64_t Ballot(bool value) {
  constexpr int kNotEqual = 33;
  return __builtin_amdgcn_uicmp(static_cast<uint32_t>(value), 0u, kNotEqual);
}
IRIS_DEVICE inline bool WarpIsTogether() {
  return Ballot(true) == ~uint64_t{0} >> (64 - Traits::kWarpThreads);
}

namespace raw {

using ShuffleUnit = uint32_t;

// A lane whose thread has returned counts as outside the warp.
IRIS_DEVICE inline uint32_t ShuffleSource(uint32_t lane) {
  const uint64_t live = Ballot(true);
  const bool inside = lane < Traits::kWarpThreads && (live >> lane & 1) != 0;
  return inside ? lane : ThreadIndex() % Traits::kWarpThreads;
}

IRIS_DEVICE inline uint32_t ShuffleOne(uint32_t unit, uint32_t source) {
  return static_cast<uint32_t>(
      __builtin_amdgcn_ds_bpermute(static_cast<int>(source * 4), static_cast<int>(unit)));
}

}  // namespace raw

IRIS_DEVICE inline void* DynamicShared() {
  extern __attribute__((shared)) uint64_t iris_dynamic_shared[] __attribute__((aligned(16)));
  return iris_dynamic_shared;
}

// Empty, because kernels of a stream run one after another.
IRIS_DEVICE inline void AwaitKernelBefore() {}
IRIS_DEVICE inline void LetNextBegin() {}

IRIS_DEVICE inline void Pause() { __builtin_amdgcn_s_sleep(1); }
IRIS_DEVICE inline void WakeHost(uint32_t*, int32_t) {}

// Returns bits of HW_ID: the compute unit, shader array and shader engine; also the die, if a
// device has several.
IRIS_DEVICE inline uint32_t MultiprocessorIndex() {
  constexpr int kHwId = 4 | 8 << 6 | (8 - 1) << 11;
  uint32_t index = static_cast<uint32_t>(__builtin_amdgcn_s_getreg(kHwId));
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__)
  constexpr int kDie = 20 | 0 << 6 | (4 - 1) << 11;
  index |= static_cast<uint32_t>(__builtin_amdgcn_s_getreg(kDie)) << 8;
#endif
  return index;
}

}  // namespace iris::backend
