#include "client/team/borrowed_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace iris::internal {

BorrowedMemory::OfOwner::iterator BorrowedMemory::Erase(OfOwner* all, OfOwner::iterator which) {
  for (const uint64_t id : which->second.segments) window_->UnmapSegment(holder_, id);
  return all->erase(which);
}

absl::Status BorrowedMemory::Map(const HeapPart& part, std::vector<ControlPlane::Lent> lent,
                                 Segments* segments) {
  Mapped mapped;
  mapped.bytes = part.bytes;
  mapped.begin_bytes = part.offset_bytes;
  mapped.end_bytes = part.offset_bytes + part.bytes;
  for (const ControlPlane::Lent& one : lent) {
    const Segment& segment = one.segment;
    if (segment.rank != part.rank || segment.offset_bytes >= window_->stride_bytes() ||
        segment.bytes > window_->stride_bytes() - segment.offset_bytes) {
      return absl::InternalError(absl::StrCat("irisd has lent ", segment.bytes, " bytes at offset ",
                                              segment.offset_bytes, " of rank ", segment.rank,
                                              ": install matching versions"));
    }
    mapped.segments.push_back(segment.segment_id);
    mapped.begin_bytes = std::min(mapped.begin_bytes, segment.offset_bytes);
    mapped.end_bytes = std::max(mapped.end_bytes, segment.offset_bytes + segment.bytes);
  }
  OfOwner& all = mapped_[part.rank];
  if (const auto same = all.find(part.offset_bytes);
      same != all.end() && same->second.segments == mapped.segments) {
    ++same->second.count;
    if (segments != nullptr) *segments = mapped.segments;
    return absl::OkStatus();
  }
  absl::Status status;
  size_t n_mapped = 0;
  for (; n_mapped < lent.size() && status.ok(); ++n_mapped) {
    status = window_->MapSegment(holder_, lent[n_mapped].segment, std::move(lent[n_mapped].fd),
                                 devices_);
  }
  if (!status.ok()) {
    for (size_t i = 0; i < n_mapped; ++i) window_->UnmapSegment(holder_, mapped.segments[i]);
    return status;
  }
  // The window has unmapped earlier segments at this place.
  for (auto it = all.begin(); it != all.end();) {
    const bool is_stale = it->second.segments != mapped.segments &&
                          it->second.begin_bytes < mapped.end_bytes &&
                          mapped.begin_bytes < it->second.end_bytes;
    it = is_stale ? Erase(&all, it) : std::next(it);
  }
  if (segments != nullptr) *segments = mapped.segments;
  all[part.offset_bytes] = std::move(mapped);
  return absl::OkStatus();
}

void BorrowedMemory::Unmap(uint64_t offset_bytes) {
  for (auto& [owner, all] : mapped_) {
    if (const auto found = all.find(offset_bytes); found != all.end()) Erase(&all, found);
  }
}

void BorrowedMemory::Unmap(uint32_t owner, uint64_t offset_bytes, const Segments& segments) {
  OfOwner& all = mapped_[owner];
  const auto found = all.find(offset_bytes);
  if (found == all.end() || found->second.segments != segments) return;
  if (--found->second.count == 0) Erase(&all, found);
}

bool BorrowedMemory::Is(uint32_t owner, uint64_t offset_bytes, const Segments& segments) const {
  const auto all = mapped_.find(owner);
  if (all == mapped_.end()) return false;
  const auto found = all->second.find(offset_bytes);
  return found != all->second.end() && found->second.segments == segments;
}

bool BorrowedMemory::Has(uint32_t owner, uint64_t offset_bytes, uint64_t bytes) const {
  const auto all = mapped_.find(owner);
  if (all == mapped_.end()) return false;
  auto next = all->second.upper_bound(offset_bytes);
  if (next == all->second.begin()) return false;
  const auto& [start, mapped] = *--next;
  return offset_bytes - start <= mapped.bytes && bytes <= mapped.bytes - (offset_bytes - start);
}

}  // namespace iris::internal
