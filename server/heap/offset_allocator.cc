// The heap is a list of blocks in address order, each free or allocated. Free blocks (holes) are
// also indexed by the bytes they can serve: once for each alignment that was ever asked for,
// because the bytes that alignment wastes at a hole's start differ. So a search is one lookup at
// any alignment, and the fit is exact. An index is made when its alignment is first seen; there are
// at most 64.
#include "server/heap/offset_allocator.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "server/heap/check.h"

namespace iris::server {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// kMax if there is no such number.
uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  if (value > kMax - (alignment - 1)) return kMax;
  return (value + alignment - 1) & ~(alignment - 1);
}

struct Block {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t previous = kNone;  // in address order
  uint32_t next = kNone;
  bool free = false;
  bool in_use = false;  // false: a spare entry of the table

  uint64_t bytes() const { return end - begin; }
};

// Bytes of the block from its first aligned byte on.
uint64_t UsableBytes(const Block& block, uint64_t alignment) {
  const uint64_t start = AlignUp(block.begin, alignment);
  return start < block.end ? block.end - start : 0;
}

struct Hole {
  uint64_t usable_bytes = 0;
  uint64_t begin = 0;
  uint32_t block = kNone;
  friend bool operator<(const Hole& a, const Hole& b) {
    return a.usable_bytes != b.usable_bytes ? a.usable_bytes < b.usable_bytes : a.begin < b.begin;
  }
};

struct HoleIndex {
  uint64_t alignment = 0;
  absl::btree_set<Hole> holes;  // those with usable bytes
};

}  // namespace

struct OffsetAllocator::Impl {
  Impl(uint64_t capacity, uint64_t unit) : unit_bytes(unit) {
    IRIS_CHECK(std::has_single_bit(unit), "the unit of an allocator is a power of two");
    indexes.push_back({unit, {}});
    Extend(capacity & ~(unit - 1));
  }

  uint32_t NewBlock(uint64_t begin, uint64_t end) {
    uint32_t id;
    if (spare.empty()) {
      id = static_cast<uint32_t>(blocks.size());
      blocks.emplace_back();
    } else {
      id = spare.back();
      spare.pop_back();
    }
    blocks[id] = {.begin = begin, .end = end, .in_use = true};
    return id;
  }

  // Puts `id` behind `previous` in address order.
  void LinkAfter(uint32_t previous, uint32_t id) {
    const uint32_t next = blocks[previous].next;
    blocks[id].previous = previous;
    blocks[id].next = next;
    blocks[previous].next = id;
    if (next == kNone) {
      last = id;
    } else {
      blocks[next].previous = id;
    }
  }

  void Remove(uint32_t id) {
    const Block block = blocks[id];
    if (block.previous == kNone) {
      first = block.next;
    } else {
      blocks[block.previous].next = block.next;
    }
    if (block.next == kNone) {
      last = block.previous;
    } else {
      blocks[block.next].previous = block.previous;
    }
    blocks[id] = Block();
    spare.push_back(id);
  }

  void AddHole(uint32_t id) {
    Block& block = blocks[id];
    block.free = true;
    ++n_holes;
    for (HoleIndex& index : indexes) {
      const uint64_t usable = UsableBytes(block, index.alignment);
      if (usable > 0) index.holes.insert({usable, block.begin, id});
    }
  }

  void RemoveHole(uint32_t id) {
    Block& block = blocks[id];
    block.free = false;
    --n_holes;
    for (HoleIndex& index : indexes) {
      const uint64_t usable = UsableBytes(block, index.alignment);
      if (usable > 0) index.holes.erase({usable, block.begin, id});
    }
  }

  // Null if this alignment was never asked for.
  HoleIndex* FindIndex(uint64_t alignment) {
    for (HoleIndex& index : indexes) {
      if (index.alignment == alignment) return &index;
    }
    return nullptr;
  }

  HoleIndex& IndexFor(uint64_t alignment) {
    if (HoleIndex* index = FindIndex(alignment)) return *index;
    HoleIndex made{alignment, {}};
    for (const Hole& hole : indexes[0].holes) {
      const uint64_t usable = UsableBytes(blocks[hole.block], alignment);
      if (usable > 0) made.holes.insert({usable, hole.begin, hole.block});
    }
    indexes.push_back(std::move(made));
    return indexes.back();
  }

  // kMax if no heap is large enough.
  uint64_t Units(uint64_t size_bytes) const {
    return AlignUp(std::max<uint64_t>(size_bytes, 1), unit_bytes);
  }

