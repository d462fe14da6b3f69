#include "server/session/connections.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "proto/wire/frame.h"

namespace iris::server {
namespace {

// Numbers roll through [kFirstFd, last), so that a number comes back only after thousands of
// connections.
constexpr int kFirstFd = 64;
constexpr int kLastFd = 16384;

int LastFd() {
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kFirstFd;
  return static_cast<int>(std::min<rlim_t>(limit.rlim_cur, kLastFd));
}

}  // namespace

absl::StatusOr<int> Connections::DuplicateToFreshNumber(int fd) {
  absl::MutexLock lock(&mu_);
  if (next_fd_ < kFirstFd || next_fd_ >= LastFd()) next_fd_ = kFirstFd;
  int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, next_fd_);
  if (duplicate < 0 && (errno == EMFILE || errno == EINVAL)) {
    // Nothing free above: start over from the bottom.
    duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  }
  if (duplicate < 0) return wire::ErrnoStatus(errno, "duplicate the socket of a connection");
  next_fd_ = duplicate + 1;
  return duplicate;
}

uint64_t Connections::Add(int fd, SessionId session, const CallerInfo& caller) {
  absl::MutexLock lock(&mu_);
  Connection connection;
  connection.id = next_id_++;
  connection.session = session;
  connection.caller = caller;
  by_fd_[fd] = connection;
  return connection.id;
}

void Connections::Remove(int fd, uint64_t connection_id) {
  absl::MutexLock lock(&mu_);
  const auto it = by_fd_.find(fd);
  if (it != by_fd_.end() && it->second.id == connection_id) by_fd_.erase(it);
}

std::optional<Connection> Connections::Find(std::string_view peer) const {
  constexpr std::string_view kPrefix = "fd:";
  if (peer.substr(0, kPrefix.size()) != kPrefix) return std::nullopt;
  peer.remove_prefix(kPrefix.size());
  int fd = -1;
  if (!absl::SimpleAtoi(absl::string_view(peer.data(), peer.size()), &fd)) return std::nullopt;
  absl::MutexLock lock(&mu_);
  const auto it = by_fd_.find(fd);
  if (it == by_fd_.end()) return std::nullopt;
  return it->second;
}

}  // namespace iris::server
