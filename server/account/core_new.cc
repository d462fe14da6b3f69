// operator new and delete of irisd, which count for CoreMemory.
//
// The last two bytes of a block hold the slot that it counts for, so blocks keep the alignment of
// the C library, and the thread that frees one need not know its account.
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include <cstddef>
#include <new>

#include "server/account/core_memory.h"

namespace {

using iris::server::CoreMemory;
using iris::server::MemorySlot;
using iris::server::OnBehalfOf;

// Bytes of the C library's header before each block.
constexpr size_t kBlockHeaderBytes = sizeof(size_t);

char* SlotOf(void* block, size_t usable) {
  return static_cast<char*>(block) + usable - sizeof(MemorySlot);
}

// Returns null if the system has no memory.
void* TryTake(size_t bytes, size_t alignment) {
  size_t wanted = bytes + sizeof(MemorySlot);
  if (wanted < bytes) return nullptr;
  if (alignment <= alignof(std::max_align_t)) return malloc(wanted);
  void* block = nullptr;
  return posix_memalign(&block, alignment, wanted) == 0 ? block : nullptr;
}

void* Take(size_t bytes, size_t alignment = 0) {
  void* block = nullptr;
  while ((block = TryTake(bytes, alignment)) == nullptr) {
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
  const size_t usable = malloc_usable_size(block);
  const MemorySlot slot = OnBehalfOf::Current();
  memcpy(SlotOf(block, usable), &slot, sizeof(slot));
  CoreMemory::Count(slot, static_cast<int64_t>(usable + kBlockHeaderBytes));
  return block;
}

void* TakeOrNull(size_t bytes, size_t alignment = 0) noexcept {
  try {
    return Take(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void GiveBack(void* block) noexcept {
  if (block == nullptr) return;
  const size_t usable = malloc_usable_size(block);
  MemorySlot slot = 0;
  memcpy(&slot, SlotOf(block, usable), sizeof(slot));
  CoreMemory::Count(slot, -static_cast<int64_t>(usable + kBlockHeaderBytes));
  free(block);
}

size_t Of(std::align_val_t alignment) { return static_cast<size_t>(alignment); }

}  // namespace

// All forms are defined here, since a sanitizer's library would otherwise provide some.
void* operator new(size_t n) { return Take(n); }
void* operator new[](size_t n) { return Take(n); }
void* operator new(size_t n, std::align_val_t a) { return Take(n, Of(a)); }
void* operator new[](size_t n, std::align_val_t a) { return Take(n, Of(a)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return TakeOrNull(n); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return TakeOrNull(n); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return TakeOrNull(n, Of(a));
}
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return TakeOrNull(n, Of(a));
}
void operator delete(void* p) noexcept { GiveBack(p); }
void operator delete[](void* p) noexcept { GiveBack(p); }
void operator delete(void* p, size_t) noexcept { GiveBack(p); }
void operator delete[](void* p, size_t) noexcept { GiveBack(p); }
void operator delete(void* p, std::align_val_t) noexcept { GiveBack(p); }
void operator delete[](void* p, std::align_val_t) noexcept { GiveBack(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { GiveBack(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { GiveBack(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { GiveBack(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { GiveBack(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { GiveBack(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { GiveBack(p); }
