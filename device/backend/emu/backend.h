// The emu backend: kernels on CPUs. See spec.h for the contract of every name that is not explained
// here.
//
// A launch becomes blocks, which the worker threads of one process-wide pool take; a block stays on
// its worker. The threads of a block are fibers of that worker. A fiber goes on until it syncs,
// shuffles, pauses, or has polled kPollsPerTurn times; then the next one runs. When nothing in a
// worker's blocks moves, the worker starts another block, then yields to the OS: all blocks of all
// launches are co-resident, and no spinning kernel starves another, in this process or beside it.
//
// Beyond the spec, on emu:
//   - A thread that has returned no longer counts: BlockSync waits for the threads that still run;
//     WarpSync, shuffles and ballots likewise. A shuffle from a lane that has returned gives back
//     the own value. Returning orders no memory.
//   - If some threads wait in BlockSync and the others in WarpSync or a shuffle, so that none can
//     go on, the kernel has a bug: Trap.
//   - A stack has 64 KiB (256 under a sanitizer). Overflowing it ends the process: at its guard
//   page,
//     or with a message at the next switch of the thread.
//   - Exceptions do not leave a kernel (std::terminate), and no thread may sync, pause or load
//     while it handles one: the OS thread has one stack of exceptions for all its fibers.
//   - Each thread has its own floating point environment (rounding, masks), fresh at its start.
//   - Kernels do not launch, copy or synchronize: kFailedPrecondition. Neither does a forked child.
//   - The memory and poll functions work on host threads too, as the host's own view of the heap.
//   - IRIS_EMU_WORKERS in the environment sets the number of worker threads (default: the cores).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "device/backend/types.h"

