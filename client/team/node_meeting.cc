#include "client/team/node_meeting.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "iris/types.h"

namespace iris::internal {

std::vector<NodeMeeting::Group> NodeMeeting::GroupsOf(absl::Span<const uint32_t> ranks,
                                                      const std::vector<Node>& nodes) {
  std::vector<Group> groups;
  for (const uint32_t rank : ranks) {
    const auto after =
        std::upper_bound(nodes.begin(), nodes.end(), rank,
                         [](uint32_t value, const Node& node) { return value < node.first_rank; });
    if (after == nodes.begin()) continue;
    const auto node = static_cast<uint32_t>(after - nodes.begin() - 1);
    const auto place =
        std::lower_bound(groups.begin(), groups.end(), node,
                         [](const Group& group, uint32_t value) { return group.node < value; });
    if (place == groups.end() || place->node != node) groups.insert(place, {rank, node});
  }
  return groups;
}

NodeMeeting::NodeMeeting(std::vector<Group> groups, const std::vector<Node>& nodes, uint32_t rank,
                         uint64_t sync_offset_bytes, HostPort* port)
    : groups_(std::move(groups)), sync_offset_bytes_(sync_offset_bytes), port_(port) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Node& node = nodes[groups_[i].node];
    if (rank - node.first_rank < node.n_ranks) index_ = i;
    names_.push_back(absl::StrCat("node \"", node.name, "\" of ranks ", node.first_rank, " to ",
                                  node.first_rank + node.n_ranks - 1));
  }
}

absl::Status NodeMeeting::Meet(absl::Time deadline) {
  ++epoch_;
  const size_t n = groups_.size();
  uint64_t step = 0;
  for (size_t distance = 1; distance < n; distance *= 2, ++step) {
    const uint64_t offset =
        sync_offset_bytes_ + step * sizeof(SyncArea::Slot) + offsetof(SyncArea::Slot, host);
    const uint32_t to = groups_[(index_ + distance) % n].leader;
    const size_t from = (index_ + n - distance) % n;
    absl::Status status =
        port_->Put(to, 0, nullptr, 0, HostPort::Signal{offset, epoch_, SignalOp::kSet});
    if (status.ok()) status = port_->AwaitWord(offset, epoch_, deadline);
    if (absl::IsDeadlineExceeded(status)) {
      return absl::DeadlineExceededError(absl::StrCat(
          "time is up; ", names_[from], " has not come, or waits for ranks that are missing"));
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace iris::internal
