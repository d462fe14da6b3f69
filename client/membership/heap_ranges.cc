#include "client/membership/heap_ranges.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"

namespace iris::internal {

HeapRanges* HeapRanges::Make(std::optional<std::string> (*environment)(const char* variable)) {
  // Reachable for leak checkers.
  static absl::Mutex mu;
  static std::vector<HeapRanges*>* const all = new std::vector<HeapRanges*>();
  const auto switches = ReadSwitches(environment);  // Context creation has refused what is wrong
  Check check = Check::kOverruns;
  if (switches.ok() && switches->check_access.has_value()) {
    check = *switches->check_access ? Check::kAll : Check::kNone;
  }
  HeapRanges* const made = new HeapRanges(check);
  absl::MutexLock lock(&mu);
  all->push_back(made);
  return made;
}

HeapRanges::HeapRanges(Check check) : check_(check) {
  if (check != Check::kNone) shared_.allowed = &HeapRanges::Allowed;
  shared_.pid = getpid();
  shared_.nearest = &HeapRanges::Nearest;
  shared_.mapped = &HeapRanges::Mapped;
  shared_.ranges = this;
}

void HeapRanges::Add(uint64_t offset_bytes, uint64_t bytes, absl::string_view name,
                     absl::Span<const uint32_t> ranks, bool internal) {
  Range range = {bytes, 0, internal, std::string(name)};
  for (const uint32_t rank : ranks) {
    if (rank - first_ < 64) range.ranks |= uint64_t{1} << (rank - first_);
  }
  absl::MutexLock lock(&mu_);
  ranges_[offset_bytes] = std::move(range);
  changes_.fetch_add(1, std::memory_order_release);
}

std::optional<HeapRanges::Range> HeapRanges::Remove(uint64_t offset_bytes) {
  absl::MutexLock lock(&mu_);
  const auto it = ranges_.find(offset_bytes);
  if (it == ranges_.end()) return std::nullopt;
  std::optional<Range> removed = std::move(it->second);
  ranges_.erase(it);
  changes_.fetch_add(1, std::memory_order_release);
  return removed;
}

void HeapRanges::Restore(uint64_t offset_bytes, std::optional<Range> removed) {
  if (!removed.has_value()) return;
  absl::MutexLock lock(&mu_);
  ranges_[offset_bytes] = *std::move(removed);
  changes_.fetch_add(1, std::memory_order_release);
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
  changes_.fetch_add(1, std::memory_order_release);
}

bool HeapRanges::Nearest(const backend::HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                         backend::HeapRange* out) {
  if (rank >= 64) return false;
  HeapRanges& self = *static_cast<const Shared*>(map)->ranges;
  const auto is_in = [rank](const auto& entry) { return (entry.second.ranks >> rank & 1) != 0; };
  absl::MutexLock lock(&self.mu_);
  Ranges& ranges = self.ranges_;
  const auto next = ranges.upper_bound(offset_bytes);
  auto found = std::find_if(next, ranges.end(), is_in);
  const auto before = std::find_if(std::make_reverse_iterator(next), ranges.rend(), is_in);
  if (before != ranges.rend()) {
    // The range contains the address, or is as near as the next one.
    const uint64_t end = before->first + before->second.bytes;
    if (found == ranges.end() || offset_bytes < end ||
        offset_bytes - end <= found->first - offset_bytes) {
      found = std::prev(before.base());
    }
  }
  if (found == ranges.end()) return false;
  *out = backend::HeapRange();
  out->offset_bytes = found->first;
  out->bytes = found->second.bytes;
  out->internal = found->second.internal ? 1 : 0;
  const std::string& name = found->second.name;
  std::memcpy(out->name, name.data(), std::min(name.size(), sizeof(out->name) - 1));
  return true;
}

HeapRanges::Around HeapRanges::Look(uint64_t rank, uint64_t offset_bytes) const {
  const auto is_in = [rank](const auto& entry) {
    return entry.second.bytes > 0 && (entry.second.ranks & rank) != 0;
  };
  const auto next = ranges_.upper_bound(offset_bytes);
  const auto after = std::find_if(next, ranges_.end(), is_in);
  const auto before = std::find_if(std::make_reverse_iterator(next), ranges_.rend(), is_in);
  Around around;
  around.end = after == ranges_.end() ? ~uint64_t{0} : after->first;
  if (before == ranges_.rend()) return around;
  // Every allocation begins at a multiple of the least alignment, so the bytes up to the next
  // multiple belong to no allocation.
  const uint64_t end = before->first + before->second.bytes;
  const uint64_t room = (end + wire::kMinAlignmentBytes - 1) & ~(wire::kMinAlignmentBytes - 1);
  if (offset_bytes < room) return {before->first, end, &before->second, before->first};
  around.begin = room;
  return around;
}

std::optional<std::string> HeapRanges::Refusal(uint32_t rank, uint64_t offset_bytes,
                                               uint64_t bytes) {
  return RefusalOf(BitOf(rank - first_), offset_bytes, bytes);
}

std::optional<std::string> HeapRanges::RefusalOf(uint64_t rank, uint64_t offset_bytes,
                                                 uint64_t bytes) {
  if (check_ == Check::kNone || bytes == 0) return std::nullopt;
  // The last allowed range of the thread. The fields are atomic because the fibers of an emulated
  // block, which ThreadSanitizer takes for threads, share them.
  struct Last {
    std::atomic<const HeapRanges*> of{nullptr};
    std::atomic<uint64_t> changes{0}, ranks{0}, begin{0}, end{0};
  };
  thread_local Last last;
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const uint64_t changes = changes_.load(std::memory_order_acquire);
  if (last.of.load(kRelaxed) == this && last.changes.load(kRelaxed) == changes &&
      (last.ranks.load(kRelaxed) & rank) == rank && offset_bytes >= last.begin.load(kRelaxed) &&
      offset_bytes < last.end.load(kRelaxed) && bytes <= last.end.load(kRelaxed) - offset_bytes) {
    return std::nullopt;
  }
  absl::MutexLock lock(&mu_);
  const Around around = Look(rank, offset_bytes);
  const bool refused = around.of == nullptr ? check_ == Check::kAll : around.of->internal;
  if (!refused && offset_bytes < around.end && bytes <= around.end - offset_bytes) {
    last.of.store(this, kRelaxed);
    last.changes.store(changes_.load(kRelaxed), kRelaxed);
    last.ranks.store(around.of == nullptr ? rank : around.of->ranks, kRelaxed);
    last.begin.store(around.begin, kRelaxed);
    last.end.store(around.end, kRelaxed);
    return std::nullopt;
  }
  if (around.of == nullptr) {
    return check_ == Check::kAll
               ? "the range does not lie in one allocation that this rank knows "
                 "(IRIS_CHECK_ACCESS=1): is it too long, freed, or of a team of others?"
               : "the range begins in no allocation and runs into one";
  }
  const Range& range = *around.of;
  if (range.internal) return absl::StrCat("the range is ", range.name, ", which is of Iris itself");
  const uint64_t inside = offset_bytes - around.of_offset;
  return absl::StrCat(range.name.empty() ? "the allocation" : range.name, " has ",
                      base::SizeText(range.bytes), ", the call ",
                      bytes < 1024 ? absl::StrCat(bytes) : base::SizeText(bytes),
                      inside > 0 ? absl::StrCat(" from byte ", inside, " on") : "");
}

bool HeapRanges::Allowed(const backend::HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                         uint64_t bytes, char* why, uint64_t why_bytes) {
  HeapRanges& self = *static_cast<const Shared*>(map)->ranges;
  const std::optional<std::string> refusal = self.RefusalOf(BitOf(rank), offset_bytes, bytes);
  if (refusal.has_value() && why != nullptr && why_bytes > 0) {
    why[refusal->copy(why, why_bytes - 1)] = '\0';
  }
  return !refusal.has_value();
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
  // Registered memory lies above the heap.
  backend::HeapRange range;
  return Nearest(map, rank, offset_bytes, &range) && offset_bytes >= range.offset_bytes &&
         offset_bytes - range.offset_bytes <= range.bytes &&
         bytes <= range.bytes - (offset_bytes - range.offset_bytes);
}

}  // namespace iris::internal