  // Cuts [start, start + bytes) out of a hole; what remains before and behind are holes.
  void Carve(uint32_t id, uint64_t start, uint64_t bytes) {
    RemoveHole(id);
    if (blocks[id].begin < start) {
      const uint32_t front = id;
      id = NewBlock(start, blocks[front].end);
      blocks[front].end = start;
      LinkAfter(front, id);
      AddHole(front);
    }
    if (start + bytes < blocks[id].end) {
      const uint32_t rest = NewBlock(start + bytes, blocks[id].end);
      blocks[id].end = start + bytes;
      LinkAfter(id, rest);
      AddHole(rest);
    }
    allocated.emplace(start, id);
    used_bytes += bytes;
  }

  // Makes an allocated block a hole, as one with the holes beside it.
  void Release(uint32_t id) {
    used_bytes -= blocks[id].bytes();
    const uint32_t next = blocks[id].next;
    if (next != kNone && blocks[next].free) {
      RemoveHole(next);
      blocks[id].end = blocks[next].end;
      Remove(next);
    }
    const uint32_t previous = blocks[id].previous;
    if (previous != kNone && blocks[previous].free) {
      RemoveHole(previous);
      blocks[previous].end = blocks[id].end;
      Remove(id);
      id = previous;
    }
    AddHole(id);
  }

  void Extend(uint64_t new_capacity) {
    const uint64_t old_capacity = capacity_bytes;
    capacity_bytes = new_capacity;
    if (new_capacity == old_capacity) return;
    if (last != kNone && blocks[last].free) {
      RemoveHole(last);
      blocks[last].end = new_capacity;
      AddHole(last);
      return;
    }
    const uint32_t id = NewBlock(old_capacity, new_capacity);
    if (last == kNone) {
      first = last = id;
    } else {
      LinkAfter(last, id);
    }
    AddHole(id);
  }

  uint64_t largest_hole() const {
    const auto& holes = indexes[0].holes;
    return holes.empty() ? 0 : holes.rbegin()->usable_bytes;
  }

  uint64_t unit_bytes;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  size_t n_holes = 0;
  uint32_t first = kNone;
  uint32_t last = kNone;
  std::vector<Block> blocks;
  std::vector<uint32_t> spare;
  absl::flat_hash_map<uint64_t, uint32_t> allocated;  // offset to block
  std::vector<HoleIndex> indexes;                     // [0] is that of the unit
};

OffsetAllocator::OffsetAllocator(uint64_t capacity_bytes, uint64_t unit_bytes)
    : impl_(std::make_unique<Impl>(capacity_bytes, unit_bytes)) {}
OffsetAllocator::~OffsetAllocator() = default;
OffsetAllocator::OffsetAllocator(OffsetAllocator&&) noexcept = default;
OffsetAllocator& OffsetAllocator::operator=(OffsetAllocator&&) noexcept = default;

absl::StatusOr<uint64_t> OffsetAllocator::Allocate(uint64_t size_bytes, uint64_t alignment_bytes) {
  if (!std::has_single_bit(alignment_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an alignment of ", alignment_bytes, " is not a power of two"));
  }
  const uint64_t alignment = std::max(alignment_bytes, impl_->unit_bytes);
  const uint64_t bytes = impl_->Units(size_bytes);
  auto& holes = impl_->IndexFor(alignment).holes;
  const auto hole = holes.lower_bound({bytes, 0, 0});
  if (bytes == kMax || hole == holes.end()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for ", base::SizeText(size_bytes), " aligned to ", alignment, " in a heap of ",
        base::SizeText(impl_->capacity_bytes), ": ", base::SizeText(free_bytes()),
        " free, the largest hole ", base::SizeText(impl_->largest_hole())));
  }
  const uint32_t block = hole->block;
  const uint64_t start = AlignUp(hole->begin, alignment);
  impl_->Carve(block, start, bytes);
  return start;
}

absl::Status OffsetAllocator::Free(uint64_t offset_bytes) {
  const auto found = impl_->allocated.find(offset_bytes);
  if (found == impl_->allocated.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("free offset ", offset_bytes, ": no allocation starts there"));
  }
  const uint32_t block = found->second;
  impl_->allocated.erase(found);
  impl_->Release(block);
  return absl::OkStatus();
}

absl::Status OffsetAllocator::Occupy(uint64_t offset_bytes, uint64_t size_bytes) {
  const uint64_t bytes = impl_->Units(size_bytes);
  const uint32_t tail = impl_->last;
  const bool fits =
      tail != kNone && impl_->blocks[tail].free && offset_bytes % impl_->unit_bytes == 0 &&
      offset_bytes >= impl_->blocks[tail].begin && offset_bytes < impl_->blocks[tail].end &&
      bytes <= impl_->blocks[tail].end - offset_bytes;
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat("occupy ", size_bytes, " bytes at offset ",
                                                   offset_bytes, ": they are not free"));
  }
  impl_->Carve(tail, offset_bytes, bytes);
  return absl::OkStatus();
}

