// The cuda backend: kernels on NVIDIA GPUs. See spec.h for the contract of every name that is not
// explained here.
//
// Scopes and orders are those of PTX: block .cta, device .gpu, system .sys. What peers write is
// never read through the non-coherent path. The device half is inline PTX alone, so that a compiler
// without the toolkit's headers translates it too; a host compiler may read this header, and cannot
// call what is for kernels. The host half is in runtime.cc.
//
// Beyond the spec, on cuda:
//   - A thread that has returned no longer counts for syncs, shuffles and ballots.
//   - Adding floats atomically flushes denormals of float (not of double, Half or Bfloat16) to
//   zero.
//   - 8- and 16-bit read-modify-writes go through the 32-bit word around them.
//   - Nothing checks that a grid is co-resident: see docs/programming_model.md.
//   - Freeing memory waits for the kernels of its device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "device/backend/types.h"

#define IRIS_PRAGMA(text) _Pragma(#text)
#if defined(__CUDACC__) || defined(__CUDA__)
#define IRIS_DEVICE __attribute__((device))
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
// Bytes, because a shared variable must not be initialised, and some types initialise themselves.
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

#include "device/backend/numeric_soft.h"

namespace iris {

struct Half;
struct Bfloat16;

namespace backend {

struct Traits {
  static constexpr const char* kName = "cuda";
  static constexpr bool kEmulated = false;
  static constexpr uint32_t kWarpThreads = 32;
  static constexpr bool kLaunchPublishes = true;
  // Of IRIS_SHARED and DynamicShared together: what every supported GPU has.
  static constexpr uint32_t kMaxDynamicSharedBytes = 160 * 1024;
};

namespace cuda {

template <typename T>
using Identity = T;

// Not defined: a kernel that a host compiler translated does not link.
template <typename T>
std::add_lvalue_reference_t<T> OnlyInKernels();

template <typename T>
inline constexpr bool kIsNarrowFloat = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;

template <typename T>
IRIS_HOST_DEVICE constexpr void CheckAtomicType() {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8,
                "an atomic has 1, 2, 4 or 8 bytes");
}

template <uint64_t kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = uint8_t;
};
template <>
struct WordOf<2> {
  using Type = uint16_t;
};
template <>
struct WordOf<4> {
  using Type = uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint64_t;
};
template <typename T>
using Word = typename WordOf<sizeof(T)>::Type;

template <typename To, typename From>
IRIS_HOST_DEVICE inline To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof(To));
  return to;
}

// X(order, scope, rest) with the PTX suffixes of S and O. What an instruction cannot have is never
// instantiated: callers check.
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

// A register has at least 32 bits here: the narrow forms of ld and st take the low ones.
template <Scope S, Order O, typename W>
IRIS_DEVICE inline W LoadWord(const W* p) {
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
IRIS_DEVICE inline void StoreWord(W* p, W word) {
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

// Replaces the word of W by Update(old) and returns what it was. `update` may be called again.
template <Scope S, Order O, typename W, typename Update>
IRIS_DEVICE inline W UpdateWord(W* p, Update update);

template <Scope S, Order O, typename W>
IRIS_DEVICE inline W CompareExchangeWord(W* p, W expected, W desired) {
  if constexpr (sizeof(W) == 8) {
    uint64_t old = 0;
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_CAS, ".b64", "l")
    return old;
  } else if constexpr (sizeof(W) == 4) {
    uint32_t old = 0;
    IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_CAS, ".b32", "r")
    return old;
  } else {
    return UpdateWord<S, O>(
        p, [expected, desired](W old) -> W { return old == expected ? desired : old; });
  }
}

template <Scope S, Order O, typename W, typename Update>
IRIS_DEVICE inline W UpdateWord(W* p, Update update) {
  if constexpr (sizeof(W) >= 4) {
    W old = LoadWord<S, Order::kRelaxed>(static_cast<const W*>(p));
    for (;;) {
      const W seen = CompareExchangeWord<S, O>(p, old, static_cast<W>(update(old)));
      if (seen == old) return old;
      old = seen;
    }
  } else {
    const uint64_t address = reinterpret_cast<uint64_t>(p);
    uint32_t* around = reinterpret_cast<uint32_t*>(address & ~uint64_t{3});
    const uint32_t shift = static_cast<uint32_t>(address & 3) * 8;
    const uint32_t mask = ((1u << (8 * sizeof(W))) - 1) << shift;
    uint32_t old = LoadWord<S, Order::kRelaxed>(static_cast<const uint32_t*>(around));
    for (;;) {
      const W mine = static_cast<W>(old >> shift);
      const uint32_t desired =
          (old & ~mask) | (static_cast<uint32_t>(static_cast<W>(update(mine))) << shift);
      const uint32_t seen = CompareExchangeWord<S, O>(around, old, desired);
      if (seen == old) return mine;
      old = seen;
    }
  }
}

