#include "server/worker/helper_work.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/wire/rights.h"
#include "server/link/drop_unread.h"
#include "server/link/pass_descriptor.h"
#include "server/session/deferred_close.h"

namespace iris::server {
namespace {

constexpr int kIdleMs = 3000;
constexpr int kReportEveryMs = 200;  // the interval of reports while descriptors wait to be closed

// Copies the descriptors of the socket's next packet, which remain in the packet. Returns false if
// some are missing.
bool Peek(int socket, std::vector<wire::UniqueFd>* fds) {
  // As in drop_unread.cc: the end of a connection may be reported once before its last messages.
  for (bool reset = false;; reset = true) {
    char byte;
    wire::Rights rights;
    const ssize_t n = wire::ReceiveRights(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT, &rights);
    if (n < 0 && errno == ECONNRESET && !reset) continue;
    *fds = std::move(rights.fds);
    // irisd saw a packet here: if there is none, irisd does not receive it uninspected.
    return n >= 0 && (rights.flags & MSG_CTRUNC) == 0;
  }
}

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

std::optional<FileKind> KindOf(int fd) {
  struct statx info = {};
  // With these flags, the kernel answers without asking the file system again.
  if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) != 0) {
    return std::nullopt;
  }
  FileKind kind;
  kind.type = info.stx_mode & S_IFMT;
  const bool is_device = kind.type == S_IFCHR || kind.type == S_IFBLK;
  kind.device = is_device ? makedev(info.stx_rdev_major, info.stx_rdev_minor)
                          : makedev(info.stx_dev_major, info.stx_dev_minor);
  return kind;
}

void LookAtDescriptors(wire::UniqueFd link, const LookingLimits& limits, size_t max_descriptors) {
  DeferredClose closer({.per_tenant = limits.max_closing_per_tenant,
                        .total = std::min<size_t>(limits.max_closing, max_descriptors / 2)});
  const auto is_good = [&limits](const wire::UniqueFd& fd) {
    // Only files that live in memory have seals.
    if (fcntl(fd.get(), F_GET_SEALS) >= 0) return true;
    return limits.device_memory.has_value() && KindOf(fd.get()) == limits.device_memory;
  };
  const auto look = [&](const LookRequest& request, int socket) {
    if (closer.IsFull(request.tenant)) return LookVerdict::kFull;
    std::vector<wire::UniqueFd> fds;
    const bool all = Peek(socket, &fds);
    // Closes the good copies, which does not block.
    std::erase_if(fds, is_good);
    if (fds.empty()) return all ? LookVerdict::kGood : LookVerdict::kUnseen;
    closer.CloseUnknown(request.tenant, std::move(fds));
    return LookVerdict::kBad;
  };
  struct pollfd waits = {link.get(), POLLIN, 0};
  size_t reported = 0;
  while (true) {
    const int n = poll(&waits, 1, reported > 0 ? kReportEveryMs : kIdleMs);
    if (n < 0 && errno != EINTR) return;
    LookAnswer answer;
    LookRequest request;
    wire::UniqueFd socket;
    if (n > 0) {
      const Taken taken = TakeDescriptor(link.get(), &request, sizeof(request), &socket);
      if (taken == Taken::kHasEnded) return;
      if (taken == Taken::kNoneYet) continue;
      answer.look = request.look;
      // If the socket is missing, this process has no descriptor left.
      answer.verdict = socket.valid() ? look(request, socket.get()) : LookVerdict::kUnseen;
    }
    answer.n_closing = static_cast<uint32_t>(closer.n_unclosed());
    if (n <= 0 && answer.n_closing == 0 && reported == 0) return;
    if (n <= 0 && answer.n_closing == reported) continue;
    reported = answer.n_closing;
    // irisd reads at once. If it does not, it has ended, or is about to end this process.
    struct pollfd room = {link.get(), POLLOUT, 0};
    if (poll(&room, 1, kIdleMs) <= 0) return;
    if (send(link.get(), &answer, sizeof(answer), MSG_DONTWAIT | MSG_NOSIGNAL) !=
        static_cast<ssize_t>(sizeof(answer))) {
      return;
    }
  }
}

}  // namespace iris::server
