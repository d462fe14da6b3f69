#include "client/internal/heap_ranges.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace iris::internal {

HeapRanges* HeapRanges::Make(std::optional<std::string> (*environment)(const char* variable)) {
  // Reachable for leak checkers.
  static absl::Mutex mu;
  static std::vector<HeapRanges*>* const all = new std::vector<HeapRanges*>();
  HeapRanges* const made = new HeapRanges(environment("IRIS_CHECK_ACCESS") == "1");
  absl::MutexLock lock(&mu);
  all->push_back(made);
  return made;
}

HeapRanges::HeapRanges(bool check_access) {
  shared_.check_access = check_access ? 1 : 0;
  shared_.pid = getpid();
  shared_.nearest = &HeapRanges::Nearest;
  shared_.mapped = &HeapRanges::Mapped;
  shared_.ranges = this;
}

void HeapRanges::Add(uint64_t offset_bytes, uint64_t bytes, absl::string_view name,
                     absl::Span<const uint32_t> ranks) {
  Put(offset_bytes, {bytes, 0, false, std::string(name)}, ranks);
}

void HeapRanges::AddInternal(uint64_t offset_bytes, uint64_t bytes, absl::string_view name,
                             absl::Span<const uint32_t> ranks) {
  Put(offset_bytes, {bytes, 0, true, std::string(name)}, ranks);
}

void HeapRanges::Put(uint64_t offset_bytes, Range range, absl::Span<const uint32_t> ranks) {
  for (const uint32_t rank : ranks) {
    if (rank < 64) range.ranks |= uint64_t{1} << rank;
  }
  absl::MutexLock lock(&mu_);
  ranges_[offset_bytes] = std::move(range);
}

std::optional<HeapRanges::Range> HeapRanges::Remove(uint64_t offset_bytes) {
  absl::MutexLock lock(&mu_);
  const auto it = ranges_.find(offset_bytes);
  if (it == ranges_.end()) return std::nullopt;
  std::optional<Range> removed = std::move(it->second);
  ranges_.erase(it);
  return removed;
}

void HeapRanges::Restore(uint64_t offset_bytes, std::optional<Range> removed) {
  if (!removed.has_value()) return;
  absl::MutexLock lock(&mu_);
  ranges_[offset_bytes] = *std::move(removed);
}

void HeapRanges::Follow(const HeapSize* heap) {
  absl::MutexLock lock(&mu_);
  heap_ = heap;
}

void HeapRanges::End() {
  if (shared_.pid != getpid()) return;
  absl::MutexLock lock(&mu_);
  heap_ = nullptr;
  ranges_.clear();
}

bool HeapRanges::Nearest(const backend::HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                         backend::HeapRange* out) {
  if (rank >= 64) return false;
  HeapRanges& self = *static_cast<const Shared*>(map)->ranges;
  const auto is_in = [rank](const Range& range) { return (range.ranks >> rank & 1) != 0; };
  absl::MutexLock lock(&self.mu_);
  const auto next = self.ranges_.upper_bound(offset_bytes);
  auto after = next;
  while (after != self.ranges_.end() && !is_in(after->second)) ++after;
  auto before = next;
  auto found = after;
  while (before != self.ranges_.begin()) {
    --before;
    if (!is_in(before->second)) continue;
    // In it, or as near as what comes after.
    const uint64_t end = before->first + before->second.bytes;
    if (found == self.ranges_.end() || offset_bytes < end ||
        offset_bytes - end <= found->first - offset_bytes) {
      found = before;
    }
    break;
  }
  if (found == self.ranges_.end()) return false;
  *out = backend::HeapRange();
  out->offset_bytes = found->first;
  out->bytes = found->second.bytes;
  out->internal = found->second.internal ? 1 : 0;
  const std::string& name = found->second.name;
  std::memcpy(out->name, name.data(), std::min(name.size(), sizeof(out->name) - 1));
  return true;
}

bool HeapRanges::Mapped(const backend::HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                        uint64_t bytes) {
  HeapRanges& self = *static_cast<const Shared*>(map)->ranges;
  uint64_t heap_bytes = 0;
  {
    absl::MutexLock lock(&self.mu_);
    if (self.heap_ == nullptr) return true;
    heap_bytes = self.heap_->bytes();
  }
  if (offset_bytes < heap_bytes) return bytes <= heap_bytes - offset_bytes;
  // What is registered above the heap.
  backend::HeapRange range;
  return Nearest(map, rank, offset_bytes, &range) && offset_bytes >= range.offset_bytes &&
         offset_bytes - range.offset_bytes <= range.bytes &&
         bytes <= range.bytes - (offset_bytes - range.offset_bytes);
}

}  // namespace iris::internal
