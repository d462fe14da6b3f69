// The emu backend: kernels on CPUs. primitives.h and host.h have the contracts.
//
// Worker threads of one process-wide pool take the blocks of launches; a block stays on its worker.
// The threads of a block are fibers, which run until they sync, shuffle, pause, or have polled
// kPollsPerTurn times. When no thread of a worker's blocks makes progress, the worker starts
// another block, then yields to the OS. So all blocks of all launches are co-resident, and a kernel
// that spins does not starve another one in this process or in others.
//
// Beyond the contracts, on emu:
//   - A thread that has returned no longer counts for syncs, shuffles and ballots. A shuffle from
//     its lane returns the caller's value. Returning orders no memory.
//   - If some threads wait in BlockSync and the others in WarpSync or a shuffle: Trap.
//   - A stack has 64 KiB (256 under a sanitizer). Overflowing it ends the process: with a
//     message at its guard page, or at the next switch of the thread.
//   - A wrong peer or address, or an access to unmapped memory, ends the process with a message
//     that names the kernel, the place, and the memory near the address (diagnosis.h).
//   - Exceptions do not leave a kernel (std::terminate), and no thread may sync, pause or load
//     while it handles one: the OS thread has one stack of exceptions for all its fibers.
//   - Each thread has its own floating point environment (rounding, masks), fresh at its start.
//   - Kernels do not launch, copy or synchronize: kFailedPrecondition. Neither does a forked child.
//   - The memory and poll functions work on host threads, too.
//   - Branches of a graph run one after another, in the order of their calls: kernels of different
//     branches must not wait for each other.
//   - IRIS_EMU_WORKERS sets the number of worker threads (default: the cores).
//   - IRIS_EMU_RESIDENT_BLOCKS=N limits the process to N running blocks at once (default: no
//     limit), so that blocks delay others as on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "iris/backend/heap_map.h"
#include "iris/backend/host_functions.h"
#include "iris/backend/raw_host.h"
#include "iris/backend/types.h"

