#include "client/internal/borrowed_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace iris::internal {

absl::Status BorrowedMemory::Map(const HeapPart& part, std::vector<ControlPlane::Lent> lent) {
  std::map<uint64_t, Mapped>& all = mapped_[part.rank];
  if (all.count(part.offset_bytes) != 0) return absl::OkStatus();
  Mapped mapped;
  mapped.bytes = part.bytes;
  absl::Status status;
  for (ControlPlane::Lent& one : lent) {
    const Segment& segment = one.segment;
    if (segment.rank != part.rank || segment.offset_bytes >= window_->stride_bytes() ||
        segment.bytes > window_->stride_bytes() - segment.offset_bytes) {
      status = absl::InternalError(
          absl::StrCat("irisd has lent ", segment.bytes, " bytes at offset ", segment.offset_bytes,
                       " of rank ", segment.rank, ": install matching versions"));
      break;
    }
    status = window_->MapSegment(holder_, segment, std::move(one.fd), devices_);
    if (!status.ok()) break;
    mapped.segment_ids.push_back(segment.segment_id);
  }
  if (!status.ok()) {
    for (const uint64_t id : mapped.segment_ids) window_->UnmapSegment(holder_, id);
    return status;
  }
  all[part.offset_bytes] = std::move(mapped);
  return absl::OkStatus();
}

void BorrowedMemory::Unmap(uint64_t offset_bytes) {
  for (auto& [owner, all] : mapped_) {
    const auto found = all.find(offset_bytes);
    if (found == all.end()) continue;
    for (const uint64_t id : found->second.segment_ids) window_->UnmapSegment(holder_, id);
    all.erase(found);
  }
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
