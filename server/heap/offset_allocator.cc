#include "server/heap/offset_allocator.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "device/base/bytes.h"
#include "server/heap/check.h"

namespace iris::server {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

// Returns kMax if there is no such number.
uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  if (value > kMax - (alignment - 1)) return kMax;
  return (value + alignment - 1) & ~(alignment - 1);
}

// Returns the size of [begin, end) from its first aligned byte on.
uint64_t UsableBytes(uint64_t begin, uint64_t end, uint64_t alignment) {
  const uint64_t start = AlignUp(begin, alignment);
  return start < end ? end - start : 0;
}

}  // namespace

OffsetAllocator::OffsetAllocator(uint64_t capacity_bytes, uint64_t unit_bytes)
    : unit_bytes_(unit_bytes), indexes_({{unit_bytes, {}}}) {
  IRIS_CHECK(std::has_single_bit(unit_bytes), "the unit of an allocator is a power of two");
  (void)Grow(capacity_bytes);
}

uint64_t OffsetAllocator::Units(uint64_t size_bytes) const {
  return AlignUp(std::max<uint64_t>(size_bytes, 1), unit_bytes_);
}

OffsetAllocator::HoleIndex& OffsetAllocator::IndexFor(uint64_t alignment) const {
  for (HoleIndex& index : indexes_) {
    if (index.alignment == alignment) return index;
  }
  HoleIndex made{alignment, {}};
  for (const auto& [bytes, begin] : indexes_[0].holes) {
    const uint64_t usable = UsableBytes(begin, begin + bytes, alignment);
    if (usable > 0) made.holes.insert({usable, begin});
  }
  indexes_.push_back(std::move(made));
  return indexes_.back();
}

void OffsetAllocator::AddHole(uint64_t begin, uint64_t end) {
  blocks_[begin] = {.end = end, .free = true};
  for (HoleIndex& index : indexes_) {
    const uint64_t usable = UsableBytes(begin, end, index.alignment);
    if (usable > 0) index.holes.insert({usable, begin});
  }
}

void OffsetAllocator::RemoveHole(uint64_t begin, uint64_t end) {
  for (HoleIndex& index : indexes_) {
    index.holes.erase({UsableBytes(begin, end, index.alignment), begin});
  }
}

void OffsetAllocator::Carve(uint64_t begin, uint64_t start, uint64_t bytes) {
  const uint64_t end = blocks_[begin].end;
  RemoveHole(begin, end);
  if (begin < start) AddHole(begin, start);
  blocks_[start] = {.end = start + bytes, .free = false};
  if (start + bytes < end) AddHole(start + bytes, end);
  used_bytes_ += bytes;
}

absl::StatusOr<uint64_t> OffsetAllocator::Allocate(uint64_t size_bytes, uint64_t alignment_bytes) {
  if (!std::has_single_bit(alignment_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("an alignment of ", alignment_bytes, " is not a power of two"));
  }
  const uint64_t alignment = std::max(alignment_bytes, unit_bytes_);
  const uint64_t bytes = Units(size_bytes);
  const auto& holes = IndexFor(alignment).holes;
  const auto hole = holes.lower_bound({bytes, 0});
  if (bytes == kMax || hole == holes.end()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for ", base::SizeText(size_bytes), " aligned to ", alignment, " in a heap of ",
        base::SizeText(capacity_bytes_), ": ", base::SizeText(free_bytes()),
        " free, the largest hole ", base::SizeText(largest_free_bytes())));
  }
  const uint64_t begin = hole->second;
  const uint64_t start = AlignUp(begin, alignment);
  Carve(begin, start, bytes);
  return start;
}

