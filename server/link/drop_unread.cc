#include "server/link/drop_unread.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

namespace iris::server {
namespace {

constexpr int kMost = 1024;               // more packets than a queue holds, as systems are set
constexpr size_t kPieceBytes = 16 << 10;  // of what is dropped at once

struct Look {
  size_t bytes = 0;          // of the first packet, or of a stream, as far as one look goes
  bool unread = false;       // there is something
  bool descriptors = false;  // that brings some
};

// It takes no copy of descriptors: closing one may wait, too.
Look LookAt(int socket, size_t n_bytes = kPieceBytes) {
  int credentials = 0;
  socklen_t bytes = sizeof(credentials);
  (void)getsockopt(socket, SOL_SOCKET, SO_PASSCRED, &credentials, &bytes);
  char buffer[kPieceBytes];
  struct iovec part = {buffer, n_bytes};
  alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(struct ucred))];
  struct msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  // Room for what comes with every packet of this socket, and for no descriptor.
  message.msg_controllen = credentials != 0 ? sizeof(control) : CMSG_LEN(0);
  const ssize_t n = recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  Look look;
  look.bytes = n > 0 ? static_cast<size_t>(n) : 0;
  look.descriptors = n >= 0 && (message.msg_flags & MSG_CTRUNC) != 0;
  // An empty packet comes with its sender's credentials, the end of a connection without.
  look.unread = n > 0 || (n == 0 && (message.msg_controllen > 0 || look.descriptors));
  return look;
}

}  // namespace

bool BringsDescriptors(int socket) { return LookAt(socket, 1).descriptors; }

bool HasUnread(int socket) { return LookAt(socket).unread; }

void DropPlain(int socket) {
  char buffer[kPieceBytes];
  for (int i = 0; i < kMost; ++i) {
    // A look at a stream goes up to the first descriptor, or to what it has room for. To read as
    // much takes no more.
    const Look look = LookAt(socket);
    if (!look.unread || look.descriptors) return;
    if (recv(socket, buffer, std::max<size_t>(look.bytes, 1), MSG_DONTWAIT) < 0) return;
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
    // An empty packet may be followed by others, and so may one that came with descriptors alone.
    if (n < 0 || (n == 0 && !HasUnread(socket))) return;
  }
}

}  // namespace iris::server