absl::Status OffsetAllocator::Grow(uint64_t capacity_bytes) {
  const uint64_t capacity = capacity_bytes & ~(impl_->unit_bytes - 1);
  if (capacity < impl_->capacity_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("grow a heap of ", impl_->capacity_bytes,
                                                   " bytes to ", capacity_bytes,
                                                   ": a heap does not shrink"));
  }
  impl_->Extend(capacity);
  return absl::OkStatus();
}

uint64_t OffsetAllocator::ShortfallBytes(uint64_t size_bytes, uint64_t alignment_bytes) const {
  if (!std::has_single_bit(alignment_bytes)) return kMax;
  const uint64_t alignment = std::max(alignment_bytes, impl_->unit_bytes);
  const uint64_t bytes = impl_->Units(size_bytes);
  if (bytes == kMax) return kMax;
  const auto& holes = impl_->IndexFor(alignment).holes;
  if (holes.lower_bound({bytes, 0, 0}) != holes.end()) return 0;
  const bool free_tail = impl_->last != kNone && impl_->blocks[impl_->last].free;
  const uint64_t tail = free_tail ? impl_->blocks[impl_->last].begin : impl_->capacity_bytes;
  const uint64_t start = AlignUp(tail, alignment);
  if (start == kMax || start > kMax - bytes) return kMax;
  return start + bytes - impl_->capacity_bytes;
}

uint64_t OffsetAllocator::capacity_bytes() const { return impl_->capacity_bytes; }
uint64_t OffsetAllocator::used_bytes() const { return impl_->used_bytes; }
uint64_t OffsetAllocator::free_bytes() const { return impl_->capacity_bytes - impl_->used_bytes; }
uint64_t OffsetAllocator::largest_free_bytes() const { return impl_->largest_hole(); }
size_t OffsetAllocator::n_allocations() const { return impl_->allocated.size(); }
size_t OffsetAllocator::n_holes() const { return impl_->n_holes; }

absl::Status OffsetAllocator::CheckInvariants() const {
  const Impl& heap = *impl_;
  uint64_t at = 0, used = 0;
  size_t holes = 0, allocations = 0, in_use = 0;
  uint32_t previous = kNone;
  for (uint32_t id = heap.first; id != kNone; previous = id, id = heap.blocks[id].next) {
    const Block& block = heap.blocks[id];
    const auto broken = [&](absl::string_view text) {
      return absl::InternalError(
          absl::StrCat("block [", block.begin, ", ", block.end, "): ", text));
    };
    if (!block.in_use) return broken("a spare entry is in the list");
    if (block.begin != at) return broken("overlaps or leaves a gap");
    if (block.end <= block.begin) return broken("is empty");
    if (block.begin % heap.unit_bytes != 0) return broken("is off the unit");
    if (block.previous != previous) return broken("has a wrong back link");
    if (block.free && previous != kNone && heap.blocks[previous].free) {
      return broken("two holes side by side");
    }
    if (block.free) {
      ++holes;
      for (const HoleIndex& index : heap.indexes) {
        const uint64_t usable = UsableBytes(block, index.alignment);
        if ((usable > 0) != index.holes.contains({usable, block.begin, id})) {
          return broken("an index of holes is wrong");
        }
      }
    } else {
      ++allocations;
      used += block.bytes();
      const auto found = heap.allocated.find(block.begin);
      if (found == heap.allocated.end() || found->second != id) {
        return broken("is missing from the allocations");
      }
    }
    at = block.end;
    ++in_use;
  }
  if (at != heap.capacity_bytes) return absl::InternalError("blocks do not cover the heap");
  if (heap.last != previous) return absl::InternalError("the last block is not the last");
  if (used != heap.used_bytes) return absl::InternalError("used bytes do not add up");
  if (holes != heap.n_holes || holes != heap.indexes[0].holes.size()) {
    return absl::InternalError("holes do not add up");
  }
  for (const HoleIndex& index : heap.indexes) {
    if (index.holes.size() > holes) return absl::InternalError("an index holds a hole that is not");
  }
  if (allocations != heap.allocated.size()) return absl::InternalError("allocations do not add up");
  if (in_use + heap.spare.size() != heap.blocks.size())
    return absl::InternalError("a block leaked");
  return absl::OkStatus();
}

}  // namespace iris::server
