#include "server/worker/close_connections.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "server/link/drop_unread.h"

namespace iris::server {
namespace {

constexpr int kIdleMs = 3000;

// The next one. Nothing is valid when there is none now; false: the link has ended.
bool Receive(int link, wire::UniqueFd* fd) {
  char byte;
  struct iovec part = {&byte, 1};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t n = recvmsg(link, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  const struct cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int received;
    memcpy(&received, CMSG_DATA(header), sizeof(received));
    fd->Reset(received);
  }
  return n > 0;
}

}  // namespace

void CloseConnections(wire::UniqueFd link) {
  struct pollfd waits = {link.get(), POLLIN, 0};
  while (true) {
    const int n = poll(&waits, 1, kIdleMs);
    if (n == 0 || (n < 0 && errno != EINTR)) return;
    wire::UniqueFd fd;
    if (!Receive(link.get(), &fd)) return;
    if (fd.valid()) DropAll(fd.get());
  }
}

}  // namespace iris::server