absl::Status OffsetAllocator::Free(uint64_t offset_bytes) {
  const auto found = blocks_.find(offset_bytes);
  if (found == blocks_.end() || found->second.free) {
    return absl::InvalidArgumentError(
        absl::StrCat("free offset ", offset_bytes, ": no allocation starts there"));
  }
  uint64_t begin = offset_bytes;
  uint64_t end = found->second.end;
  used_bytes_ -= end - begin;
  const auto next = std::next(found);
  if (found != blocks_.begin() && std::prev(found)->second.free) {
    begin = std::prev(found)->first;
    RemoveHole(begin, offset_bytes);
  }
  if (next != blocks_.end() && next->second.free) {
    RemoveHole(end, next->second.end);
    end = next->second.end;
  }
  blocks_.erase(blocks_.upper_bound(begin), blocks_.lower_bound(end));
  AddHole(begin, end);
  return absl::OkStatus();
}

absl::Status OffsetAllocator::Occupy(uint64_t offset_bytes, uint64_t size_bytes) {
  const uint64_t bytes = Units(size_bytes);
  const uint64_t begin = tail();
  if (offset_bytes % unit_bytes_ != 0 || offset_bytes < begin || offset_bytes >= capacity_bytes_ ||
      bytes > capacity_bytes_ - offset_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("occupy ", size_bytes, " bytes at offset ",
                                                   offset_bytes, ": they are not free"));
  }
  Carve(begin, offset_bytes, bytes);
  return absl::OkStatus();
}

absl::Status OffsetAllocator::Grow(uint64_t capacity_bytes) {
  const uint64_t capacity = capacity_bytes & ~(unit_bytes_ - 1);
  if (capacity < capacity_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("grow a heap of ", capacity_bytes_, " bytes to ",
                                                   capacity_bytes, ": a heap does not shrink"));
  }
  if (capacity == capacity_bytes_) return absl::OkStatus();
  const uint64_t begin = tail();
  RemoveHole(begin, capacity_bytes_);
  AddHole(begin, capacity);
  capacity_bytes_ = capacity;
  return absl::OkStatus();
}

uint64_t OffsetAllocator::ShortfallBytes(uint64_t size_bytes, uint64_t alignment_bytes) const {
  if (!std::has_single_bit(alignment_bytes)) return kMax;
  const uint64_t alignment = std::max(alignment_bytes, unit_bytes_);
  const uint64_t bytes = Units(size_bytes);
  if (bytes == kMax) return kMax;
  const auto& holes = IndexFor(alignment).holes;
  if (holes.lower_bound({bytes, 0}) != holes.end()) return 0;
  const uint64_t start = AlignUp(tail(), alignment);
  if (start == kMax || start > kMax - bytes) return kMax;
  return start + bytes - capacity_bytes_;
}

uint64_t OffsetAllocator::largest_free_bytes() const {
  const auto& holes = indexes_[0].holes;
  return holes.empty() ? 0 : holes.rbegin()->first;
}

absl::Status OffsetAllocator::CheckInvariants() const {
  uint64_t at = 0, used = 0;
  size_t n_free = 0;
  bool after_hole = false;
  for (const auto& entry : blocks_) {
    const uint64_t begin = entry.first;
    const Block& block = entry.second;
    const auto broken = [&](absl::string_view text) {
      return absl::InternalError(absl::StrCat("block [", begin, ", ", block.end, "): ", text));
    };
    if (begin != at) return broken("overlaps or leaves a gap");
    if (block.end <= begin) return broken("is empty");
    if (begin % unit_bytes_ != 0) return broken("is off the unit");
    if (block.free && after_hole) return broken("two holes side by side");
    for (const HoleIndex& index : indexes_) {
      const uint64_t usable = UsableBytes(begin, block.end, index.alignment);
      if ((block.free && usable > 0) != index.holes.contains({usable, begin})) {
        return broken("an index of holes is wrong");
      }
    }
    if (block.free) ++n_free;
    if (!block.free) used += block.end - begin;
    at = block.end;
    after_hole = block.free;
  }
  if (at != capacity_bytes_) return absl::InternalError("blocks do not cover the heap");
  if (used != used_bytes_) return absl::InternalError("used bytes do not add up");
  if (n_free != n_holes()) return absl::InternalError("holes do not add up");
  for (const HoleIndex& index : indexes_) {
    if (index.holes.size() > n_free) {
      return absl::InternalError("an index holds a hole that is not");
    }
  }
  return absl::OkStatus();
}

}  // namespace iris::server
