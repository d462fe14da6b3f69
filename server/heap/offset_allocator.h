// OffsetAllocator hands out byte ranges of one symmetric heap. Pure arithmetic: it touches no
// memory.
//
// It uses best fit, and coalesces immediately with both neighbours. Not thread-safe: its owner
// locks. O(log n) per call.
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
  // two). A size of 0 is legal, occupies one unit and has an offset of its own. Returns
  // kInvalidArgument if the alignment is no power of two. Returns kResourceExhausted if no hole
  // fits; the message has the free bytes and the largest hole. On an error *this is unchanged.
  absl::StatusOr<uint64_t> Allocate(uint64_t size_bytes, uint64_t alignment_bytes);

  // Frees a range from Allocate. kInvalidArgument for any other offset, including a double free.
  absl::Status Free(uint64_t offset_bytes);

  // Occupies the range at `offset_bytes` that Allocate once returned for `size_bytes`, to rebuild
  // an allocator from known allocations. Call it in ascending order of ranges, before any other
  // function. Returns kInvalidArgument, with *this unchanged, if the range is not aligned to the
  // unit, not after the earlier ones, or beyond the heap.
  absl::Status Occupy(uint64_t offset_bytes, uint64_t size_bytes);

  // Extends the heap to `capacity_bytes` in total. kInvalidArgument if it has more today.
  absl::Status Grow(uint64_t capacity_bytes);

  // Returns by how much the heap must grow for Allocate(size, alignment); 0 if the range fits now.
  uint64_t ShortfallBytes(uint64_t size_bytes, uint64_t alignment_bytes) const;

  uint64_t capacity_bytes() const { return capacity_bytes_; }
  uint64_t used_bytes() const { return used_bytes_; }  // at least the sum of the sizes
  uint64_t free_bytes() const { return capacity_bytes_ - used_bytes_; }
  uint64_t largest_free_bytes() const;
  size_t n_allocations() const { return blocks_.size() - n_holes(); }
  size_t n_holes() const { return indexes_[0].holes.size(); }

  // For tests. Returns kInternal, naming the first broken invariant.
  absl::Status CheckInvariants() const;

 private:
  // A block is free (a hole) or allocated. No two holes are neighbours.
  struct Block {
    uint64_t end = 0;
    bool free = false;
  };
  // Holes, ordered by the bytes that they can serve at one alignment, then by address. There is one
  // index for each alignment that was ever requested, because the bytes wasted at a hole's start
  // depend on the alignment. So a search is one lookup, and the fit is exact.
  struct HoleIndex {
    uint64_t alignment = 0;
    absl::btree_set<std::pair<uint64_t, uint64_t>> holes;  // usable bytes, never 0; begin
  };

  uint64_t Units(uint64_t size_bytes) const;  // UINT64_MAX: no heap is large enough
  HoleIndex& IndexFor(uint64_t alignment) const;
  void AddHole(uint64_t begin, uint64_t end);
  // Removes the hole from the indexes only. The caller erases or replaces its block.
  void RemoveHole(uint64_t begin, uint64_t end);
  // Cuts [start, start + bytes) out of the hole at `begin`, and makes holes of what remains.
  void Carve(uint64_t begin, uint64_t start, uint64_t bytes);
  // Returns the beginning of the hole at the end of the heap, or the capacity if there is none.
  uint64_t tail() const {
    const bool is_hole = !blocks_.empty() && blocks_.rbegin()->second.free;
    return is_hole ? blocks_.rbegin()->first : capacity_bytes_;
  }

  uint64_t unit_bytes_;
  uint64_t capacity_bytes_ = 0;
  uint64_t used_bytes_ = 0;
  absl::btree_map<uint64_t, Block> blocks_;  // by begin; together they are the heap
  mutable std::vector<HoleIndex> indexes_;   // [0] is for the unit; at most 64
};

}  // namespace iris::server