template <AtomicOp Op, typename T>
IRIS_DEVICE inline T Apply(T old, T operand) {
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
    return operand;
  }
}

// Integers of 4 and 8 bytes: one instruction each.
template <AtomicOp Op, Scope S, Order O, typename T>
IRIS_DEVICE inline T FetchInteger(T* p, T value) {
  Word<T> old = 0;
  [[maybe_unused]] const Word<T> operand =
      Op == AtomicOp::kSub ? Word<T>{0} - static_cast<Word<T>>(value) : static_cast<Word<T>>(value);
  constexpr bool kMinOrMax = Op == AtomicOp::kMin || Op == AtomicOp::kMax;
  if constexpr (sizeof(T) == 4) {
    if constexpr (Op == AtomicOp::kAdd || Op == AtomicOp::kSub) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".add.u32", "r")
    } else if constexpr (Op == AtomicOp::kExchange) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".exch.b32", "r")
    } else if constexpr (Op == AtomicOp::kAnd) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".and.b32", "r")
    } else if constexpr (Op == AtomicOp::kOr) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".or.b32", "r")
    } else if constexpr (Op == AtomicOp::kXor) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".xor.b32", "r")
    } else if constexpr (kMinOrMax && std::is_signed_v<T>) {
      if constexpr (Op == AtomicOp::kMin) {
        IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".min.s32", "r")
      } else {
        IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".max.s32", "r")
      }
    } else if constexpr (Op == AtomicOp::kMin) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".min.u32", "r")
    } else {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".max.u32", "r")
    }
  } else {
    if constexpr (Op == AtomicOp::kAdd || Op == AtomicOp::kSub) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".add.u64", "l")
    } else if constexpr (Op == AtomicOp::kExchange) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".exch.b64", "l")
    } else if constexpr (Op == AtomicOp::kAnd) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".and.b64", "l")
    } else if constexpr (Op == AtomicOp::kOr) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".or.b64", "l")
    } else if constexpr (Op == AtomicOp::kXor) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".xor.b64", "l")
    } else if constexpr (kMinOrMax && std::is_signed_v<T>) {
      if constexpr (Op == AtomicOp::kMin) {
        IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".min.s64", "l")
      } else {
        IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".max.s64", "l")
      }
    } else if constexpr (Op == AtomicOp::kMin) {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".min.u64", "l")
    } else {
      IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".max.u64", "l")
    }
  }
  return static_cast<T>(old);
}

template <Scope S, Order O>
IRIS_DEVICE inline float FetchAddFloat(float* p, float operand) {
  float old = 0;
  IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".add.f32", "f")
  return old;
}

template <Scope S, Order O>
IRIS_DEVICE inline double FetchAddFloat(double* p, double operand) {
  double old = 0;
  IRIS_CUDA_ORDERED(S, O, IRIS_CUDA_ATOM, ".add.f64", "d")
  return old;
}

#undef IRIS_CUDA_LD
#undef IRIS_CUDA_ST
#undef IRIS_CUDA_CAS
#undef IRIS_CUDA_ATOM

}  // namespace cuda

// Memory

template <Scope S, Order O, typename T>
IRIS_DEVICE inline T Load(const T* p) {
  static_assert(O == Order::kRelaxed || O == Order::kAcquire, "a load is relaxed or acquires");
  cuda::CheckAtomicType<T>();
  using W = cuda::Word<T>;
  return cuda::BitCast<T>(cuda::LoadWord<S, O>(reinterpret_cast<const W*>(p)));
}

template <Scope S, Order O, typename T>
IRIS_DEVICE inline void Store(T* p, T value) {
  static_assert(O == Order::kRelaxed || O == Order::kRelease, "a store is relaxed or releases");
  cuda::CheckAtomicType<T>();
  using W = cuda::Word<T>;
  cuda::StoreWord<S, O>(reinterpret_cast<W*>(p), cuda::BitCast<W>(value));
}

// Compares bits, so that floats behave like integers of their size.
template <Scope S, Order O, typename T>
IRIS_DEVICE inline T CompareExchange(T* p, T expected, T desired) {
  cuda::CheckAtomicType<T>();
  using W = cuda::Word<T>;
  return cuda::BitCast<T>(cuda::CompareExchangeWord<S, O>(
      reinterpret_cast<W*>(p), cuda::BitCast<W>(expected), cuda::BitCast<W>(desired)));
}

