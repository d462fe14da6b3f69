#include "server/link/pass_descriptor.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <utility>
#include <vector>

#include "device/base/posix.h"
#include "proto/wire/rights.h"

namespace iris::server {

Passed PassDescriptor(int link, const void* data, size_t n_bytes, int fd) {
  struct iovec part = {const_cast<void*>(data), n_bytes};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  wire::AttachRights({&fd, 1}, control, &message);
  const ssize_t n =
      base::Retry([&] { return sendmsg(link, &message, MSG_DONTWAIT | MSG_NOSIGNAL); });
  if (n >= 0) return Passed::kYes;  // so few bytes go all at once
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Passed::kFull;
  if (errno == EPIPE || errno == ECONNRESET) return Passed::kHasEnded;
  return Passed::kNotNow;
}

Taken TakeDescriptor(int link, void* data, size_t n_bytes, wire::UniqueFd* fd) {
  struct iovec part = {data, n_bytes};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = recvmsg(link, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) {
    const bool later = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    return later ? Taken::kNoneYet : Taken::kHasEnded;
  }
  std::vector<wire::UniqueFd> fds;
  wire::TakeRights(&message, &fds);
  if (!fds.empty()) *fd = std::move(fds.front());
  return static_cast<size_t>(n) == n_bytes ? Taken::kOne : Taken::kHasEnded;
}

}  // namespace iris::server
