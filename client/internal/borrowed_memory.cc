#include "client/internal/borrowed_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace iris::internal {

absl::Status BorrowedMemory::Map(const HeapPart& part, std::vector<ControlPlane::Lent> lent) {
  if (mapped_.count(part.offset_bytes) != 0) return absl::OkStatus();
  Mapped mapped;
  mapped.owner = part.rank;
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
  mapped_[part.offset_bytes] = std::move(mapped);
  return absl::OkStatus();
}

void BorrowedMemory::Unmap(uint64_t offset_bytes) {
  const auto found = mapped_.find(offset_bytes);
  if (found == mapped_.end()) return;
  for (const uint64_t id : found->second.segment_ids) window_->UnmapSegment(holder_, id);
  mapped_.erase(found);
}

bool BorrowedMemory::Has(uint32_t owner, uint64_t offset_bytes, uint64_t bytes) const {
  auto next = mapped_.upper_bound(offset_bytes);
  if (next == mapped_.begin()) return false;
  const auto& [start, mapped] = *--next;
  return mapped.owner == owner && offset_bytes - start <= mapped.bytes &&
         bytes <= mapped.bytes - (offset_bytes - start);
}

}  // namespace iris::internal
