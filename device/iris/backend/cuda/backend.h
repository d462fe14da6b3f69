// The cuda backend: kernels on NVIDIA GPUs. primitives.h and host.h have the contracts.
//
// Scopes and orders are those of PTX: block .cta, device .gpu, system .sys. Data that peers write
// is never read through the non-coherent path. The device half is inline PTX, so it compiles
// without the toolkit's headers; a host compiler cannot call it. The host half is in runtime.cc.
//
// Beyond the contracts, on cuda:
//   - A thread that has returned no longer counts for syncs, shuffles and ballots.
//   - Adding floats (not double, Half or Bfloat16) atomically flushes denormals to zero.
//   - 8- and 16-bit read-modify-writes go through the 32-bit word around them.
//   - Nothing checks that a grid is co-resident: see docs/programming_model.md.
//   - Freeing memory waits for the kernels of its device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "iris/backend/gpu_runtime.h"
#include "iris/backend/host_functions.h"
#include "iris/backend/raw_host.h"
#include "iris/backend/types.h"

#define IRIS_PRAGMA(text) _Pragma(#text)
#if defined(__CUDACC__) || defined(__CUDA__)
#define IRIS_DEVICE __attribute__((device))
// Marks rarely called parts of a kernel: out of line, so that the frequent parts are contiguous.
#define IRIS_COLD inline __attribute__((device, noinline))
// Marks parts of a kernel that share its registers. Calls would pass these through memory.
#define IRIS_INLINED inline __attribute__((device, always_inline))
#define IRIS_HOST_DEVICE __attribute__((host)) __attribute__((device))
#define IRIS_KERNEL __attribute__((global))
#define IRIS_KERNEL_BOUNDS(max_threads, min_blocks) \
  __attribute__((launch_bounds(max_threads, min_blocks)))
