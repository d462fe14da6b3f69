// NaiveHeap: what OffsetAllocator must do, written in the simplest way: a sorted map of allocations
// and a walk over every gap. Slow, and easy to believe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace iris::model {

class NaiveHeap {
 public:
  struct Gap {
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  NaiveHeap(uint64_t capacity_bytes, uint64_t unit_bytes)
      : capacity_(capacity_bytes), unit_(unit_bytes) {}

  // Of all gaps with room from their first aligned byte on, the one with the least of it; of
  // equals, the first.
  std::optional<uint64_t> Allocate(uint64_t bytes, uint64_t alignment) {
    if (bytes > capacity_) return std::nullopt;
    bytes = Units(bytes);
    alignment = std::max(alignment, unit_);
    std::optional<uint64_t> best;
    uint64_t best_room = 0;
    for (const Gap& gap : Gaps()) {
      const uint64_t start = Up(gap.begin, alignment);
      if (start >= gap.end || gap.end - start < bytes) continue;
      if (best.has_value() && gap.end - start >= best_room) continue;
      best = start;
      best_room = gap.end - start;
    }
    if (best.has_value()) taken_[*best] = bytes;
    return best;
  }

  bool Free(uint64_t offset) { return taken_.erase(offset) == 1; }
  void Grow(uint64_t capacity_bytes) { capacity_ = capacity_bytes; }

  // Growth needed, by trying.
  uint64_t Shortfall(uint64_t bytes, uint64_t alignment) const {
    for (uint64_t more = 0;; more += unit_) {
      NaiveHeap grown = *this;
      grown.Grow(capacity_ + more);
      if (grown.Allocate(bytes, alignment).has_value()) return more;
    }
  }

  std::vector<Gap> Gaps() const {
    std::vector<Gap> gaps;
    uint64_t at = 0;
    for (const auto& [offset, bytes] : taken_) {
      if (at < offset) gaps.push_back({at, offset});
      at = offset + bytes;
    }
    if (at < capacity_) gaps.push_back({at, capacity_});
    return gaps;
  }

  uint64_t capacity() const { return capacity_; }
  uint64_t used() const {
    uint64_t sum = 0;
    for (const auto& [offset, bytes] : taken_) sum += bytes;
    return sum;
  }
  const std::map<uint64_t, uint64_t>& taken() const { return taken_; }

 private:
  uint64_t Units(uint64_t bytes) const { return Up(std::max<uint64_t>(bytes, 1), unit_); }
  static uint64_t Up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

  uint64_t capacity_;
  uint64_t unit_;
  std::map<uint64_t, uint64_t> taken_;  // offset to bytes
};

}  // namespace iris::model
