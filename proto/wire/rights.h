// Messages of AF_UNIX sockets that carry descriptors (SCM_RIGHTS). Thread-safe.
#pragma once

#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <vector>

#include "absl/types/span.h"
#include "proto/wire/unique_fd.h"

namespace iris::wire {

// The kernel's limit of descriptors per message.
inline constexpr size_t kMaxRights = 253;

// Calls sendmsg(2) with `fds`, which are borrowed, and repeats it after EINTR.
ssize_t SendRights(int socket, absl::Span<const struct iovec> parts, absl::Span<const int> fds,
                   int flags);

// The descriptors and the sender of a message.
struct Rights {
  std::vector<UniqueFd> fds;
  struct ucred sender = {};  // zero: the kernel did not report it
  int flags = 0;             // as recvmsg(2) sets them
};

// Calls recvmsg(2) with MSG_CMSG_CLOEXEC, and repeats it after EINTR. Fills *rights.
ssize_t ReceiveRights(int socket, void* data, size_t n_bytes, int flags, Rights* rights);

}  // namespace iris::wire
