#include "server/worker/close_connections.h"

#include <errno.h>
#include <poll.h>

#include "server/link/drop_unread.h"
#include "server/link/pass_descriptor.h"

namespace iris::server {
namespace {

constexpr int kIdleMs = 3000;

}  // namespace

void CloseConnections(wire::UniqueFd link) {
  struct pollfd waits = {link.get(), POLLIN, 0};
  while (true) {
    const int n = poll(&waits, 1, kIdleMs);
    if (n == 0 || (n < 0 && errno != EINTR)) return;
    char byte;
    wire::UniqueFd fd;
    if (TakeDescriptor(link.get(), &byte, sizeof(byte), &fd) == Taken::kHasEnded) return;
    if (fd.valid()) DropAll(fd.get());
  }
}

}  // namespace iris::server