#if defined(__clang__)
#define IRIS_PARAM const
#else
#define IRIS_PARAM const __grid_constant__
#endif
#define IRIS_UNROLL(n) IRIS_PRAGMA(unroll n)
// Declares bytes: shared variables must not be initialised, and some types have constructors.
#define IRIS_SHARED(type, name)                                                                \
  __attribute__((                                                                              \
      shared)) unsigned char iris_shared_##name[sizeof(::iris::backend::cuda::Identity<type>)] \
      __attribute__((aligned(alignof(::iris::backend::cuda::Identity<type>))));                \
  auto& name = *reinterpret_cast<::std::add_pointer_t<::iris::backend::cuda::Identity<type>>>( \
      iris_shared_##name)
#define IRIS_CUDA_SHARED __attribute__((shared))
#define IRIS_PTX(...) asm volatile(__VA_ARGS__)
#define IRIS_PTX_PURE(...) asm(__VA_ARGS__)
#else
#define IRIS_DEVICE
#define IRIS_COLD inline
#define IRIS_INLINED inline
#define IRIS_HOST_DEVICE
#define IRIS_KERNEL
#define IRIS_KERNEL_BOUNDS(max_threads, min_blocks)
#define IRIS_PARAM const
#define IRIS_UNROLL(n)
#define IRIS_SHARED(type, name) \
  auto& name = ::iris::backend::cuda::OnlyInKernels<::iris::backend::cuda::Identity<type>>()
#define IRIS_CUDA_SHARED
#define IRIS_PTX(...) ::iris::backend::cuda::OnlyInKernels<void>()
#define IRIS_PTX_PURE(...) ::iris::backend::cuda::OnlyInKernels<void>()
#endif

#include "iris/backend/numeric_soft.h"
#include "iris/backend/words.h"

namespace iris::backend {

struct Traits {
  static constexpr const char* kName = "cuda";
  static constexpr bool kEmulated = false;
  static constexpr uint32_t kWarpThreads = 32;
  static constexpr bool kLaunchPublishes = true;
  // The limit of IRIS_SHARED and DynamicShared together, on every supported GPU.
  static constexpr uint32_t kMaxDynamicSharedBytes = 160 * 1024;
  static constexpr bool kNullIsAStream = true;
  static constexpr bool kOrdersByFences = false;
  static constexpr uint32_t kNarrowestExchangeBytes = 4;
  static constexpr bool kHasVolatile16 = true;
  static constexpr bool kStoresWholeLines = true;
};

namespace cuda {

template <typename T>
using Identity = T;

// Not defined, so that a kernel compiled by a host compiler does not link.
template <typename T>
std::add_lvalue_reference_t<T> OnlyInKernels();

// X(order, scope, rest) with the PTX suffixes of S and O. Callers check that they exist.
#define IRIS_CUDA_SCOPED(S, X, order, ...)    \
  if constexpr (S == Scope::kBlock) {         \
    X(order, ".cta", __VA_ARGS__);            \
  } else if constexpr (S == Scope::kDevice) { \
    X(order, ".gpu", __VA_ARGS__);            \
  } else {                                    \
    X(order, ".sys", __VA_ARGS__);            \
  }
#define IRIS_CUDA_ORDERED(S, O, X, ...)                                            \
  static_assert(O != Order::kSeqCst, "an access is at most kAcqRel: add a Fence"); \
  if constexpr (O == Order::kRelaxed) {                                            \
    IRIS_CUDA_SCOPED(S, X, ".relaxed", __VA_ARGS__)                                \
  } else if constexpr (O == Order::kAcquire) {                                     \
    IRIS_CUDA_SCOPED(S, X, ".acquire", __VA_ARGS__)                                \
  } else if constexpr (O == Order::kRelease) {                                     \
    IRIS_CUDA_SCOPED(S, X, ".release", __VA_ARGS__)                                \
  } else {                                                                         \
    IRIS_CUDA_SCOPED(S, X, ".acq_rel", __VA_ARGS__)                                \
  }

#define IRIS_CUDA_LD(order, scope, type, letter) \
  IRIS_PTX("ld" order scope type " %0, [%1];" : "=" letter(value) : "l"(p) : "memory")
#define IRIS_CUDA_ST(order, scope, type, letter) \
  IRIS_PTX("st" order scope type " [%0], %1;" : : "l"(p), letter(value) : "memory")
#define IRIS_CUDA_CAS(order, scope, type, letter)              \
  IRIS_PTX("atom" order scope ".cas" type " %0, [%1], %2, %3;" \
           : "=" letter(old)                                   \
           : "l"(p), letter(expected), letter(desired)         \
           : "memory")
#define IRIS_CUDA_ATOM(order, scope, op, letter)  \
  IRIS_PTX("atom" order scope op " %0, [%1], %2;" \
           : "=" letter(old)                      \
           : "l"(p), letter(operand)              \
           : "memory")

}  // namespace cuda

namespace raw {

// Empty, because no scheduler watches a thread's progress.
IRIS_DEVICE inline void NotePoll() {}
IRIS_DEVICE inline void NoteStore() {}

// Registers have at least 32 bits, of which the narrow forms of ld and st use the low ones.
template <Scope S, Order O, typename W>
IRIS_DEVICE inline W LoadWord(const void* p) {
  if constexpr (sizeof(W) == 8) {
    uint64_t value = 0;
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_LD, ".u64", "l")
    return value;
  } else {
    uint32_t value = 0;
    if constexpr (sizeof(W) == 4) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_LD, ".u32", "r")
    } else if constexpr (sizeof(W) == 2) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_LD, ".u16", "r")
    } else {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_LD, ".u8", "r")
    }
    return static_cast<W>(value);
  }
}

template <Scope S, Order O, typename W>
IRIS_DEVICE inline void StoreWord(void* p, W word) {
  if constexpr (sizeof(W) == 8) {
    [[maybe_unused]] const uint64_t value = word;
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ST, ".u64", "l")
  } else {
    [[maybe_unused]] const uint32_t value = word;
    if constexpr (sizeof(W) == 4) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ST, ".u32", "r")
    } else if constexpr (sizeof(W) == 2) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ST, ".u16", "r")
    } else {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ST, ".u8", "r")
    }
  }
}

