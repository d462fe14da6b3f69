#include "server/link/pass_descriptor.h"

#include <errno.h>
#include <sys/socket.h>

#include <utility>

#include "proto/wire/rights.h"

namespace iris::server {

Passed PassDescriptor(int link, const void* data, size_t n_bytes, int fd) {
  const struct iovec part = {const_cast<void*>(data), n_bytes};
  const ssize_t n = wire::SendRights(link, {&part, 1}, {&fd, 1}, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n >= 0) return Passed::kYes;  // so few bytes are sent at once
  if (errno == EAGAIN || errno == EWOULDBLOCK) return Passed::kFull;
  if (errno == EPIPE || errno == ECONNRESET) return Passed::kHasEnded;
  return Passed::kNotNow;
}

Taken TakeDescriptor(int link, void* data, size_t n_bytes, wire::UniqueFd* fd) {
  wire::Rights rights;
  const ssize_t n = wire::ReceiveRights(link, data, n_bytes, MSG_DONTWAIT, &rights);
  if (n < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? Taken::kNoneYet : Taken::kHasEnded;
  }
  if (!rights.fds.empty()) *fd = std::move(rights.fds.front());
  return static_cast<size_t>(n) == n_bytes ? Taken::kOne : Taken::kHasEnded;
}

}  // namespace iris::server
