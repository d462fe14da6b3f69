// How irisd hands descriptors to a process that may hang in its place, each with a few bytes that
// say what it is for. The link between them is a stream of AF_UNIX; neither end ever waits.
// Thread-safe in so far as each end of a link belongs to one thread.
#pragma once

#include <string.h>
#include <sys/socket.h>

#include <cstddef>

#include "proto/wire/unique_fd.h"

namespace iris::server {

enum class Passed {
  kYes,
  kFull,      // the other end has not taken what was passed before
  kHasEnded,  // the other end is closed
  kNotNow,    // too many descriptors are in flight, or there is no memory
};

// Passes `fd`, which is borrowed, with the bytes.
Passed PassDescriptor(int link, const void* data, size_t n_bytes, int fd);

enum class Taken { kOne, kNoneYet, kHasEnded };

// Takes what was passed next. *fd is not valid where the descriptor did not arrive, because this
// process has none left. kHasEnded also if what comes is not of that length.
Taken TakeDescriptor(int link, void* data, size_t n_bytes, wire::UniqueFd* fd);

// Takes over the descriptors that a message has brought, behind those that `fds` has.
template <typename UniqueFds>
void TakeAll(struct msghdr* message, UniqueFds* fds) {
  for (struct cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n_fds; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
      fds->emplace_back(fd);
    }
  }
}

}  // namespace iris::server
