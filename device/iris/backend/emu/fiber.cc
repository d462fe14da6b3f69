#include "iris/backend/emu/fiber.h"

#include <sys/mman.h>

#include <atomic>

namespace iris::backend::emu {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr size_t kSlabBytes = kStacksPerSlab * kStackBytes;
constexpr int kMapFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;

#ifndef MADV_GUARD_INSTALL
constexpr int kGuardInstall = 102;  // since Linux 6.13
#else
constexpr int kGuardInstall = MADV_GUARD_INSTALL;
#endif

// The number of slabs in this process whose guards are mappings, which are limited.
std::atomic<size_t> g_guarded_slabs{0};

// Makes the lowest page of each stack inaccessible. Returns false if this failed for all stacks.
bool GuardStacks(uint8_t* slab, bool by_mapping) {
  for (size_t i = 0; i < kStacksPerSlab; ++i) {
    uint8_t* guard = slab + i * kStackBytes;
    if (!by_mapping && madvise(guard, kGuardBytes, kGuardInstall) == 0) continue;
    by_mapping = true;
    if (i > 0 && g_guarded_slabs.load(std::memory_order_relaxed) >= kGuardedSlabs) {
      break;
    }
    if (mprotect(guard, kGuardBytes, PROT_NONE) != 0) return i > 0;
  }
  if (by_mapping) g_guarded_slabs.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace

StackPool::~StackPool() {
  for (uint8_t* slab : slabs_) munmap(slab, kSlabBytes);
}

uint8_t* StackPool::Take() {
  if (free_.empty()) {
    void* slab = mmap(nullptr, kSlabBytes, PROT_READ | PROT_WRITE, kMapFlags, -1, 0);
    if (slab == MAP_FAILED) return nullptr;
    uint8_t* bytes = static_cast<uint8_t*>(slab);
    // Otherwise a touched page may become a huge page, which covers 32 stacks.
    madvise(slab, kSlabBytes, MADV_NOHUGEPAGE);
    if (!GuardStacks(bytes, guard_by_mapping_)) {
      munmap(slab, kSlabBytes);
      return nullptr;
    }
    slabs_.push_back(bytes);
    for (size_t i = kStacksPerSlab; i-- > 0;) free_.push_back(bytes + i * kStackBytes);
  }
  uint8_t* stack = free_.back();
  free_.pop_back();
  return stack;
}

void StackPool::Give(uint8_t* stack) {
  AsanUnpoison(stack, kStackBytes);
  if (kTsan) {
    // A new mapping makes ThreadSanitizer forget the earlier writer.
    if (mmap(stack + kGuardBytes, kUsableStackBytes, PROT_READ | PROT_WRITE, kMapFlags | MAP_FIXED,
             -1, 0) == MAP_FAILED) {
      return;  // drop the stack: reusing it would give false reports
    }
    madvise(stack + kGuardBytes, kUsableStackBytes, MADV_NOHUGEPAGE);
  } else if (free_.size() >= kWarmStacks) {
    madvise(stack, kStackBytes, MADV_DONTNEED);
  }
  free_.push_back(stack);
}

struct Fiber::Trampoline {
  static void Enter(transfer_t transfer) {
    Fiber* fiber = static_cast<Fiber*>(transfer.data);
    fiber->caller_ = transfer.fctx;
    AsanFinishSwitch(nullptr, &fiber->caller_bottom_, &fiber->caller_bytes_);
    fiber->entry_(fiber->argument_);
    fiber->finished_ = true;
    AsanStartSwitch(nullptr, fiber->caller_bottom_, fiber->caller_bytes_);
    TsanSwitch(fiber->tsan_caller_);
    jump_fcontext(fiber->caller_, nullptr);
    __builtin_unreachable();
  }
};

void Fiber::Prepare(uint8_t* stack, Entry entry, void* argument) {
  stack_ = stack;
  entry_ = entry;
  argument_ = argument;
  finished_ = false;
  const size_t colour = reinterpret_cast<uintptr_t>(stack) / kStackBytes % kColours;
  context_ =
      make_fcontext(stack + kStackBytes - colour * kColourBytes, kStackBytes, &Trampoline::Enter);
  tsan_fiber_ = TsanCreateFiber();
}

uint8_t* Fiber::Release() {
  TsanDestroyFiber(tsan_fiber_);
  tsan_fiber_ = nullptr;
  uint8_t* stack = stack_;
  stack_ = nullptr;
  return stack;
}

void Fiber::SetName(const char* name) { TsanNameFiber(tsan_fiber_, name); }

}  // namespace iris::backend::emu
