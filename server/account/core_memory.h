// CoreMemory: the heap of irisd's core, counted for the account on whose behalf it was allocated.
// core_new.cc, which irisd links, counts; without it all counts are zero. A thread acts on behalf
// of one account at a time (OnBehalfOf), otherwise of irisd. A block counts for its account until
// any thread frees it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace iris::server {

// The place of an account in the table of counters.
using MemorySlot = uint16_t;
inline constexpr MemorySlot kIrisdsSlot = 0;
// Accounts that are opened when all other slots are taken share this slot.
inline constexpr MemorySlot kOthersSlot = 1;
inline constexpr size_t kMemorySlots = 8192;

class CoreMemory {
 public:
  // Return the bytes now on the heap, with the allocator's overhead.
  static uint64_t Of(MemorySlot slot);
  static uint64_t Total();

  // Counts `bytes` that were allocated (or freed, if negative) for `slot`.
  static void Count(MemorySlot slot, int64_t bytes);

  // Returns how much of `wanted_bytes` irisd can still take within the limit of its address space.
  static uint64_t Fitting(uint64_t wanted_bytes);

  // Reserves address space. When the system has no memory left, irisd gives this up instead of
  // failing, and InReserve is true until as much is free again.
  static void KeepReserve(size_t bytes);
  static bool InReserve();
  // Reserves the address space again if it was given up. Call it now and then.
  static void RestoreReserve();
};

// While it lives, the constructing thread allocates for the account of `slot`.
class OnBehalfOf {
 public:
  explicit OnBehalfOf(MemorySlot slot) : before_(std::exchange(current_, slot)) {}
  ~OnBehalfOf() { current_ = before_; }
  OnBehalfOf(const OnBehalfOf&) = delete;
  OnBehalfOf& operator=(const OnBehalfOf&) = delete;

  static MemorySlot Current() { return current_; }

 private:
  static thread_local constinit MemorySlot current_;
  const MemorySlot before_;
};

}  // namespace iris::server