template <Scope S, Order O, typename W>
IRIS_DEVICE inline W CompareExchangeWord(void* p, W expected, W desired) {
  if constexpr (sizeof(W) == 8) {
    uint64_t old = 0;
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_CAS, ".b64", "l")
    return old;
  } else {
    static_assert(sizeof(W) == 4);
    uint32_t old = 0;
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_CAS, ".b32", "r")
    return old;
  }
}

// Integers of 4 and 8 bytes, and sums of floats: one instruction each.
template <AtomicOp Op, typename T>
inline constexpr bool kHasFetch = (std::is_integral_v<T> && sizeof(T) >= 4) ||
                                  (std::is_floating_point_v<T> && Op == AtomicOp::kAdd);

template <AtomicOp Op, Scope S, Order O, typename T>
IRIS_DEVICE inline T FetchInteger(void* p, T value) {
  Word<T> old = 0;
  [[maybe_unused]] const Word<T> operand = static_cast<Word<T>>(value);
#define IRIS_CUDA_FETCH(bits, letter)                                 \
  if constexpr (Op == AtomicOp::kAdd) {                               \
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".add.u" bits, letter)    \
  } else if constexpr (Op == AtomicOp::kExchange) {                   \
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".exch.b" bits, letter)   \
  } else if constexpr (Op == AtomicOp::kAnd) {                        \
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".and.b" bits, letter)    \
  } else if constexpr (Op == AtomicOp::kOr) {                         \
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".or.b" bits, letter)     \
  } else if constexpr (Op == AtomicOp::kXor) {                        \
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".xor.b" bits, letter)    \
  } else if constexpr (Op == AtomicOp::kMin && std::is_signed_v<T>) { \
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".min.s" bits, letter)    \
  } else if constexpr (Op == AtomicOp::kMin) {                        \
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".min.u" bits, letter)    \
  } else if constexpr (std::is_signed_v<T>) {                         \
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".max.s" bits, letter)    \
  } else {                                                            \
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".max.u" bits, letter)    \
  }
  if constexpr (sizeof(T) == 4) {
    IRIS_CUDA_FETCH("32", "r")
  } else {
    IRIS_CUDA_FETCH("64", "l")
  }
#undef IRIS_CUDA_FETCH
  return static_cast<T>(old);
}

template <Scope S, Order O>
IRIS_DEVICE inline float FetchAddFloat(void* p, float operand) {
  float old = 0;
  IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".add.f32", "f")
  return old;
}

template <Scope S, Order O>
IRIS_DEVICE inline double FetchAddFloat(void* p, double operand) {
  double old = 0;
  IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".add.f64", "d")
  return old;
}

template <AtomicOp Op, Scope S, Order O, typename T>
IRIS_DEVICE inline T Fetch(void* p, T operand) {
  if constexpr (std::is_integral_v<T>) {
    return FetchInteger<Op, S, O, T>(p, operand);
  } else {
    return FetchAddFloat<S, O>(p, operand);
  }
}

#undef IRIS_CUDA_LD
#undef IRIS_CUDA_ST
#undef IRIS_CUDA_CAS
#undef IRIS_CUDA_ATOM

}  // namespace raw

#define IRIS_CUDA_FENCE(order, scope, unused) IRIS_PTX("fence" order scope ";" : : : "memory")
template <Scope S, Order O>
IRIS_DEVICE inline void Fence() {
  if constexpr (O == Order::kSeqCst) {
    IRIS_CUDA_SCOPED(S, IRIS_CUDA_FENCE, ".sc", 0)
  } else if constexpr (O != Order::kRelaxed) {
    IRIS_CUDA_SCOPED(S, IRIS_CUDA_FENCE, ".acq_rel", 0)
  }
}
#undef IRIS_CUDA_FENCE
#undef IRIS_CUDA_ORDERED
#undef IRIS_CUDA_SCOPED

