#include "proto/wire/rights.h"

#include <cstring>

#include "device/base/posix.h"

namespace iris::wire {

ssize_t SendRights(int socket, absl::Span<const struct iovec> parts, absl::Span<const int> fds,
                   int flags) {
  alignas(struct cmsghdr) char control[CMSG_SPACE(kMaxRights * sizeof(int))];
  struct msghdr message = {};
  message.msg_iov = const_cast<struct iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  if (!fds.empty()) {
    const size_t n_bytes = fds.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(n_bytes);
    std::memset(control, 0, message.msg_controllen);
    struct cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(n_bytes);
    std::memcpy(CMSG_DATA(header), fds.data(), n_bytes);
  }
  return base::Retry([&] { return sendmsg(socket, &message, flags); });
}

ssize_t ReceiveRights(int socket, void* data, size_t n_bytes, int flags, Rights* rights) {
  alignas(struct cmsghdr) char
      control[CMSG_SPACE(kMaxRights * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
  struct iovec part = {data, n_bytes};
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n =
      base::Retry([&] { return recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC); });
  if (n < 0) return n;
  rights->flags = message.msg_flags;
  for (struct cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_RIGHTS) {
      const size_t n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < n_fds; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        rights->fds.emplace_back(fd);
      }
    } else if (c->cmsg_type == SCM_CREDENTIALS && c->cmsg_len >= CMSG_LEN(sizeof(struct ucred))) {
      std::memcpy(&rights->sender, CMSG_DATA(c), sizeof(struct ucred));
    }
  }
  return n;
}

}  // namespace iris::wire
