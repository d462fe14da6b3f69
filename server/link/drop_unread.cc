#include "server/link/drop_unread.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

namespace iris::server {
namespace {

constexpr int kMost = 1024;               // more packets than a queue holds on common systems
constexpr size_t kPieceBytes = 16 << 10;  // bytes that are dropped at once

}  // namespace

Next NextOf(int socket) {
  size_t n_bytes = 1;
  char byte;
  return NextOf(socket, &byte, &n_bytes);
}

// Copies no descriptors, since the close of a copy may block, too.
Next NextOf(int socket, void* buffer, size_t* n_bytes) {
  int credentials = 0;
  socklen_t bytes = sizeof(credentials);
  (void)getsockopt(socket, SOL_SOCKET, SO_PASSCRED, &credentials, &bytes);
  struct iovec part = {buffer, *n_bytes};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct ucred))];
  struct msghdr message;
  ssize_t n;
  // If a peer closes with unread data from this end, the connection is reset. The kernel reports
  // that once, even to a peek, and before the peer's last messages.
  bool reset = false;
  for (;;) {
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    // There is room for the credentials of every packet of this socket, but not for descriptors.
    message.msg_controllen = credentials != 0 ? sizeof(control) : CMSG_LEN(0);
    n = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n >= 0 || (errno != EINTR && (errno != ECONNRESET || reset))) break;
    reset = errno == ECONNRESET;
  }
  if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Next::kNothing : Next::kFailed;
  *n_bytes = static_cast<size_t>(n);
  if ((message.msg_flags & MSG_CTRUNC) != 0) return Next::kDescriptors;
  // An empty packet has its sender's credentials; the end of a connection has none.
  return n > 0 || message.msg_controllen > 0 ? Next::kPlain : Next::kEnd;
}

bool HasUnread(int socket) {
  const Next next = NextOf(socket);
  return next == Next::kPlain || next == Next::kDescriptors;
}

void DropPlain(int socket) {
  char buffer[kPieceBytes];
  for (int i = 0; i < kMost; ++i) {
    // A peek at a stream ends at the first descriptor, or at the end of the buffer. Reading as many
    // bytes takes no descriptor.
    size_t n_bytes = sizeof(buffer);
    if (NextOf(socket, buffer, &n_bytes) != Next::kPlain) return;
    if (recv(socket, buffer, std::max<size_t>(n_bytes, 1), MSG_DONTWAIT) < 0) return;
  }
}

void DropAll(int socket) {
  char buffer[kPieceBytes];
  for (int i = 0; i < kMost; ++i) {
    struct iovec part = {buffer, sizeof(buffer)};
    struct msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    // There is no room for descriptors, so the kernel closes them.
    const ssize_t n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // Other packets may follow an empty packet, or one that has only descriptors.
    if (n < 0 || (n == 0 && !HasUnread(socket))) return;
  }
}

}  // namespace iris::server
