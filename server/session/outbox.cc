#include "server/session/outbox.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

bool AllReceived(int socket) {
  int unread_bytes = 0;
  return ioctl(socket, SIOCOUTQ, &unread_bytes) == 0 && unread_bytes == 0;
}

absl::Status Outbox::Queue(std::vector<OutgoingDescriptor> descriptors) {
  if (queue_.size() + descriptors.size() > kMaxQueued) {
    return absl::ResourceExhaustedError(
        "the session does not take its descriptors: its queue is full");
  }
  for (OutgoingDescriptor& item : descriptors) queue_.push_back(std::move(item));
  return absl::OkStatus();
}

absl::Status Outbox::Acknowledge(uint32_t count) {
  if (count == 0 || count > n_unacknowledged_) {
    return absl::InvalidArgumentError(absl::StrCat("acknowledges ", count, " descriptors; ",
                                                   n_unacknowledged_, " are on their way"));
  }
  n_unacknowledged_ -= count;
  return absl::OkStatus();
}

bool Outbox::Look(const Socket& socket) {
  if (share_.count() == 0 || !socket.all_received()) return false;
  share_.Clear();
  return true;
}

absl::StatusOr<Outbox::Flushed> Outbox::Blocked(absl::Time now, absl::Duration patience,
                                                const std::string& by) {
  blocked_since_ = std::min(blocked_since_, now);
  if (now - blocked_since_ < patience) return Flushed::kBlocked;
  return absl::ResourceExhaustedError(
      absl::StrCat(queue_.size(), " descriptors could not be sent to the session for ",
                   absl::FormatDuration(patience), ": ", by));
}

absl::StatusOr<Outbox::Flushed> Outbox::Flush(const Socket& socket, absl::Time now,
                                              absl::Duration patience) {
  Look(socket);
  while (!queue_.empty() && n_in_flight() < wire::kDescriptorWindow) {
    const uint32_t room = share_.Room();
    if (room == 0) return Blocked(now, patience, share_.Why());
    const size_t n = std::min<size_t>({wire::kMaxDescriptorsPerFrame, queue_.size(), room,
                                       wire::kDescriptorWindow - n_in_flight()});
    wire::DescriptorsPayload payload;
    payload.count = static_cast<uint32_t>(n);
    std::vector<wire::UniqueFd> opened;
    std::vector<int> fds;
    for (size_t i = 0; i < n; ++i) {
      const absl::StatusOr<int> fd = queue_[i].open();
      if (absl::IsResourceExhausted(fd.status())) {
        return Blocked(now, patience, std::string(fd.status().message()));
      }
      if (!fd.ok()) return fd.status();
      opened.emplace_back(*fd);
      fds.push_back(*fd);
      payload.records[i] = queue_[i].record;
    }
    const absl::Status sent = socket.send(payload, fds);
    if (absl::IsResourceExhausted(sent)) {
      return Blocked(now, patience, std::string(sent.message()));
    }
    if (absl::IsUnavailable(sent)) break;
    if (!sent.ok()) return sent;
    blocked_since_ = absl::InfiniteFuture();
    n_unacknowledged_ += static_cast<uint32_t>(n);
    share_.Add(static_cast<uint32_t>(n));
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(n));
  }
  blocked_since_ = absl::InfiniteFuture();
  const bool unread =
      n_unacknowledged_ < wire::kDescriptorWindow && share_.count() >= wire::kDescriptorWindow;
  return !queue_.empty() && unread ? Flushed::kUnread : Flushed::kIdle;
}

InFlight::Hold Outbox::Close() {
  queue_ = {};
  n_unacknowledged_ = 0;
  return std::exchange(share_, InFlight::Hold());
}

}  // namespace iris::server