namespace raw {

// Copies by assignment, because nvcc copies byte by byte in a memcpy, even if it knows the
// alignment.
template <typename T>
IRIS_DEVICE inline T LoadPlain(const T* p) {
  return *p;
}

template <typename T>
IRIS_DEVICE inline void StorePlain(T* p, T value) {
  *p = value;
}

// Uses .cs, not L1::no_allocate, because neighbouring lanes and the next load use the same line.
template <typename W>
IRIS_DEVICE inline W LoadStreaming(const void* p) {
  if constexpr (sizeof(W) == 8) {
    uint64_t word = 0;
    IRIS_PTX("ld.cs.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
    return word;
  } else {
    uint32_t word = 0;
    if constexpr (sizeof(W) == 4) {
      IRIS_PTX("ld.cs.u32 %0, [%1];" : "=r"(word) : "l"(p) : "memory");
    } else if constexpr (sizeof(W) == 2) {
      IRIS_PTX("ld.cs.u16 %0, [%1];" : "=r"(word) : "l"(p) : "memory");
    } else {
      IRIS_PTX("ld.cs.u8 %0, [%1];" : "=r"(word) : "l"(p) : "memory");
    }
    return static_cast<W>(word);
  }
}

template <typename W>
IRIS_DEVICE inline void StoreStreaming(void* p, W value) {
  if constexpr (sizeof(W) == 8) {
    [[maybe_unused]] const uint64_t word = value;
    IRIS_PTX("st.cs.u64 [%0], %1;" : : "l"(p), "l"(word) : "memory");
  } else {
    [[maybe_unused]] const uint32_t word = value;
    if constexpr (sizeof(W) == 4) {
      IRIS_PTX("st.cs.u32 [%0], %1;" : : "l"(p), "r"(word) : "memory");
    } else if constexpr (sizeof(W) == 2) {
      IRIS_PTX("st.cs.u16 [%0], %1;" : : "l"(p), "r"(word) : "memory");
    } else {
      IRIS_PTX("st.cs.u8 [%0], %1;" : : "l"(p), "r"(word) : "memory");
    }
  }
}

template <CacheHint H>
IRIS_DEVICE inline Bytes16 Load16(const void* p) {
  Bytes16 value;
  if constexpr (H == CacheHint::kVolatile) {
    IRIS_PTX("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];"
             : "=l"(value.lo), "=l"(value.hi)
             : "l"(p)
             : "memory");
  } else if constexpr (H == CacheHint::kStreaming) {
    IRIS_PTX("ld.L1::no_allocate.v2.u64 {%0, %1}, [%2];"
             : "=l"(value.lo), "=l"(value.hi)
             : "l"(p)
             : "memory");
  } else {
    IRIS_PTX("ld.v2.u64 {%0, %1}, [%2];" : "=l"(value.lo), "=l"(value.hi) : "l"(p) : "memory");
  }
  return value;
}

template <CacheHint H>
IRIS_DEVICE inline void Store16(void* p, Bytes16 value) {
  if constexpr (H == CacheHint::kVolatile) {
    IRIS_PTX("st.relaxed.sys.v2.u64 [%0], {%1, %2};"
             :
             : "l"(p), "l"(value.lo), "l"(value.hi)
             : "memory");
  } else if constexpr (H == CacheHint::kStreaming) {
    IRIS_PTX("st.cs.v2.u64 [%0], {%1, %2};" : : "l"(p), "l"(value.lo), "l"(value.hi) : "memory");
  } else {
    IRIS_PTX("st.v2.u64 [%0], {%1, %2};" : : "l"(p), "l"(value.lo), "l"(value.hi) : "memory");
  }
}

}  // namespace raw

#define IRIS_CUDA_REGISTER(name, ptx)                      \
  IRIS_DEVICE inline uint32_t name() {                     \
    uint32_t value = 0;                                    \
    IRIS_PTX_PURE("mov.u32 %0, %%" ptx ";" : "=r"(value)); \
    return value;                                          \
  }
IRIS_CUDA_REGISTER(ThreadIndex, "tid.x")
IRIS_CUDA_REGISTER(BlockIndex, "ctaid.x")
IRIS_CUDA_REGISTER(BlockSize, "ntid.x")
IRIS_CUDA_REGISTER(GridSize, "nctaid.x")
#undef IRIS_CUDA_REGISTER

IRIS_DEVICE inline void BlockSync() { IRIS_PTX("bar.sync 0;" : : : "memory"); }

// The masks of all warp operations contain every lane; absent lanes are not waited for.
IRIS_DEVICE inline void WarpSync() { IRIS_PTX("bar.warp.sync 0xffffffff;" : : : "memory"); }

namespace raw {

using ShuffleUnit = uint32_t;

// A lane that a short warp does not have counts as outside the warp.
IRIS_DEVICE inline uint32_t ShuffleSource(uint32_t lane) {
  const uint32_t own = ThreadIndex() % Traits::kWarpThreads;
  const uint32_t thread = ThreadIndex() / Traits::kWarpThreads * Traits::kWarpThreads + lane;
  return lane < Traits::kWarpThreads && thread < BlockSize() ? lane : own;
}

IRIS_DEVICE inline uint32_t ShuffleOne(uint32_t unit, uint32_t source) {
  uint32_t got = 0;
  IRIS_PTX("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=r"(got) : "r"(unit), "r"(source));
  return got;
}

}  // namespace raw

IRIS_DEVICE inline uint64_t Ballot(bool value) {
  uint32_t ballot = 0;
  [[maybe_unused]] const uint32_t mine = value ? 1 : 0;
  IRIS_PTX("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
           : "=r"(ballot)
           : "r"(mine));
  return ballot;
}
IRIS_DEVICE inline bool WarpIsTogether() {
  uint32_t active = 0;
  IRIS_PTX("activemask.b32 %0;" : "=r"(active) : : "memory");
  return active == 0xffffffff;
}

IRIS_DEVICE inline void* DynamicShared() {
  extern IRIS_CUDA_SHARED unsigned char iris_dynamic_shared[] __attribute__((aligned(16)));
  return iris_dynamic_shared;
}

IRIS_HOST_DEVICE inline uint16_t HalfBitsOf(float value) {
#if defined(__CUDA_ARCH__)
  uint16_t bits;
  IRIS_PTX_PURE("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  return numeric::HalfBitsOf(value);
#endif
}

IRIS_HOST_DEVICE inline float FloatOfHalf(uint16_t half) {
#if defined(__CUDA_ARCH__)
  float value;
  IRIS_PTX_PURE("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
#else
  return numeric::FloatOfHalf(half);
#endif
}

IRIS_HOST_DEVICE inline uint16_t BfloatBitsOf(float value) {
#if defined(__CUDA_ARCH__)
  uint16_t bits;
  IRIS_PTX_PURE("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  return numeric::BfloatBitsOf(value);
#endif
}

IRIS_HOST_DEVICE inline uint64_t ClockNanoseconds() {
#if defined(__CUDA_ARCH__)
  uint64_t now;
  IRIS_PTX("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#else
  return HostClockNanoseconds();
#endif
}

IRIS_DEVICE inline uint32_t MultiprocessorIndex() {
  uint32_t index = 0;
  IRIS_PTX("mov.u32 %0, %%smid;" : "=r"(index));
  return index;
}

// The compiler moves no memory access across this call. Code for older GPUs never launches early.
IRIS_DEVICE inline void AwaitKernelBefore() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  IRIS_PTX("griddepcontrol.wait;" : : : "memory");
#endif
}
IRIS_DEVICE inline void LetNextBegin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  IRIS_PTX("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// Empty: warps alternate anyway, and a sleep would delay a warp that waits for a flag.
IRIS_DEVICE inline void Pause() {}
IRIS_DEVICE inline void WakeHost(uint32_t*, int32_t) {}

#if defined(__CUDA_ARCH__)
extern "C" IRIS_DEVICE void __assertfail(const char* message, const char* file, unsigned line,
                                         const char* function, size_t char_bytes)
    __attribute__((noreturn));
#endif

// Reports a failed assertion, which ends all kernels of the device.
[[noreturn]] IRIS_HOST_DEVICE inline void Trap(const char* literal) {
#if defined(__CUDA_ARCH__)
  __assertfail(literal, "iris", 0, "Trap", 1);
#else
  HostTrap(literal);
#endif
}

}  // namespace iris::backend
