// OffsetAllocator hands out byte ranges of one symmetric heap. Pure arithmetic: it touches no
// memory.
//
// Best fit, immediate coalescing with both neighbours. Not thread-safe: its owner locks. O(log n)
// per call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace iris::server {

class OffsetAllocator {
 public:
  // Every range starts at and occupies a multiple of `unit_bytes` (a power of two).
  explicit OffsetAllocator(uint64_t capacity_bytes, uint64_t unit_bytes = 1024);
  ~OffsetAllocator();
  OffsetAllocator(OffsetAllocator&&) noexcept;
  OffsetAllocator& operator=(OffsetAllocator&&) noexcept;

  // Returns the offset of a free range of `size_bytes`, aligned to `alignment_bytes` (a power of
  // two). A size of 0 is legal, occupies one unit and has an offset of its own. kInvalidArgument:
  // bad alignment. kResourceExhausted if no hole fits: the message gives free bytes and the largest
  // hole. *this is then unchanged.
  absl::StatusOr<uint64_t> Allocate(uint64_t size_bytes, uint64_t alignment_bytes);

  // Gives back a range that Allocate returned. kInvalidArgument for any other offset, a double free
  // included.
  absl::Status Free(uint64_t offset_bytes);

  // Takes the range at `offset_bytes` that Allocate once returned for `size_bytes`: for an
  // allocator that is made anew from what is known to be allocated. Ranges come in ascending order,
  // before any other call. kInvalidArgument if the range is off the unit, not behind the ones
  // before it, or beyond the heap: *this is then unchanged.
  absl::Status Occupy(uint64_t offset_bytes, uint64_t size_bytes);

  // Appends free space; `capacity_bytes` is the new total. kInvalidArgument if it is smaller than
  // today's.
  absl::Status Grow(uint64_t capacity_bytes);

  // The bytes of growth that Allocate(size, alignment) would need at the end of the heap; 0 if it
  // fits today.
  uint64_t ShortfallBytes(uint64_t size_bytes, uint64_t alignment_bytes) const;

  uint64_t capacity_bytes() const;
  uint64_t used_bytes() const;  // units occupied, so at least the sum of the sizes
  uint64_t free_bytes() const;
  uint64_t largest_free_bytes() const;
  size_t n_allocations() const;
  size_t n_holes() const;

  // For tests: kInternal naming the first broken invariant.
  absl::Status CheckInvariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace iris::server
