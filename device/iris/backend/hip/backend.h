// The hip backend: kernels on AMD GPUs with wave 64 and caches that are kept coherent by software:
// gfx90a, gfx940 to gfx942, gfx950. primitives.h and host.h have the contracts.
//
// The half for kernels is in device.h: it needs clang in HIP mode, without the vendor's headers or
// a device library. A host compiler cannot call it. The half for the host is in host.cc.
//
// Beyond the contracts, on hip:
//   - A thread that has returned no longer counts; shuffles from its lane give the caller's value.
//   - 8- and 16-bit read-modify-writes go through the 32-bit word around them.
//   - Nothing checks that a grid is co-resident: see docs/programming_model.md.
//   - The destructor of a graph waits for its last launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "iris/backend/gpu_runtime.h"
#include "iris/backend/host_functions.h"
#include "iris/backend/raw_host.h"
#include "iris/backend/types.h"

#define IRIS_PRAGMA(text) _Pragma(#text)
#if defined(__HIP__)
#if !defined(__HIP_DEVICE_COMPILE__)
#include <hip/hip_runtime_api.h>  // the compiler's stubs of kernels call into it
#endif
#define IRIS_DEVICE __attribute__((device))
#define IRIS_COLD inline __attribute__((device))
#define IRIS_INLINED inline __attribute__((device, always_inline))
#define IRIS_HOST_DEVICE __attribute__((host)) __attribute__((device))
#define IRIS_KERNEL __attribute__((global))
#define IRIS_KERNEL_BOUNDS(max_threads, min_blocks) \
  __attribute__((                                   \
      amdgpu_flat_work_group_size(1, max_threads),  \
      amdgpu_waves_per_eu(::iris::backend::hip::WavesPerSimd(max_threads, min_blocks))))
#define IRIS_PARAM const
#define IRIS_UNROLL(n) IRIS_PRAGMA(unroll n)
// Declares bytes: shared variables must not be initialised, and some types have constructors.
#define IRIS_SHARED(type, name)                                                                \
  alignas(::iris::backend::hip::Identity<type>) static __attribute__((                         \
      shared)) unsigned char iris_shared_##name[sizeof(::iris::backend::hip::Identity<type>)]; \
  auto& name = *reinterpret_cast<::std::add_pointer_t<::iris::backend::hip::Identity<type>>>(  \
      iris_shared_##name)
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
  auto& name = ::iris::backend::hip::OnlyInKernels<::iris::backend::hip::Identity<type>>()
#endif

#include "iris/backend/numeric_soft.h"
#include "iris/backend/words.h"

namespace iris::backend {

struct Traits {
  static constexpr const char* kName = "hip";
  static constexpr bool kEmulated = false;
  static constexpr uint32_t kWarpThreads = 64;
  // Between kernels of a stream the runtime makes writes visible only to their own device.
  static constexpr bool kLaunchPublishes = false;
  // The limit of IRIS_SHARED and DynamicShared together.
  static constexpr uint32_t kMaxDynamicSharedBytes = 64 * 1024;
  static constexpr bool kNullIsAStream = true;
  static constexpr bool kOrdersByFences = true;
  static constexpr uint32_t kNarrowestExchangeBytes = 4;
  static constexpr bool kHasVolatile16 = false;
  static constexpr bool kStoresWholeLines = false;
};

namespace hip {

template <typename T>
using Identity = T;

// Not defined, so that a kernel compiled by a host compiler does not link.
template <typename T>
std::add_lvalue_reference_t<T> OnlyInKernels();

// Returns the waves that each of a compute unit's four SIMDs needs for `min_blocks`; at most eight.
constexpr uint32_t WavesPerSimd(uint32_t max_threads, uint32_t min_blocks) {
  const uint32_t waves =
      (max_threads + Traits::kWarpThreads - 1) / Traits::kWarpThreads * min_blocks;
  const uint32_t per_simd = (waves + 3) / 4;
  return per_simd < 1 ? 1 : (per_simd < 8 ? per_simd : 8);
}

}  // namespace hip

IRIS_HOST_DEVICE inline uint16_t HalfBitsOf(float value) {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
#else
  return numeric::HalfBitsOf(value);
#endif
}

IRIS_HOST_DEVICE inline float FloatOfHalf(uint16_t half) {
#if defined(__HIP_DEVICE_COMPILE__)
  return static_cast<float>(__builtin_bit_cast(_Float16, half));
#else
  return numeric::FloatOfHalf(half);
#endif
}

IRIS_HOST_DEVICE inline uint16_t BfloatBitsOf(float value) { return numeric::BfloatBitsOf(value); }

#if !defined(__HIP__)

// Declarations, for host compilers, of the functions that device.h defines.
namespace raw {

void NotePoll();
void NoteStore();
template <Scope S, Order O, typename W>
W LoadWord(const void* p);
template <Scope S, Order O, typename W>
void StoreWord(void* p, W value);
template <Scope S, Order O, typename W>
W CompareExchangeWord(void* p, W expected, W desired);
template <AtomicOp Op, typename T>
inline constexpr bool kHasFetch = false;
template <AtomicOp Op, Scope S, Order O, typename T>
T Fetch(void* p, T operand);
template <typename T>
T LoadPlain(const T* p);
template <typename T>
void StorePlain(T* p, T value);
template <typename W>
W LoadStreaming(const void* p);
template <typename W>
void StoreStreaming(void* p, W word);
template <CacheHint H>
Bytes16 Load16(const void* p);
template <CacheHint H>
void Store16(void* p, Bytes16 value);
using ShuffleUnit = uint32_t;
uint32_t ShuffleSource(uint32_t lane);
uint32_t ShuffleOne(uint32_t unit, uint32_t source);

}  // namespace raw

#endif

namespace hip {
inline constexpr uint64_t kClockPeriodNs = 10;  // the constant clock of these devices: 100 MHz
}  // namespace hip

// Each device counts from its own start, so times are comparable only on one device.
IRIS_HOST_DEVICE inline uint64_t ClockNanoseconds() {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_s_memrealtime() * hip::kClockPeriodNs;
#else
  return HostClockNanoseconds();
#endif
}

// The device does not print the text: printing would cost every kernel a buffer.
[[noreturn]] IRIS_HOST_DEVICE inline void Trap([[maybe_unused]] const char* literal) {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_trap();
#else
  HostTrap(literal);
#endif
}

}  // namespace iris::backend

#if defined(__HIP__)
#include "iris/backend/hip/device.h"
#endif