template <AtomicOp Op, Scope S, Order O, typename T>
IRIS_DEVICE inline T FetchOp(T* p, T operand) {
  cuda::CheckAtomicType<T>();
  static_assert((std::is_integral_v<T> && !std::is_same_v<T, bool>) ||
                    std::is_floating_point_v<T> || cuda::kIsNarrowFloat<T> ||
                    Op == AtomicOp::kExchange,
                "no arithmetic on this type");
  static_assert(std::is_integral_v<T> ||
                    (Op != AtomicOp::kAnd && Op != AtomicOp::kOr && Op != AtomicOp::kXor),
                "bitwise operations are for integers");
  using W = cuda::Word<T>;
  if constexpr (Op == AtomicOp::kExchange && sizeof(T) >= 4) {
    return cuda::BitCast<T>(
        cuda::FetchInteger<Op, S, O>(reinterpret_cast<W*>(p), cuda::BitCast<W>(operand)));
  } else if constexpr (std::is_integral_v<T> && sizeof(T) >= 4) {
    return cuda::FetchInteger<Op, S, O>(p, operand);
  } else if constexpr (std::is_floating_point_v<T> && Op == AtomicOp::kAdd) {
    return cuda::FetchAddFloat<S, O>(p, operand);
  } else if constexpr (std::is_floating_point_v<T> && Op == AtomicOp::kSub) {
    return cuda::FetchAddFloat<S, O>(p, -operand);
  } else {
    return cuda::BitCast<T>(cuda::UpdateWord<S, O>(reinterpret_cast<W*>(p), [operand](W old) -> W {
      return cuda::BitCast<W>(cuda::Apply<Op>(cuda::BitCast<T>(old), operand));
    }));
  }
}

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

// By the type itself: nvcc copies byte by byte in a memcpy, whatever is known of the alignment.
template <typename T>
IRIS_DEVICE inline T LoadPlain(const T* p) {
  static_assert(std::is_trivially_copyable_v<T>);
  return *p;
}

template <typename T>
IRIS_DEVICE inline void StorePlain(T* p, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  *p = value;
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

// Threads

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
IRIS_HOST_DEVICE constexpr uint32_t WarpSize() { return Traits::kWarpThreads; }
// Blocks have one dimension.
IRIS_DEVICE inline uint32_t LaneIndex() { return ThreadIndex() % Traits::kWarpThreads; }
IRIS_DEVICE inline uint32_t WarpIndex() { return ThreadIndex() / Traits::kWarpThreads; }

IRIS_DEVICE inline void BlockSync() { IRIS_PTX("bar.sync 0;" : : : "memory"); }

// The masks of all warp operations name every lane: those that returned, or that a short warp never
// had, are not waited for.
IRIS_DEVICE inline void WarpSync() { IRIS_PTX("bar.warp.sync 0xffffffff;" : : : "memory"); }

template <typename T>
IRIS_DEVICE inline T Shuffle(T value, uint32_t lane) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  const uint32_t thread = WarpIndex() * Traits::kWarpThreads + lane;
  [[maybe_unused]] const uint32_t source =
      lane < Traits::kWarpThreads && thread < BlockSize() ? lane : LaneIndex();
  constexpr uint32_t kWords = (sizeof(T) + 3) / 4;
  uint32_t words[kWords] = {};
  __builtin_memcpy(static_cast<void*>(words), static_cast<const void*>(&value), sizeof(T));
  IRIS_UNROLL(4)
  for (uint32_t i = 0; i < kWords; ++i) {
    uint32_t got = 0;
    IRIS_PTX("shfl.sync.idx.b32 %0, %1, %2, 0x1f, 0xffffffff;"
             : "=r"(got)
             : "r"(words[i]), "r"(source));
    words[i] = got;
  }
  __builtin_memcpy(static_cast<void*>(&value), static_cast<const void*>(words), sizeof(T));
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

IRIS_DEVICE inline uint64_t Ballot(bool value) {
  uint32_t ballot = 0;
  [[maybe_unused]] const uint32_t mine = value ? 1 : 0;
  IRIS_PTX("{ .reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, 0xffffffff; }"
           : "=r"(ballot)
           : "r"(mine));
  return ballot;
}
IRIS_DEVICE inline bool WarpAny(bool value) { return Ballot(value) != 0; }
IRIS_DEVICE inline bool WarpAll(bool value) { return Ballot(!value) == 0; }

IRIS_DEVICE inline void* DynamicShared() {
  extern IRIS_CUDA_SHARED unsigned char iris_dynamic_shared[] __attribute__((aligned(16)));
  return iris_dynamic_shared;
}

// Conversions

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

// Others

namespace cuda {
uint64_t HostClockNanoseconds();
[[noreturn]] void HostTrap(const char* literal);
}  // namespace cuda

IRIS_HOST_DEVICE inline uint64_t ClockNanoseconds() {
#if defined(__CUDA_ARCH__)
  uint64_t now;
  IRIS_PTX("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#else
  return cuda::HostClockNanoseconds();
#endif
}

// Warps take turns anyway, and a sleep would delay who waits for a flag.
IRIS_DEVICE inline void Pause() {}

#if defined(__CUDA_ARCH__)
extern "C" IRIS_DEVICE void __assertfail(const char* message, const char* file, unsigned line,
                                         const char* function, size_t char_bytes)
    __attribute__((noreturn));
#endif

// Reported as a failed assertion, which ends all kernels of the device.
[[noreturn]] IRIS_HOST_DEVICE inline void Trap(const char* literal) {
#if defined(__CUDA_ARCH__)
  __assertfail(literal, "iris", 0, "Trap", 1);
#else
  cuda::HostTrap(literal);
#endif
}

// Host

class Stream;
class Graph;
class Event;

namespace cuda {
Result LaunchKernel(const LaunchConfig& config, Stream& stream, const void* kernel, void** args);
Result Prepare(const void* kernel, uint32_t shared_bytes);
}  // namespace cuda

uint32_t DeviceCount();
Result SetDevice(uint32_t index);

// Launches from any thread, whichever device is current there.
class Stream {
 public:
  Stream() = default;
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  static Result Create(Stream* out);
  // A cudaStream_t of the application. Null: the default stream of the current device.
  static Stream Borrow(void* native);
  void* native() const { return native_; }
  Result Synchronize();
  bool Idle();

 private:
  friend Result cuda::LaunchKernel(const LaunchConfig& config, Stream& stream, const void* kernel,
                                   void** args);
  friend Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream);
  friend Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream);
  friend Result BeginCapture(Stream& stream);
  friend Result EndCapture(Stream& stream, Graph* out);
  friend Result LaunchGraph(Graph& graph, Stream& stream);
  friend Result Record(Event& event, Stream& stream);
  friend Result WaitEvent(Stream& stream, const Event& event);

  enum class Kind : uint8_t { kNone, kOwned, kBorrowed };
  void* native_ = nullptr;
  uint32_t device_ = 0;  // of an owned stream
  Kind kind_ = Kind::kNone;
};

