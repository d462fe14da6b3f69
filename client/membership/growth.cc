#include "client/membership/growth.h"

#include <algorithm>
#include <utility>

#include "client/base/clock.h"
#include "client/base/log.h"

namespace iris::internal {

void Growth::OnSegmentsAdded(const SegmentsAdded& added) {
  const absl::Time deadline = DeadlineIn(std::max(added.timeout, kMapTimeMin));
  UnmapEarlier(added.grow_id);
  std::vector<uint64_t> segment_ids;
  for (const Segment& segment : added.segments) segment_ids.push_back(segment.segment_id);
  const std::vector<DescriptorKey> keys = KeysOf(segment_ids);
  const bool known = added.grow_id <= published_ || growths_.count(added.grow_id) != 0;
  const absl::Status mapped = known ? absl::OkStatus() : Map(added, keys, deadline);
  if (!mapped.ok()) log::Warning("cannot map the heap's growth: ", mapped.message());
  const absl::Status told = plane_->GrowMapped(options_.job_id, added.grow_id, mapped,
                                               std::min(deadline, DeadlineIn(kAnswerSlack)));
  if (!told.ok()) log::Info("acknowledge the heap's growth: ", told.message());
  plane_->DropDescriptors(keys);
}

std::vector<DescriptorKey> Growth::KeysOf(const std::vector<uint64_t>& segment_ids) const {
  std::vector<DescriptorKey> keys;
  for (const uint64_t id : segment_ids) {
    keys.push_back({wire::DescriptorKind::kSegment, options_.job_id, options_.epoch, 0, id});
  }
  return keys;
}

absl::Status Growth::Map(const SegmentsAdded& added, const std::vector<DescriptorKey>& keys,
                         absl::Time deadline) {
  auto fds = plane_->TakeDescriptors(keys, deadline);
  if (!fds.ok()) return fds.status();
  Mapped mapped;
  mapped.heap_bytes = added.heap_bytes;
  for (size_t i = 0; i < added.segments.size(); ++i) {
    const Segment& segment = added.segments[i];
    const absl::Status status =
        window_->MapSegment(options_.rank, segment, std::move((*fds)[i]), options_.devices);
    if (!status.ok()) {
      Unmap(mapped.segment_ids);
      return status;
    }
    mapped.segment_ids.push_back(segment.segment_id);
  }
  growths_[added.grow_id] = std::move(mapped);
  return absl::OkStatus();
}

void Growth::Unmap(const std::vector<uint64_t>& segment_ids) {
  for (const uint64_t id : segment_ids) window_->UnmapSegment(options_.rank, id);
}

void Growth::UnmapEarlier(uint64_t grow_id) {
  const auto end = growths_.lower_bound(grow_id);
  for (auto it = growths_.begin(); it != end; it = growths_.erase(it)) {
    Unmap(it->second.segment_ids);
    log::Info("the heap did not grow: growth ", it->first, " was given up meanwhile");
  }
}

void Growth::OnGrowDone(const GrowDone& done) {
  UnmapEarlier(done.grow_id);
  const auto it = growths_.find(done.grow_id);
  if (it == growths_.end()) return;
  plane_->DropDescriptors(KeysOf(it->second.segment_ids));
  if (done.published) {
    published_ = done.grow_id;
    heap_->AtLeast(it->second.heap_bytes);
    log::Debug("the heap has grown to ", it->second.heap_bytes, " bytes");
  } else {
    Unmap(it->second.segment_ids);
    log::Info("the heap did not grow: ", done.reason);
  }
  growths_.erase(it);
}

}  // namespace iris::internal