#define IRIS_DEVICE
#define IRIS_HOST_DEVICE
#define IRIS_KERNEL
#define IRIS_KERNEL_BOUNDS(max_threads, min_blocks)
#define IRIS_PARAM const
#define IRIS_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define IRIS_UNROLL(n) IRIS_PRAGMA(unroll n)
#else
#define IRIS_UNROLL(n) IRIS_PRAGMA(GCC unroll n)
#endif
// The key is what makes one variable of a kernel differ from another; the block's arena has the
// memory.
#define IRIS_SHARED(type, name)       \
  static char iris_shared_key_##name; \
  auto& name = ::iris::backend::emu::SharedVariable<type>(&iris_shared_key_##name)

#include "device/backend/numeric_soft.h"

namespace iris {

struct Half;
struct Bfloat16;

namespace backend {

struct Traits {
  static constexpr const char* kName = "emu";
  static constexpr bool kEmulated = true;
  static constexpr uint32_t kWarpThreads = 32;
  static constexpr bool kLaunchPublishes = false;
  // Of DynamicShared; IRIS_SHARED has kMaxStaticSharedBytes beside it.
  static constexpr uint32_t kMaxDynamicSharedBytes = 160 * 1024;
};

inline constexpr uint32_t kPollsPerTurn = 1000;
// Of all IRIS_SHARED variables of a block together, and of DynamicShared.
inline constexpr uint32_t kMaxStaticSharedBytes = 64 * 1024;

namespace emu {

// What the running thread of a kernel is. On host threads: thread 0 of a grid of one.
struct Current {
  uint32_t thread_index;
  uint32_t block_index;
  uint32_t block_size;
  uint32_t grid_size;
  uint32_t polls;      // since the last switch
  uint32_t stored;     // not 0: has done more than poll: no reason to sleep
  uint32_t fenced;     // ThreadSanitizer builds: this thread has fenced (see Fence)
  uint32_t in_kernel;  // 0 on host threads
};
// __thread and not thread_local: no wrapper function, no dynamic initialisation. A block never
// leaves its worker, so that an address of it that the compiler keeps over a switch stays right.
extern __thread Current t_current __attribute__((tls_model("initial-exec")));

// The threads of a kernel share their worker's t_current: ThreadSanitizer must not look at it. Only
// functions with this attribute do.
#ifdef IRIS_TSAN
#define IRIS_EMU_UNSANITIZED __attribute__((no_sanitize("thread"), noinline))
#else
#define IRIS_EMU_UNSANITIZED
#endif

// The running thread's other half, in the uninstrumented part of the runtime.
void SwitchAfterPolls();
void SyncBlock();
void SyncWarp();
Bytes16 ShuffleBytes(Bytes16 value, uint32_t source_lane);
uint64_t BallotBits(bool value);
void* DynamicSharedBytes();
void* SharedBytes(const void* key, uint64_t bytes, uint64_t alignment_bytes);
[[noreturn]] void TrapWith(const char* what);

template <typename T>
inline T& SharedVariable(const void* key) {
  static_assert(alignof(T) <= 128, "shared variables are aligned to at most 128 bytes");
  return *static_cast<T*>(SharedBytes(key, sizeof(T), alignof(T)));
}

constexpr int BuiltinOrder(Order order) {
  switch (order) {
    case Order::kRelaxed:
      return __ATOMIC_RELAXED;
    case Order::kAcquire:
      return __ATOMIC_ACQUIRE;
    case Order::kRelease:
      return __ATOMIC_RELEASE;
    case Order::kAcqRel:
      return __ATOMIC_ACQ_REL;
    case Order::kSeqCst:
      return __ATOMIC_SEQ_CST;
  }
  return __ATOMIC_SEQ_CST;
}

// Of the load in a compare-exchange that fails.
constexpr int FailureOrder(Order order) {
  if (order == Order::kRelaxed || order == Order::kRelease) return __ATOMIC_RELAXED;
  return order == Order::kSeqCst ? __ATOMIC_SEQ_CST : __ATOMIC_ACQUIRE;
}

template <typename T>
inline constexpr bool kIsNarrowFloat = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;

template <typename T>
constexpr void CheckAtomicType() {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8,
                "an atomic has 1, 2, 4 or 8 bytes");
}

IRIS_EMU_UNSANITIZED inline void CountPoll() {
  if (__builtin_expect(++t_current.polls >= kPollsPerTurn, 0)) SwitchAfterPolls();
}

IRIS_EMU_UNSANITIZED inline void MarkStored() { t_current.stored = 1; }

// ThreadSanitizer does not model fences. In its builds a fence makes the later relaxed stores of
// its thread releases.
#ifdef IRIS_TSAN
IRIS_EMU_UNSANITIZED inline void NoteFence() { t_current.fenced = 1; }
IRIS_EMU_UNSANITIZED inline bool IsFenced() { return t_current.fenced != 0; }
#else
inline void NoteFence() {}
constexpr bool IsFenced() { return false; }
#endif

template <AtomicOp Op, typename T>
inline T Apply(T old, T operand) {
  if constexpr (Op == AtomicOp::kAdd) {
    return old + operand;
  } else if constexpr (Op == AtomicOp::kSub) {
    return old - operand;
  } else if constexpr (Op == AtomicOp::kMin) {
    return operand < old ? operand : old;
  } else if constexpr (Op == AtomicOp::kMax) {
    return old < operand ? operand : old;
  } else {
    static_assert(Op == AtomicOp::kExchange);
    return operand;
  }
}

}  // namespace emu

// Memory

template <Scope S, Order O, typename T>
inline T Load(const T* p) {
  static_assert(O == Order::kRelaxed || O == Order::kAcquire, "a load is relaxed or acquires");
  emu::CheckAtomicType<T>();
  emu::CountPoll();
  T value;
  __atomic_load(p, &value, emu::BuiltinOrder(O));
  return value;
}

template <Scope S, Order O, typename T>
inline void Store(T* p, T value) {
  static_assert(O == Order::kRelaxed || O == Order::kRelease, "a store is relaxed or releases");
  emu::CheckAtomicType<T>();
  emu::MarkStored();
  if (O == Order::kRelaxed && emu::IsFenced()) {
    __atomic_store(p, &value, __ATOMIC_RELEASE);
  } else {
    __atomic_store(p, &value, emu::BuiltinOrder(O));
  }
}

// Compares bits, so that floats behave like integers of their size.
template <Scope S, Order O, typename T>
inline T CompareExchange(T* p, T expected, T desired) {
  emu::CheckAtomicType<T>();
  emu::CountPoll();
  const bool swapped = O == Order::kRelaxed && emu::IsFenced()
                           ? __atomic_compare_exchange(p, &expected, &desired, false,
                                                       __ATOMIC_RELEASE, __ATOMIC_RELAXED)
                           : __atomic_compare_exchange(p, &expected, &desired, false,
                                                       emu::BuiltinOrder(O), emu::FailureOrder(O));
  if (swapped) emu::MarkStored();
  return expected;
}

// Min and max of floats leave a NaN in memory as it is, and ignore a NaN operand.
template <AtomicOp Op, Scope S, Order O, typename T>
inline T FetchOp(T* p, T operand) {
  emu::CheckAtomicType<T>();
  static_assert((std::is_integral_v<T> && !std::is_same_v<T, bool>) ||
                    std::is_floating_point_v<T> || emu::kIsNarrowFloat<T> ||
                    Op == AtomicOp::kExchange,
                "no arithmetic on this type");
  if constexpr (O == Order::kRelaxed) {
    if (emu::IsFenced()) return FetchOp<Op, S, Order::kRelease>(p, operand);
  }
  emu::CountPoll();
  emu::MarkStored();
  constexpr int kOrder = emu::BuiltinOrder(O);
  if constexpr (Op == AtomicOp::kExchange) {
    T old;
    __atomic_exchange(p, &operand, &old, kOrder);
    return old;
  } else if constexpr (Op == AtomicOp::kAnd) {
    static_assert(std::is_integral_v<T>, "bitwise operations are for integers");
    return __atomic_fetch_and(p, operand, kOrder);
  } else if constexpr (Op == AtomicOp::kOr) {
    static_assert(std::is_integral_v<T>, "bitwise operations are for integers");
    return __atomic_fetch_or(p, operand, kOrder);
  } else if constexpr (Op == AtomicOp::kXor) {
    static_assert(std::is_integral_v<T>, "bitwise operations are for integers");
    return __atomic_fetch_xor(p, operand, kOrder);
  } else if constexpr (Op == AtomicOp::kAdd && std::is_integral_v<T>) {
    return __atomic_fetch_add(p, operand, kOrder);
  } else if constexpr (Op == AtomicOp::kSub && std::is_integral_v<T>) {
    return __atomic_fetch_sub(p, operand, kOrder);
  } else {
    T old;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    for (;;) {
      T desired = emu::Apply<Op>(old, operand);
      if (__atomic_compare_exchange(p, &old, &desired, true, kOrder, emu::FailureOrder(O))) {
        return old;
      }
    }
  }
}

template <Scope S, Order O>
inline void Fence() {
  if constexpr (O != Order::kRelaxed) {
    emu::NoteFence();
    __atomic_thread_fence(emu::BuiltinOrder(O));
  }
}

// memcpy of a constant size is one move, and says nothing about the type that the memory really
// has.
template <typename T>
inline T LoadPlain(const T* p) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  memcpy(&value, __builtin_assume_aligned(p, alignof(T)), sizeof(T));
  return value;
}

template <typename T>
inline void StorePlain(T* p, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  memcpy(__builtin_assume_aligned(p, alignof(T)), &value, sizeof(T));
}

// kVolatile reads each half with an atomic load, so that a loop over it polls.
template <CacheHint H>
inline Bytes16 Load16(const void* p) {
  Bytes16 value;
  if constexpr (H == CacheHint::kVolatile) {
    const uint64_t* words = static_cast<const uint64_t*>(p);
    value.lo = Load<Scope::kSystem, Order::kRelaxed>(words);
    value.hi = Load<Scope::kSystem, Order::kRelaxed>(words + 1);
  } else {
    memcpy(&value, __builtin_assume_aligned(p, 16), sizeof(value));
  }
  return value;
}

template <CacheHint H>
inline void Store16(void* p, Bytes16 value) {
  if constexpr (H == CacheHint::kVolatile) {
    uint64_t* words = static_cast<uint64_t*>(p);
    Store<Scope::kSystem, Order::kRelaxed>(words, value.lo);
    Store<Scope::kSystem, Order::kRelaxed>(words + 1, value.hi);
  } else {
    memcpy(__builtin_assume_aligned(p, 16), &value, sizeof(value));
  }
}

// Threads

IRIS_EMU_UNSANITIZED inline uint32_t ThreadIndex() { return emu::t_current.thread_index; }
IRIS_EMU_UNSANITIZED inline uint32_t BlockIndex() { return emu::t_current.block_index; }
IRIS_EMU_UNSANITIZED inline uint32_t BlockSize() { return emu::t_current.block_size; }
IRIS_EMU_UNSANITIZED inline uint32_t GridSize() { return emu::t_current.grid_size; }
constexpr uint32_t WarpSize() { return Traits::kWarpThreads; }
inline uint32_t LaneIndex() { return ThreadIndex() % Traits::kWarpThreads; }
inline uint32_t WarpIndex() { return ThreadIndex() / Traits::kWarpThreads; }

inline void BlockSync() { emu::SyncBlock(); }
inline void WarpSync() { emu::SyncWarp(); }

template <typename T>
inline T Shuffle(T value, uint32_t lane) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  Bytes16 bytes;
  memcpy(static_cast<void*>(&bytes), &value, sizeof(T));
  bytes = emu::ShuffleBytes(bytes, lane);
  memcpy(&value, &bytes, sizeof(T));
  return value;
}

