// Fiber: one flow of control on a stack of its own, and StackPool, the source of stacks. Both
// belong to one OS thread. A switch saves the callee-saved registers and the floating point control
// words, and costs a few nanoseconds.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "iris/backend/emu/sanitizers.h"

namespace iris::backend::emu {

// Virtual, guard included; a modest kernel touches one page. Sanitizers have larger frames.
#if defined(IRIS_ASAN) || defined(IRIS_TSAN)
inline constexpr size_t kStackBytes = 260 * 1024;
#else
inline constexpr size_t kStackBytes = 68 * 1024;
#endif
// The lowest page of a stack may not be touched. Linux 6.13 keeps such pages without mappings.
// Older kernels have room for those of kGuardedSlabs; further stacks check the lowest word above.
inline constexpr size_t kGuardBytes = 4096;
inline constexpr size_t kUsableStackBytes = kStackBytes - kGuardBytes;
inline constexpr size_t kStacksPerSlab = 256;
inline constexpr size_t kGuardedSlabs = 16;
// An odd number of pages, and tops some cache lines apart, so that the threads of a block do not
// compete for the same few sets of the caches.
inline constexpr size_t kColours = 16;
inline constexpr size_t kColourBytes = 64;
// Free stacks beyond this many give their pages back.
inline constexpr size_t kWarmStacks = 2048;

class StackPool {
 public:
  // `guard_by_mapping`: as on kernels before 6.13.
  explicit StackPool(bool guard_by_mapping = false) : guard_by_mapping_(guard_by_mapping) {}
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  // The lowest address of kStackBytes, the guard. Null if the system has no memory.
  uint8_t* Take();
  void Give(uint8_t* stack);

  size_t free_count() const { return free_.size(); }
  size_t slab_count() const { return slabs_.size(); }

 private:
  const bool guard_by_mapping_;
  std::vector<uint8_t*> slabs_;
  std::vector<uint8_t*> free_;
};

class Fiber {
 public:
  using Entry = void (*)(void* argument) noexcept;

  // Makes the fiber ready to run `entry(argument)` on `stack`. It is finished when that returns.
  void Prepare(uint8_t* stack, Entry entry, void* argument);

  // Runs it until it switches out or finishes. Called from outside of any fiber.
  inline void SwitchIn();

  // Called inside it: SwitchIn returns, and this returns in the next SwitchIn.
  inline void SwitchOut();

  bool finished() const { return finished_; }

  // Returns false if the fiber, which is switched out, has written, or is now, below its stack.
  inline bool StackIsWhole() const;

  // Returns true if the address is in the page below the stack.
  bool IsGuard(const void* address) const {
    const uint8_t* const byte = static_cast<const uint8_t*>(address);
    return stack_ != nullptr && byte >= stack_ && byte < stack_ + kGuardBytes;
  }

  // After it has finished: gives back the stack.
  uint8_t* Release();

  // For ThreadSanitizer's reports.
  void SetName(const char* name);

 private:
  struct Trampoline;

  void* context_ = nullptr;  // where it stands while switched out
  void* caller_ = nullptr;   // where SwitchIn stands while it runs
  uint8_t* stack_ = nullptr;
  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  bool finished_ = false;
  // For the sanitizers.
  void* fake_stack_ = nullptr;
  const void* caller_bottom_ = nullptr;
  size_t caller_bytes_ = 0;
  void* tsan_fiber_ = nullptr;
  void* tsan_caller_ = nullptr;
};

// Inline, because the processor mispredicts every return after a switch.

inline void Fiber::SwitchIn() {
  void* fake_stack = nullptr;
  tsan_caller_ = TsanCurrentFiber();
  AsanStartSwitch(&fake_stack, stack_, kStackBytes);
  TsanSwitch(tsan_fiber_);
  context_ = boost::context::detail::jump_fcontext(context_, this).fctx;
  AsanFinishSwitch(fake_stack, nullptr, nullptr);
}

inline void Fiber::SwitchOut() {
  AsanStartSwitch(&fake_stack_, caller_bottom_, caller_bytes_);
  TsanSwitch(tsan_caller_);
  caller_ = boost::context::detail::jump_fcontext(caller_, nullptr).fctx;
  AsanFinishSwitch(fake_stack_, &caller_bottom_, &caller_bytes_);
}

inline bool Fiber::StackIsWhole() const {
  const uint8_t* top = static_cast<const uint8_t*>(context_);
  const uint8_t* lowest = stack_ + kGuardBytes;
  if (top < lowest + sizeof(uint64_t) || top > stack_ + kStackBytes) return false;
  // Reading an untouched page maps the shared page of zeros: no memory.
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(lowest), __ATOMIC_RELAXED) == 0;
}

}  // namespace iris::backend::emu
