// The hip backend: kernels on AMD GPUs with wave 64 and caches that are kept coherent by software:
// gfx90a, gfx940 to gfx942, gfx950. See spec.h for the contract of every name that is not explained
// here.
//
// The half for kernels is in device.h: it needs clang in HIP mode, and neither the vendor's headers
// nor a device library. A host compiler may read this header, and cannot call what is for kernels.
// The half for the host is in host.cc.
//
// Beyond the spec, on hip:
//   - A thread that has returned no longer counts; a shuffle from its lane gives back the own
//   value.
//   - Nothing checks that a grid is co-resident: see docs/programming_model.md.
//   - The destructor of a graph waits for its last launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "device/backend/types.h"

#define IRIS_PRAGMA(text) _Pragma(#text)
#if defined(__HIP__)
#if !defined(__HIP_DEVICE_COMPILE__)
#include <hip/hip_runtime_api.h>  // the compiler's stubs of kernels call into it
#endif
#define IRIS_DEVICE __attribute__((device))
#define IRIS_HOST_DEVICE __attribute__((host)) __attribute__((device))
#define IRIS_KERNEL __attribute__((global))
#define IRIS_KERNEL_BOUNDS(max_threads, min_blocks) \
  __attribute__((                                   \
      amdgpu_flat_work_group_size(1, max_threads),  \
      amdgpu_waves_per_eu(::iris::backend::hip::WavesPerSimd(max_threads, min_blocks))))