template <typename T>
inline T ShuffleXor(T value, uint32_t mask) {
  return Shuffle(value, LaneIndex() ^ mask);
}

template <typename T>
inline T ShuffleDown(T value, uint32_t delta) {
  const uint32_t lane = LaneIndex();
  return Shuffle(value, delta < Traits::kWarpThreads - lane ? lane + delta : Traits::kWarpThreads);
}

inline uint64_t Ballot(bool value) { return emu::BallotBits(value); }
inline bool WarpAny(bool value) { return emu::BallotBits(value) != 0; }
inline bool WarpAll(bool value) { return emu::BallotBits(!value) == 0; }

inline void* DynamicShared() { return emu::DynamicSharedBytes(); }

inline uint16_t HalfBitsOf(float value) { return numeric::HalfBitsOf(value); }
inline float FloatOfHalf(uint16_t half) { return numeric::FloatOfHalf(half); }
inline uint16_t BfloatBitsOf(float value) { return numeric::BfloatBitsOf(value); }

// Others

uint64_t ClockNanoseconds();
void Pause();
[[noreturn]] inline void Trap(const char* literal) { emu::TrapWith(literal); }

// Host

namespace emu {

class StreamState;
struct Capture;
struct EventState;

// A kernel with its arguments. A graph runs it again and again.
class Work {
 public:
  virtual ~Work() = default;
  // Called once by each thread of the grid.
  virtual void Run() const noexcept = 0;
};

template <typename... Params>
class KernelWork final : public Work {
 public:
  template <typename... Args>
  explicit KernelWork(void (*kernel)(Params...), Args&&... args)
      : kernel_(kernel), args_(std::forward<Args>(args)...) {}
  void Run() const noexcept override { std::apply(kernel_, args_); }