#define IRIS_DEVICE
#define IRIS_COLD inline
#define IRIS_INLINED inline
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
// The address of the key identifies the variable; its memory is in the block's arena.
#define IRIS_SHARED(type, name)       \
  static char iris_shared_key_##name; \
  auto& name = ::iris::backend::emu::SharedVariable<type>(&iris_shared_key_##name)

#include "iris/backend/numeric_soft.h"
#include "iris/backend/words.h"

namespace iris::backend {

struct Traits {
  static constexpr const char* kName = "emu";
  static constexpr bool kEmulated = true;
  static constexpr uint32_t kWarpThreads = 32;
  static constexpr bool kLaunchPublishes = false;
  // This limits DynamicShared only; IRIS_SHARED has kMaxStaticSharedBytes.
  static constexpr uint32_t kMaxDynamicSharedBytes = 160 * 1024;
  static constexpr bool kNullIsAStream = false;
  static constexpr bool kOrdersByFences = false;
  static constexpr uint32_t kNarrowestExchangeBytes = 1;
  static constexpr bool kHasVolatile16 = false;
  static constexpr bool kStoresWholeLines = false;
};

inline constexpr uint32_t kPollsPerTurn = 1000;
// The limit of all IRIS_SHARED variables of a block together.
inline constexpr uint32_t kMaxStaticSharedBytes = 64 * 1024;

namespace emu {

// The running thread of a kernel. Host threads are thread 0 of a grid of one.
struct Current {
  uint32_t thread_index;
  uint32_t block_index;
  uint32_t block_size;
  uint32_t grid_size;
  uint32_t polls;      // since the last switch
  uint32_t stored;     // nonzero: has done more than poll, so the worker does not sleep
  uint32_t fenced;     // ThreadSanitizer builds: this thread has fenced (see Fence)
  uint32_t in_kernel;  // 0 on host threads
};
// __thread, not thread_local, avoids a wrapper function. A block never leaves its worker, so an
// address of t_current that the compiler keeps over a switch remains valid.
extern __thread Current t_current __attribute__((tls_model("initial-exec")));

// For all users of t_current: ThreadSanitizer must not see that threads of a kernel share it.
#ifdef IRIS_TSAN
#define IRIS_EMU_UNSANITIZED __attribute__((no_sanitize("thread"), noinline))
#else
#define IRIS_EMU_UNSANITIZED
#endif

// The parts of the running thread's operations that are in the uninstrumented runtime.
void SwitchAfterPolls();
void SyncBlock();
void SyncWarp();
Bytes16 ShuffleBytes(Bytes16 value, uint32_t source_lane);
uint64_t BallotBits(bool value);
uint32_t WorkerIndex();
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

// Returns the order of the load in a compare-exchange that fails.
constexpr int FailureOrder(Order order) {
  if (order == Order::kRelaxed || order == Order::kRelease) return __ATOMIC_RELAXED;
  return order == Order::kSeqCst ? __ATOMIC_SEQ_CST : __ATOMIC_ACQUIRE;
}

IRIS_EMU_UNSANITIZED inline void CountPoll() {
  if (__builtin_expect(++t_current.polls >= kPollsPerTurn, 0)) SwitchAfterPolls();
}

IRIS_EMU_UNSANITIZED inline void MarkStored() { t_current.stored = 1; }

// ThreadSanitizer does not model fences. In its builds relaxed stores after a fence are releases.
#ifdef IRIS_TSAN
IRIS_EMU_UNSANITIZED inline void NoteFence() { t_current.fenced = 1; }
IRIS_EMU_UNSANITIZED inline bool IsFenced() { return t_current.fenced != 0; }
#else
inline void NoteFence() {}
constexpr bool IsFenced() { return false; }
#endif

}  // namespace emu

namespace raw {

inline void NotePoll() { emu::CountPoll(); }
inline void NoteStore() { emu::MarkStored(); }

template <Scope S, Order O, typename W>
inline W LoadWord(const void* p) {
  using Aliasing [[gnu::may_alias]] = W;
  return __atomic_load_n(static_cast<const Aliasing*>(p), emu::BuiltinOrder(O));
}

template <Scope S, Order O, typename W>
inline void StoreWord(void* p, W value) {
  using Aliasing [[gnu::may_alias]] = W;
  if (O == Order::kRelaxed && emu::IsFenced()) {
    __atomic_store_n(static_cast<Aliasing*>(p), value, __ATOMIC_RELEASE);
  } else {
    __atomic_store_n(static_cast<Aliasing*>(p), value, emu::BuiltinOrder(O));
  }
}

template <Scope S, Order O, typename W>
inline W CompareExchangeWord(void* p, W expected, W desired) {
  using Aliasing [[gnu::may_alias]] = W;
  if (O == Order::kRelaxed && emu::IsFenced()) {
    __atomic_compare_exchange_n(static_cast<Aliasing*>(p), &expected, desired, false,
                                __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  } else {
    __atomic_compare_exchange_n(static_cast<Aliasing*>(p), &expected, desired, false,
                                emu::BuiltinOrder(O), emu::FailureOrder(O));
  }
  return expected;
}

template <AtomicOp Op, typename T>
inline constexpr bool kHasFetch =
    std::is_integral_v<T>&& Op != AtomicOp::kMin&& Op != AtomicOp::kMax;

template <AtomicOp Op, Scope S, Order O, typename T>
inline T Fetch(void* p, T operand) {
  if constexpr (O == Order::kRelaxed) {
    if (emu::IsFenced()) return Fetch<Op, S, Order::kRelease, T>(p, operand);
  }
  using Aliasing [[gnu::may_alias]] = T;
  Aliasing* const word = static_cast<Aliasing*>(p);
  constexpr int kOrder = emu::BuiltinOrder(O);
  if constexpr (Op == AtomicOp::kExchange) {
    return __atomic_exchange_n(word, operand, kOrder);
  } else if constexpr (Op == AtomicOp::kAnd) {
    return __atomic_fetch_and(word, operand, kOrder);
  } else if constexpr (Op == AtomicOp::kOr) {
    return __atomic_fetch_or(word, operand, kOrder);
  } else if constexpr (Op == AtomicOp::kXor) {
    return __atomic_fetch_xor(word, operand, kOrder);
  } else {
    static_assert(Op == AtomicOp::kAdd);
    return __atomic_fetch_add(word, operand, kOrder);
  }
}

// memcpy of a constant size compiles to one move, and assumes nothing about the memory's type.
template <typename T>
inline T LoadPlain(const T* p) {
  T value;
  memcpy(&value, __builtin_assume_aligned(p, alignof(T)), sizeof(T));
  return value;
}

template <typename T>
inline void StorePlain(T* p, T value) {
  memcpy(__builtin_assume_aligned(p, alignof(T)), &value, sizeof(T));
}

template <typename W>
inline W LoadStreaming(const void* p) {
  W word;
  memcpy(&word, __builtin_assume_aligned(p, sizeof(W)), sizeof(W));
  return word;
}

template <typename W>
inline void StoreStreaming(void* p, W word) {
  memcpy(__builtin_assume_aligned(p, sizeof(W)), &word, sizeof(W));
}

template <CacheHint H>
inline Bytes16 Load16(const void* p) {
  Bytes16 value;
  memcpy(&value, __builtin_assume_aligned(p, 16), sizeof(value));
  return value;
}

template <CacheHint H>
inline void Store16(void* p, Bytes16 value) {
  memcpy(__builtin_assume_aligned(p, 16), &value, sizeof(value));
}

}  // namespace raw

template <Scope S, Order O>
inline void Fence() {
  if constexpr (O != Order::kRelaxed) {
    emu::NoteFence();
    __atomic_thread_fence(emu::BuiltinOrder(O));
  }
}

IRIS_EMU_UNSANITIZED inline uint32_t ThreadIndex() { return emu::t_current.thread_index; }
IRIS_EMU_UNSANITIZED inline uint32_t BlockIndex() { return emu::t_current.block_index; }
IRIS_EMU_UNSANITIZED inline uint32_t BlockSize() { return emu::t_current.block_size; }
IRIS_EMU_UNSANITIZED inline uint32_t GridSize() { return emu::t_current.grid_size; }

inline void BlockSync() { emu::SyncBlock(); }
inline void WarpSync() { emu::SyncWarp(); }

namespace raw {

using ShuffleUnit = Bytes16;
inline uint32_t ShuffleSource(uint32_t lane) { return lane; }
inline Bytes16 ShuffleOne(Bytes16 unit, uint32_t source) { return emu::ShuffleBytes(unit, source); }

}  // namespace raw

inline uint64_t Ballot(bool value) { return emu::BallotBits(value); }
// Each thread is a fiber.
inline bool WarpIsTogether() { return false; }

inline void* DynamicShared() { return emu::DynamicSharedBytes(); }

inline uint16_t HalfBitsOf(float value) { return numeric::HalfBitsOf(value); }
inline float FloatOfHalf(uint16_t half) { return numeric::FloatOfHalf(half); }
inline uint16_t BfloatBitsOf(float value) { return numeric::BfloatBitsOf(value); }

inline uint32_t MultiprocessorIndex() { return emu::WorkerIndex(); }
inline uint64_t ClockNanoseconds() { return HostClockNanoseconds(); }
void Pause();
void WakeHost(uint32_t* asleep, int32_t wake_fd);
inline void AwaitKernelBefore() {}  // the stream has already waited for that kernel
inline void LetNextBegin() {}
[[noreturn]] inline void Trap(const char* literal) { emu::TrapWith(literal); }

namespace emu {

class StreamState;

// A kernel with its arguments. A graph runs it again and again.
class Work {
 public:
  virtual ~Work() = default;
  // Runs the kernel in the calling thread; called once by each thread of the grid.
  virtual void Run() const noexcept = 0;
  // For diagnoses: Kernel returns the kernel's address or null; Heaps returns false if the kernel
  // has no DeviceContext.
  virtual const void* Kernel() const noexcept { return nullptr; }
  virtual bool Heaps(HeapView*) const noexcept { return false; }
};

// Detects by its fields a DeviceContext, which backends do not define, or a field `context`.
template <typename T, typename = void>
struct IsContext : std::false_type {};
template <typename T>
struct IsContext<T, std::void_t<decltype(std::declval<const T&>().heap_map)>> : std::true_type {};
template <typename T, typename = void>
struct HasContext : std::false_type {};
template <typename T>
struct HasContext<T, std::void_t<decltype(std::declval<const T&>().context)>>
    : IsContext<std::decay_t<decltype(std::declval<const T&>().context)>> {};

// Finds the heaps that an argument of a kernel describes. Returns false if it describes none.
template <typename T>
bool HeapsOf(const T& argument, HeapView* out) {
  if constexpr (IsContext<T>::value) {
    *out = {argument.rank,     argument.n_ranks,      argument.base,    argument.stride_bytes,
            argument.heap_map, argument.first_mapped, argument.n_mapped};
    return true;
  } else if constexpr (HasContext<T>::value) {
    return HeapsOf(argument.context, out);
  } else {
    (void)argument;
    (void)out;
    return false;
  }
}

template <typename... Params>
class KernelWork final : public Work {
 public:
  using Arguments = std::tuple<std::remove_const_t<Params>...>;
  KernelWork(void (*kernel)(Params...), Arguments&& arguments)
      : kernel_(kernel), arguments_(std::move(arguments)) {}
  void Run() const noexcept override { std::apply(kernel_, arguments_); }
  const void* Kernel() const noexcept override { return reinterpret_cast<const void*>(kernel_); }
  bool Heaps(HeapView* out) const noexcept override {
    return std::apply(
        [out](const auto&... argument) {
          (void)out;  // unused for a kernel without arguments
          return (HeapsOf(argument, out) || ...);
        },
        arguments_);
  }

 private:
  void (*kernel_)(Params...);
  Arguments arguments_;
};

Result Submit(const LaunchConfig& config, StreamState* stream, std::shared_ptr<const Work> work);

}  // namespace emu

namespace raw {

template <typename... Params, typename... Values>
Result Launch(const LaunchConfig& config, const StreamHandle& stream, void (*kernel)(Params...),
              std::tuple<Values...>& values) {
  return emu::Submit(config, static_cast<emu::StreamState*>(stream.native),
                     std::make_shared<emu::KernelWork<Params...>>(kernel, std::move(values)));
}

}  // namespace raw

}  // namespace iris::backend
