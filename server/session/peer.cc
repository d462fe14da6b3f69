#include "server/session/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/posix.h"
#include "device/base/process.h"
#include "proto/wire/frame.h"

namespace iris::server {
namespace {

constexpr int kSoPeerPidfd = 77;  // SO_PEERPIDFD; older headers lack it

}  // namespace

std::string AttestationInUse(Attestation wanted) {
  if (wanted == Attestation::kNonce) return "nonce";
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) return "nonce";
  const wire::UniqueFd a(fds[0]), b(fds[1]);
  return PeerPidfd(a.get()).ok() ? "peerpidfd" : "nonce";
}

absl::StatusOr<CallerInfo> PeerCaller(int socket) {
  struct ucred credentials = {};
  socklen_t n_bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &n_bytes) != 0) {
    return wire::ErrnoStatus(errno, "ask the kernel for the peer's credentials");
  }
  if (credentials.pid <= 0) {
    return absl::PermissionDeniedError(
        "the kernel does not tell the caller's pid: it is in another pid namespace; run it in "
        "irisd's");
  }
  CallerInfo caller;
  caller.pid = credentials.pid;
  caller.party.uid = credentials.uid;
  caller.gid = credentials.gid;
  return caller;
}

absl::StatusOr<wire::UniqueFd> PeerPidfd(int socket) {
  int fd = -1;
  socklen_t n_bytes = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &n_bytes) == 0) return wire::UniqueFd(fd);
  const int error = errno;
  if (error == ENOPROTOOPT || error == EOPNOTSUPP) {
    return absl::UnimplementedError("the kernel has no SO_PEERPIDFD");
  }
  return wire::ErrnoStatus(error, "ask the kernel for the peer's pidfd");
}

absl::StatusOr<wire::UniqueFd> OpenPidfd(int64_t pid) {
  const long fd = syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0);
  if (fd < 0) return wire::ErrnoStatus(errno, absl::StrCat("open a pidfd of process ", pid));
  return wire::UniqueFd(static_cast<int>(fd));
}

absl::StatusOr<wire::UniqueFd> PidfdOf(int socket, Attestation wanted, int64_t pid,
                                       bool* attested) {
  if (wanted != Attestation::kNonce) {
    absl::StatusOr<wire::UniqueFd> pidfd = PeerPidfd(socket);
    *attested = pidfd.ok();
    if (!absl::IsUnimplemented(pidfd.status())) return pidfd;
  }
  return OpenPidfd(pid);
}

bool ProcessHasEnded(int pidfd) {
  struct pollfd poll_fd = {pidfd, POLLIN, 0};
  return base::Retry([&poll_fd] { return poll(&poll_fd, 1, 0); }) != 0;
}

absl::StatusOr<uint64_t> ProcessStart(int64_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/stat");
  const wire::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return wire::ErrnoStatus(errno, absl::StrCat("open ", path));
  char text[1024];
  const ssize_t n = read(fd.get(), text, sizeof(text));
  if (n <= 0) return wire::ErrnoStatus(n < 0 ? errno : ESRCH, absl::StrCat("read ", path));
  const auto process = base::ParseProcess(std::string(text, static_cast<size_t>(n)));
  if (process.has_value() && process->start.has_value()) return *process->start;
  return absl::InvalidArgumentError(absl::StrCat("no start time in ", path));
}

absl::Duration ProcessAge(uint64_t start) {
  struct timespec now = {};
  clock_gettime(CLOCK_BOOTTIME, &now);  // start times count from boot
  const absl::Duration age =
      absl::DurationFromTimespec(now) -
      static_cast<int64_t>(start) * absl::Seconds(1) / static_cast<int64_t>(sysconf(_SC_CLK_TCK));
  return std::max(age, absl::ZeroDuration());
}

absl::StatusOr<Peer> IdentifyPeer(int socket, Attestation attestation, const PartyFinder& parties) {
  Peer peer;
  absl::StatusOr<CallerInfo> caller = PeerCaller(socket);
  if (!caller.ok()) return caller.status();
  peer.caller = *caller;
  absl::StatusOr<wire::UniqueFd> pidfd = PidfdOf(socket, attestation, caller->pid, &peer.attested);
  if (!pidfd.ok()) return pidfd.status();
  peer.pidfd = *std::move(pidfd);
  absl::StatusOr<Party> party = parties.Find(caller->pid, caller->party.uid, peer.pidfd.get());
  if (!party.ok()) return party.status();
  peer.caller.party = *party;
  peer.applicant = {party->Account(), parties.IsOperator(*party)};
  return peer;
}

}  // namespace iris::server
