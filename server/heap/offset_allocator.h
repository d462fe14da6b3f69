// OffsetAllocator hands out byte ranges of one symmetric heap. Pure arithmetic: it touches no
// memory.
//
// Best fit, immediate coalescing with both neighbours. Not thread-safe: its owner locks. O(log n)
// per call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace iris::server {

class OffsetAllocator {
 public:
  // Every range starts at and occupies a multiple of `unit_bytes` (a power of two).
  explicit OffsetAllocator(uint64_t capacity_bytes, uint64_t unit_bytes = 1024);

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
  // before any other call. kInvalidArgument if the range is off the unit, not after the ones
  // before it, or beyond the heap: *this is then unchanged.
  absl::Status Occupy(uint64_t offset_bytes, uint64_t size_bytes);

  // Appends free space; `capacity_bytes` is the new total. kInvalidArgument if it is smaller than
  // today's.
  absl::Status Grow(uint64_t capacity_bytes);

  // The bytes of growth that Allocate(size, alignment) would need at the end of the heap; 0 if it
  // fits today.
  uint64_t ShortfallBytes(uint64_t size_bytes, uint64_t alignment_bytes) const;

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }  // at least the sum of the sizes
  uint64_t free_bytes() const { return capacity_bytes_ - used_bytes_; }
  uint64_t largest_free_bytes() const;
  size_t n_allocations() const { return blocks_.size() - n_holes(); }
  size_t n_holes() const { return indexes_[0].holes.size(); }

  // For tests: kInternal naming the first broken invariant.
  absl::Status CheckInvariants() const;

 private:
  // A block is free (a hole) or allocated. No two holes are neighbours.
  struct Block {
    uint64_t end = 0;
    bool free = false;
  };
  // Holes by the bytes that they can serve at one alignment, then by address. Holes are indexed
  // once for each alignment that was ever asked for, because the bytes that alignment wastes at a
  // hole's start differ. So a search is one lookup, and the fit is exact.
  struct HoleIndex {
    uint64_t alignment = 0;
    absl::btree_set<std::pair<uint64_t, uint64_t>> holes;  // usable bytes, never 0; begin
  };

  uint64_t Units(uint64_t size_bytes) const;  // UINT64_MAX: no heap is large enough
  HoleIndex& IndexFor(uint64_t alignment) const;
  void AddHole(uint64_t begin, uint64_t end);
  // The block stays, for the caller to erase or replace.
  void RemoveHole(uint64_t begin, uint64_t end);
  // Cuts [start, start + bytes) out of the hole at `begin`; what remains on either side are holes.
  void Carve(uint64_t begin, uint64_t start, uint64_t bytes);
  // Returns where the hole at the end of the heap begins; the capacity if there is none.
  uint64_t tail() const {
    const bool is_hole = !blocks_.empty() && blocks_.rbegin()->second.free;
    return is_hole ? blocks_.rbegin()->first : capacity_bytes_;
  }

  uint64_t unit_bytes_;
  uint64_t capacity_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  absl::btree_map<uint64_t, Block> blocks_;  // by begin; together they are the heap
  mutable std::vector<HoleIndex> indexes_;   // [0] is that of the unit; there are at most 64
};

}  // namespace iris::server