#define IRIS_PARAM const
#define IRIS_UNROLL(n) IRIS_PRAGMA(unroll n)
// Bytes, because a shared variable must not be initialised, and some types initialise themselves.
#define IRIS_SHARED(type, name)                                                                \
  alignas(::iris::backend::hip::Identity<type>) static __attribute__((                         \
      shared)) unsigned char iris_shared_##name[sizeof(::iris::backend::hip::Identity<type>)]; \
  auto& name = *reinterpret_cast<::std::add_pointer_t<::iris::backend::hip::Identity<type>>>(  \
      iris_shared_##name)
#else
#define IRIS_DEVICE
#define IRIS_HOST_DEVICE
#define IRIS_KERNEL
#define IRIS_KERNEL_BOUNDS(max_threads, min_blocks)
#define IRIS_PARAM const
#define IRIS_UNROLL(n)
#define IRIS_SHARED(type, name) \
  auto& name = ::iris::backend::hip::OnlyInKernels<::iris::backend::hip::Identity<type>>()
#endif

#include "device/backend/numeric_soft.h"

namespace iris {

struct Half;
struct Bfloat16;

namespace backend {

struct Traits {
  static constexpr const char* kName = "hip";
  static constexpr bool kEmulated = false;
  static constexpr uint32_t kWarpThreads = 64;
  // Between kernels of a stream the runtime makes writes visible to their device alone.
  static constexpr bool kLaunchPublishes = false;
  // Of IRIS_SHARED and DynamicShared together.
  static constexpr uint32_t kMaxDynamicSharedBytes = 64 * 1024;
};

namespace hip {

template <typename T>
using Identity = T;

// Not defined: a kernel that a host compiler translated does not link.
template <typename T>
std::add_lvalue_reference_t<T> OnlyInKernels();

// Waves that a SIMD must hold so that `min_blocks` blocks are on the four of a compute unit; it has
// room for eight.
constexpr uint32_t WavesPerSimd(uint32_t max_threads, uint32_t min_blocks) {
  const uint32_t waves =
      (max_threads + Traits::kWarpThreads - 1) / Traits::kWarpThreads * min_blocks;
  const uint32_t per_simd = (waves + 3) / 4;
  return per_simd < 1 ? 1 : (per_simd < 8 ? per_simd : 8);
}

}  // namespace hip

IRIS_HOST_DEVICE constexpr uint32_t WarpSize() { return Traits::kWarpThreads; }

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

template <Scope S, Order O, typename T>
T Load(const T* p);
template <Scope S, Order O, typename T>
void Store(T* p, T value);
template <AtomicOp Op, Scope S, Order O, typename T>
T FetchOp(T* p, T operand);
template <Scope S, Order O, typename T>
T CompareExchange(T* p, T expected, T desired);
template <Scope S, Order O>
void Fence();
template <CacheHint H>
Bytes16 Load16(const void* p);
template <CacheHint H>
void Store16(void* p, Bytes16 value);
template <typename T>
T LoadPlain(const T* p);
template <typename T>
void StorePlain(T* p, T value);
template <typename T>
T Shuffle(T value, uint32_t lane);
template <typename T>
T ShuffleXor(T value, uint32_t mask);
template <typename T>
T ShuffleDown(T value, uint32_t delta);
uint32_t ThreadIndex();
uint32_t BlockIndex();
uint32_t BlockSize();
uint32_t GridSize();
uint32_t LaneIndex();
uint32_t WarpIndex();
void BlockSync();
void WarpSync();
uint64_t Ballot(bool value);
bool WarpAny(bool value);
bool WarpAll(bool value);
void* DynamicShared();
void Pause();

#endif

namespace hip {
inline constexpr uint64_t kClockPeriodNs = 10;  // the constant clock of these devices: 100 MHz
uint64_t HostClockNanoseconds();
[[noreturn]] void HostTrap(const char* literal);
}  // namespace hip

// Each device counts from its own start: comparable on one device.
IRIS_HOST_DEVICE inline uint64_t ClockNanoseconds() {
#if defined(__HIP_DEVICE_COMPILE__)
  return __builtin_amdgcn_s_memrealtime() * hip::kClockPeriodNs;
#else
  return hip::HostClockNanoseconds();
#endif
}

// On the device the text is for the reader of the source: printing would cost every kernel a
// buffer.
[[noreturn]] IRIS_HOST_DEVICE inline void Trap([[maybe_unused]] const char* literal) {
#if defined(__HIP_DEVICE_COMPILE__)
  __builtin_trap();
#else
  hip::HostTrap(literal);
#endif
}

// Host

uint32_t DeviceCount();
Result SetDevice(uint32_t index);

// Created, borrowed (also the null stream of the application), or empty. Launches on a created one
// go to its device, whichever is current on the calling thread.
class Stream {
 public:
  Stream() = default;
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  static Result Create(Stream* out);
  static Stream Borrow(void* native);
  void* native() const { return native_; }
  Result Synchronize();
  bool Idle();

  // False for one that is default-constructed or was moved from.
  bool valid() const { return owned_ || borrowed_; }
  // Of one that was created; else -1.
  int device() const { return device_; }

 private:
  void* native_ = nullptr;
  int device_ = -1;
  bool owned_ = false;
  bool borrowed_ = false;
};

namespace hip {

// `arguments` are pointers to the kernel's arguments.
Result LaunchKernel(const LaunchConfig& config, Stream& stream, const void* kernel,
                    void** arguments);
Result PrepareKernel(const void* kernel, uint32_t shared_bytes);

template <typename Tuple, size_t... kIndices>
Result LaunchTuple(const LaunchConfig& config, Stream& stream, const void* kernel, Tuple& values,
                   std::index_sequence<kIndices...>) {
  void* arguments[] = {static_cast<void*>(&std::get<kIndices>(values))..., nullptr};
  return LaunchKernel(config, stream, kernel, arguments);
}

}  // namespace hip

template <typename... Params, typename... Args>
Result Launch(const LaunchConfig& config, Stream& stream, void (*kernel)(Params...),
              Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "a kernel gets one argument per parameter");
  static_assert((!std::is_reference_v<Params> && ...), "a kernel's parameters are values");
  static_assert((std::is_trivially_copyable_v<Params> && ...), "... and trivially copyable");
  if (kernel == nullptr) return {ErrorCode::kInvalidArgument, "launch of a null kernel"};
  std::tuple<std::remove_const_t<Params>...> values(std::forward<Args>(args)...);
  return hip::LaunchTuple(config, stream, reinterpret_cast<const void*>(kernel), values,
                          std::index_sequence_for<Params...>());
}

template <typename... Params>
Result PrepareKernel(void (*kernel)(Params...), uint32_t shared_bytes = 0) {
  if (kernel == nullptr) return {ErrorCode::kInvalidArgument, "preparation of a null kernel"};
  return hip::PrepareKernel(reinterpret_cast<const void*>(kernel), shared_bytes);
}

// The ranges must not overlap.
Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream);
Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream);

class Event {
 public:
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept;
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

// Its destructor waits for its last launch.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

 private:
  friend Result EndCapture(Stream& stream, Graph* out);
  friend Result LaunchGraph(Graph& graph, Stream& stream);

  void* executable_ = nullptr;
  void* launched_ = nullptr;  // an event behind the last launch
};

Result BeginCapture(Stream& stream);
Result EndCapture(Stream& stream, Graph* out);
Result LaunchGraph(Graph& graph, Stream& stream);

void* MallocDevice(uint64_t bytes);
void FreeDevice(void* p);
void* MallocHost(uint64_t bytes);
void FreeHost(void* p);

uint32_t MultiprocessorCount();
constexpr const char* BackendName() { return Traits::kName; }

}  // namespace backend
}  // namespace iris

#if defined(__HIP__)
#include "device/backend/hip/device.h"
#endif

// Half and Bfloat16 need the qualifiers above, and the templates above need them only when used.
#include "device/backend/numeric.h"