template <typename... Params, typename... Args>
Result Launch(const LaunchConfig& config, Stream& stream, void (*kernel)(Params...),
              Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "a kernel gets one argument per parameter");
  static_assert((!std::is_reference_v<Params> && ...), "a kernel's parameters are values");
  static_assert((std::is_trivially_copyable_v<Params> && ...), "... and trivially copyable");
  std::tuple<Params...> values(std::forward<Args>(args)...);
  return std::apply(
      [&](Params&... value) {
        void* pointers[] = {const_cast<void*>(static_cast<const void*>(&value))..., nullptr};
        return cuda::LaunchKernel(config, stream, reinterpret_cast<const void*>(kernel), pointers);
      },
      values);
}

template <typename... Params>
Result PrepareKernel(void (*kernel)(Params...), uint32_t shared_bytes = 0) {
  return cuda::Prepare(reinterpret_cast<const void*>(kernel), shared_bytes);
}

// The ranges must not overlap.
Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream);
Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream);

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept;

 private:
  friend Result EndCapture(Stream& stream, Graph* out);
  friend Result LaunchGraph(Graph& graph, Stream& stream);

  void* executable_ = nullptr;
};

Result BeginCapture(Stream& stream);
Result EndCapture(Stream& stream, Graph* out);
Result LaunchGraph(Graph& graph, Stream& stream);

class Event {
 public:
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept
      : native_(std::exchange(other.native_, nullptr)), recorded_(other.recorded_) {}
  Event& operator=(Event&& other) noexcept;

  static Result Create(Event* out);

 private:
  friend Result Record(Event& event, Stream& stream);
  friend Result WaitEvent(Stream& stream, const Event& event);
  friend Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out);

  void* native_ = nullptr;
  bool recorded_ = false;
};

Result Record(Event& event, Stream& stream);
Result WaitEvent(Stream& stream, const Event& event);
Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out);

void* MallocDevice(uint64_t bytes);
void FreeDevice(void* p);
void* MallocHost(uint64_t bytes);
void FreeHost(void* p);

uint32_t MultiprocessorCount();
constexpr const char* BackendName() { return Traits::kName; }

}  // namespace backend
}  // namespace iris

// Half and Bfloat16 need the qualifiers above, and the templates above need them only when used.
#include "device/backend/numeric.h"