 private:
  void (*kernel_)(Params...);
  std::tuple<Params...> args_;
};

Result Submit(const LaunchConfig& config, StreamState* stream, std::shared_ptr<const Work> work);

}  // namespace emu

class Event;
class Graph;

uint32_t DeviceCount();
Result SetDevice(uint32_t index);

class Stream {
 public:
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  static Result Create(Stream* out);
  static Stream Borrow(void* native);
  void* native() const { return state_; }
  Result Synchronize();
  bool Idle();

 private:
  template <typename... Params, typename... Args>
  friend Result Launch(const LaunchConfig& config, Stream& stream, void (*kernel)(Params...),
                       Args&&... args);
  friend Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream);
  friend Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream);
  friend Result BeginCapture(Stream& stream);
  friend Result EndCapture(Stream& stream, Graph* out);
  friend Result LaunchGraph(Graph& graph, Stream& stream);
  friend Result Record(Event& event, Stream& stream);
  friend Result WaitEvent(Stream& stream, const Event& event);

  emu::StreamState* state_ = nullptr;
  bool owned_ = false;
};

template <typename... Params, typename... Args>
Result Launch(const LaunchConfig& config, Stream& stream, void (*kernel)(Params...),
              Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "a kernel gets one argument per parameter");
  static_assert((!std::is_reference_v<Params> && ...), "a kernel's parameters are values");
  static_assert((std::is_trivially_copyable_v<Params> && ...), "... and trivially copyable");
  if (kernel == nullptr) return {ErrorCode::kInvalidArgument, "launch of a null kernel"};
  return emu::Submit(
      config, stream.state_,
      std::make_shared<emu::KernelWork<Params...>>(kernel, std::forward<Args>(args)...));
}

template <typename... Params>
Result PrepareKernel(void (*kernel)(Params...), uint32_t shared_bytes = 0) {
  if (kernel == nullptr) return {ErrorCode::kInvalidArgument, "preparation of a null kernel"};
  if (shared_bytes > Traits::kMaxDynamicSharedBytes) {
    return {ErrorCode::kInvalidArgument,
            "kernel with too much shared memory: at most 163,840 bytes"};
  }
  return {};
}

// The ranges must not overlap.
Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream);
Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream);

// Branches of a graph that were captured from several streams run one after another, in the order
// of their calls: kernels of different branches must not wait for each other.
class Graph {
 public:
  Graph();
  ~Graph();
  Graph(Graph&& other) noexcept;
  Graph& operator=(Graph&& other) noexcept;

 private:
  friend Result EndCapture(Stream& stream, Graph* out);
  friend Result LaunchGraph(Graph& graph, Stream& stream);

  std::shared_ptr<const emu::Capture> nodes_;
};

Result BeginCapture(Stream& stream);
Result EndCapture(Stream& stream, Graph* out);
Result LaunchGraph(Graph& graph, Stream& stream);

class Event {
 public:
  Event();
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  static Result Create(Event* out);

 private:
  friend Result Record(Event& event, Stream& stream);
  friend Result WaitEvent(Stream& stream, const Event& event);
  friend Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out);

  std::shared_ptr<emu::EventState> state_;
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
