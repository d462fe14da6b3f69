// What the core of irisd has on its heap: counted where it is taken and given back, and for the
// account on whose behalf that was. core_new.cc, which irisd links, counts; without it all is zero.
//
// A thread acts on behalf of one account at a time (OnBehalfOf), else of irisd itself. What it
// takes stays that account's until it is given back, whichever thread does that.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace iris::server {

// An account's place in the table of counters.
using MemorySlot = uint16_t;
inline constexpr MemorySlot kIrisdsSlot = 0;
// Shared by accounts that come when every other one is taken.
inline constexpr MemorySlot kOthersSlot = 1;
inline constexpr size_t kMemorySlots = 8192;

class CoreMemory {
 public:
  // Bytes on the heap now, with what the allocator adds to them.
  static uint64_t Of(MemorySlot slot);
  static uint64_t Total();

  // Notes that `bytes` were taken (or given back, if negative) for `slot`.
  static void Count(MemorySlot slot, int64_t bytes);

  // What of `wanted_bytes` irisd can take besides what it has, as the limit of its address space
  // is.
  static uint64_t Fitting(uint64_t wanted_bytes);

  // Keeps so much address space aside. Where the system has no memory left, irisd gives that up
  // instead of failing, and InReserve is true until as much is free again.
  static void KeepReserve(size_t bytes);
  static bool InReserve();
  // Takes the reserve anew where it was given up; to be called now and then.
  static void RestoreReserve();
};

// From its making to its end the thread that makes it takes memory for this account.
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
