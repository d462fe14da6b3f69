#include "server/session/outbox.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

absl::Status Outbox::Queue(std::vector<OutgoingDescriptor> descriptors) {
  if (queue_.size() + descriptors.size() > kMaxQueued) {
    return absl::ResourceExhaustedError(
        "the session does not take its descriptors: its queue is full");
  }
  for (OutgoingDescriptor& item : descriptors) queue_.push_back(std::move(item));
  return absl::OkStatus();
}

absl::Status Outbox::Acknowledge(uint32_t count) {
  if (count == 0 || count > n_in_flight_) {
    return absl::InvalidArgumentError(
        absl::StrCat("acknowledges ", count, " descriptors; ", n_in_flight_, " are on their way"));
  }
  n_in_flight_ -= count;
  return absl::OkStatus();
}

absl::StatusOr<Outbox::Flushed> Outbox::Flush(const Send& send) {
  while (!queue_.empty() && n_in_flight_ < wire::kDescriptorWindow) {
    const size_t n = std::min<size_t>(
        {wire::kMaxDescriptorsPerFrame, queue_.size(), wire::kDescriptorWindow - n_in_flight_});
    wire::DescriptorsPayload payload;
    payload.count = static_cast<uint32_t>(n);
    std::vector<wire::UniqueFd> opened;
    std::vector<int> fds;
    for (size_t i = 0; i < n; ++i) {
      const absl::StatusOr<int> fd = queue_[i].open();
      if (absl::IsResourceExhausted(fd.status())) return Flushed::kBlocked;
      if (!fd.ok()) return fd.status();
      opened.emplace_back(*fd);
      fds.push_back(*fd);
      payload.records[i] = queue_[i].record;
    }
    const absl::Status sent = send(payload, fds);
    if (absl::IsResourceExhausted(sent)) return Flushed::kBlocked;
    if (absl::IsUnavailable(sent)) return Flushed::kIdle;
    if (!sent.ok()) return sent;
    n_in_flight_ += static_cast<uint32_t>(n);
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(n));
  }
  return Flushed::kIdle;
}

void Outbox::Clear() {
  queue_.clear();
  n_in_flight_ = 0;
}

}  // namespace iris::server
