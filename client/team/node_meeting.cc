#include "client/team/node_meeting.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/clock.h"
#include "iris/types.h"

namespace iris::internal {
namespace {

// How often a wait asks if a rank has left.
constexpr absl::Duration kAskPeriod = absl::Milliseconds(100);

// A rank that has come may leave before the words of the meeting are here: they go by another
// connection than the news of irisd. This is the time that they have, also on a network that
// loses packets.
constexpr absl::Duration kOnTheirWay = absl::Seconds(5);

}  // namespace

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

NodeMeeting::NodeMeeting(absl::Span<const uint32_t> ranks, std::vector<Group> groups,
                         const std::vector<Node>& nodes, uint32_t rank, uint64_t sync_offset_bytes,
                         HostPort* port, JobStatus status)
    : groups_(std::move(groups)),
      sync_offset_bytes_(sync_offset_bytes),
      port_(port),
      status_(status) {
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(elsewhere_),
               [&](uint32_t each) { return !status_.IsLocal(each); });
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Node& node = nodes[groups_[i].node];
    if (rank - node.first_rank < node.n_ranks) index_ = i;
    const uint32_t last = node.first_rank + node.n_ranks - 1;
    names_.push_back(absl::StrCat(
        "node \"", node.name, "\" of rank",
        last > node.first_rank ? absl::StrCat("s ", node.first_rank, " to ") : " ", last));
  }
}

absl::Status NodeMeeting::Await(uint64_t offset, absl::Time deadline) {
  for (absl::Status left;;) {
    const absl::Duration patience = left.ok() ? kAskPeriod : kOnTheirWay;
    const absl::Status status =
        port_->AwaitWord(offset, epoch_, std::min(deadline, Now() + patience));
    if (!absl::IsDeadlineExceeded(status)) return status;
    if (!left.ok()) return left;
    if (Now() >= deadline) return status;
    left = Left();
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
    if (status.ok()) status = Await(offset, deadline);
    if (absl::IsDeadlineExceeded(status)) {
      return absl::DeadlineExceededError(
          absl::StrCat("time is up; ", names_[from],
                       " has not come, or waits for ranks that are missing "
                       "(`iris-ctl waits` there shows for whom)"));
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace iris::internal
