#include "server/link/pass_descriptor.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace iris::server {

Passed PassDescriptor(int link, const void* data, size_t n_bytes, int fd) {
  struct iovec part = {const_cast<void*>(data), n_bytes};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  struct cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  ssize_t n;
  do {
    n = sendmsg(link, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
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
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Taken::kNoneYet
                                                                     : Taken::kHasEnded;
  }
  const struct cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int received;
    memcpy(&received, CMSG_DATA(header), sizeof(received));
    fd->Reset(received);
  }
  return static_cast<size_t>(n) == n_bytes ? Taken::kOne : Taken::kHasEnded;
}

}  // namespace iris::server
