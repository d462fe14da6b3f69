// Messages of AF_UNIX sockets that carry descriptors (SCM_RIGHTS). Thread-safe.
#pragma once

#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <vector>

#include "absl/types/span.h"
#include "proto/wire/unique_fd.h"

namespace iris::wire {

// The kernel lets no message carry more.
inline constexpr size_t kMaxRights = 253;

// As sendmsg(2), with `fds`, which are borrowed; repeated after EINTR.
ssize_t SendRights(int socket, absl::Span<const struct iovec> parts, absl::Span<const int> fds,
                   int flags);

// The descriptors and the sender of a message.
struct Rights {
  std::vector<UniqueFd> fds;
  struct ucred sender = {};  // zero: the kernel did not tell
  int flags = 0;             // as recvmsg(2) sets them
};

// As recvmsg(2), with MSG_CMSG_CLOEXEC; repeated after EINTR. Fills *rights.
ssize_t ReceiveRights(int socket, void* data, size_t n_bytes, int flags, Rights* rights);

}  // namespace iris::wire
