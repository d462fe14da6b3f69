#include "client/membership/growth.h"

#include <algorithm>
#include <utility>

#include "client/base/clock.h"
#include "client/base/log.h"

namespace iris::internal {

void Growth::OnSegmentsAdded(const SegmentsAdded& added) {
  const absl::Time deadline = DeadlineIn(std::max(added.timeout, kMapTimeMin));
  UnmapEarlier(added.grow_id);
  const auto keys = KeysOf(options_.job_id, options_.epoch, added.segments);
  const bool known = added.grow_id <= published_ || growths_.count(added.grow_id) != 0;
  const absl::Status mapped = known ? absl::OkStatus() : Map(added, keys, deadline);
  if (!mapped.ok()) log::Warning("cannot map the heap's growth: ", mapped.message());
  const absl::Status told = plane_->GrowMapped(options_.job_id, added.grow_id, mapped,
                                               std::min(deadline, DeadlineIn(kAnswerSlack)));
  if (!told.ok()) log::Info("acknowledge the heap's growth: ", told.message());
  plane_->DropDescriptors(keys);
}

absl::Status Growth::Map(const SegmentsAdded& added, const std::vector<DescriptorKey>& keys,
                         absl::Time deadline) {
  auto fds = plane_->TakeDescriptors(keys, deadline);
  if (!fds.ok()) return fds.status();
  for (size_t i = 0; i < keys.size(); ++i) {
    const absl::Status status = window_->MapSegment(options_.rank, added.segments[i],
                                                    std::move((*fds)[i]), options_.devices);
    if (!status.ok()) {
      Unmap(absl::MakeConstSpan(keys).first(i));
      return status;
    }
  }
  growths_[added.grow_id] = {keys, added.heap_bytes};
  return absl::OkStatus();
}

void Growth::Unmap(absl::Span<const DescriptorKey> keys) {
  for (const DescriptorKey& key : keys) window_->UnmapSegment(options_.rank, key.segment_id);
}

void Growth::UnmapEarlier(uint64_t grow_id) {
  const auto end = growths_.lower_bound(grow_id);
  for (auto it = growths_.begin(); it != end; it = growths_.erase(it)) {
    Unmap(it->second.keys);
    log::Info("the heap did not grow: growth ", it->first, " was given up meanwhile");
  }
}

void Growth::OnGrowDone(const GrowDone& done) {
  UnmapEarlier(done.grow_id);
  const auto it = growths_.find(done.grow_id);
  if (it == growths_.end()) return;
  plane_->DropDescriptors(it->second.keys);
  if (done.published) {
    published_ = done.grow_id;
    heap_->AtLeast(it->second.heap_bytes);
    log::Debug("the heap has grown to ", it->second.heap_bytes, " bytes");
  } else {
    Unmap(it->second.keys);
    log::Info("the heap did not grow: ", done.reason);
  }
  growths_.erase(it);
}

}  // namespace iris::internal
