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

// Virtual, guard included. A modest kernel touches one page. Sanitizers have larger frames.
#if defined(IRIS_ASAN) || defined(IRIS_TSAN)
inline constexpr size_t kStackBytes = 260 * 1024;
#else
inline constexpr size_t kStackBytes = 68 * 1024;
#endif
// The lowest page of a stack is an inaccessible guard, without a mapping on Linux 6.13. Before,
// there is room for those of kGuardedSlabs; other stacks check the lowest word above instead.
inline constexpr size_t kGuardBytes = 4096;
inline constexpr size_t kUsableStackBytes = kStackBytes - kGuardBytes;
inline constexpr size_t kStacksPerSlab = 256;
inline constexpr size_t kGuardedSlabs = 16;
// Stacks have an odd number of pages, and their tops are offset by some cache lines, so that the
// threads of a block do not compete for a few sets of the caches.
inline constexpr size_t kColours = 16;
inline constexpr size_t kColourBytes = 64;
// The number of free stacks that keep their pages.
inline constexpr size_t kWarmStacks = 2048;

class StackPool {
 public:
  // If `guard_by_mapping`, guards are mappings even on Linux 6.13 and later.
  explicit StackPool(bool guard_by_mapping = false) : guard_by_mapping_(guard_by_mapping) {}
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  // Returns the lowest address of kStackBytes, that of the guard. Null if memory runs out.
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

  // Prepares the fiber to run `entry(argument)` on `stack`. It is finished when `entry` returns.
  void Prepare(uint8_t* stack, Entry entry, void* argument);

  // Runs the fiber until it switches out or finishes. Called from outside of any fiber.
  inline void SwitchIn();

  // Switches out, from inside the fiber: SwitchIn returns, and the next SwitchIn continues here.
  inline void SwitchOut();

  bool finished() const { return finished_; }

  // Returns false if the fiber, which is switched out, has written below its stack or is below it.
  inline bool StackIsWhole() const;

  // Returns true if the address is in the page below the stack.
  bool IsGuard(const void* address) const {
    const uint8_t* const byte = static_cast<const uint8_t*>(address);
    return stack_ != nullptr && byte >= stack_ && byte < stack_ + kGuardBytes;
  }

  // Returns the stack of a finished fiber to the caller.
  uint8_t* Release();

  // Sets the name that ThreadSanitizer's reports show.
  void SetName(const char* name);

 private:
  struct Trampoline;

  void* context_ = nullptr;  // of the fiber while it is switched out
  void* caller_ = nullptr;   // of SwitchIn's caller while the fiber runs
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
  // Reading an untouched page maps the shared page of zeros, so it costs no memory.
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(lowest), __ATOMIC_RELAXED) == 0;
}

}  // namespace iris::backend::emu
