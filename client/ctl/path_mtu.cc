#include "client/ctl/path_mtu.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/base/clock.h"
#include "device/base/posix.h"

namespace iris::ctl {
namespace {

using internal::Now;

constexpr uint32_t kProbeBytes = 64 << 10;  // several packets of any network
constexpr absl::Duration kConnectTime = absl::Seconds(3);
constexpr absl::Duration kFirstTime = absl::Seconds(2);
constexpr absl::Duration kAttemptTime = absl::Seconds(1);
constexpr absl::Duration kRequestTime = absl::Milliseconds(500);  // of somebody who connects
constexpr uint32_t kHeaders4 = 40, kHeaders6 = 60;                // of IP and TCP

enum class Way : uint32_t { kTo = 1, kFrom = 2, kEnd = 3 };

// What a client sends first. The server's answer ends with the MTU that it knows, 32 bits.
struct Request {
  PathMtuToken token;
  Way way;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

absl::StatusOr<SocketAddress> AddressOf(const std::string& host, uint32_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address '", host, "': ", gai_strerror(error)));
  }
  SocketAddress address;
  memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

absl::StatusOr<wire::UniqueFd> NewSocket(const SocketAddress& address) {
  wire::UniqueFd fd(
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "make a socket");
  return fd;
}

bool Await(int fd, int16_t events, absl::Time until) {
  for (;;) {
    const int64_t left_ms = absl::ToInt64Milliseconds(until - Now());
    if (left_ms <= 0) return false;
    pollfd polled = {fd, events, 0};
    const int n = poll(&polled, 1, static_cast<int>(left_ms));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

// Receives into, or sends, all the bytes; false if that has not been done in time.
bool Receive(int fd, void* data, size_t bytes, absl::Time until) {
  for (auto* at = static_cast<char*>(data); bytes > 0;) {
    if (!Await(fd, POLLIN, until)) return false;
    const ssize_t n = base::Retry([&] { return recv(fd, at, bytes, 0); });
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}
bool Send(int fd, const void* data, size_t bytes, absl::Time until) {
  for (auto* at = static_cast<const char*>(data); bytes > 0;) {
    if (!Await(fd, POLLOUT, until)) return false;
    const ssize_t n = base::Retry([&] { return send(fd, at, bytes, MSG_NOSIGNAL); });
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

uint32_t MtuOf(int fd, const SocketAddress& address) {
  const bool ipv6 = address.storage.ss_family == AF_INET6;
  int mtu = 0;
  socklen_t length = sizeof(mtu);
  if (getsockopt(fd, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_MTU : IP_MTU, &mtu, &length) !=
      0) {
    return 0;
  }
  return static_cast<uint32_t>(mtu);
}

// Connects with packets of at most `mtu` bytes; 0: as the kernel chooses.
absl::StatusOr<wire::UniqueFd> Connect(const PathMtuRoute& route, uint32_t mtu) {
  auto from = AddressOf(route.from, 0), to = AddressOf(route.to, route.port);
  for (const auto* each : {&from, &to}) {
    if (!each->ok()) return each->status();
  }
  const auto failed = [&](int error) {
    return absl::UnavailableError(absl::StrCat(
        "connect from ", route.from, " to port ", route.port, " of ", route.to, ": ",
        error == 0 ? absl::StrCat("no answer within ", absl::FormatDuration(kConnectTime))
                   : strerror(error)));
  };
  absl::StatusOr<wire::UniqueFd> fd = NewSocket(*to);
  if (!fd.ok()) return fd;
  if (bind(fd->get(), from->get(), from->length) != 0) return failed(errno);
  if (mtu != 0) {
    // Holds for both directions: the other side learns it.
    const int mss =
        static_cast<int>(mtu - (to->storage.ss_family == AF_INET6 ? kHeaders6 : kHeaders4));
    if (setsockopt(fd->get(), IPPROTO_TCP, TCP_MAXSEG, &mss, sizeof(mss)) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("limit packets to ", mtu, " bytes"));
    }
  }
  if (connect(fd->get(), to->get(), to->length) != 0 && errno != EINPROGRESS) return failed(errno);
  if (!Await(fd->get(), POLLOUT, Now() + kConnectTime)) return failed(0);
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd->get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
    return failed(error != 0 ? error : errno);
  }
  return fd;
}

// Returns true if the probe has passed in time.
absl::StatusOr<bool> Attempt(const PathMtuRoute& route, Way way, uint32_t mtu, absl::Duration time,
                             PathMtu* found) {
  absl::StatusOr<wire::UniqueFd> fd = Connect(route, mtu);
  if (!fd.ok()) return fd.status();
  if (mtu == 0) found->here_bytes = MtuOf(fd->get(), *AddressOf(route.from, 0));
  const absl::Time until = Now() + time;
  const Request request = {route.token, way};
  std::string probe(kProbeBytes, '\0');
  uint32_t there_bytes = 0;
  const bool passed =
      Send(fd->get(), &request, sizeof(request), until) &&
      (way != Way::kTo || Send(fd->get(), probe.data(), probe.size(), until)) &&
      (way != Way::kFrom || Receive(fd->get(), probe.data(), probe.size(), until)) &&
      Receive(fd->get(), &there_bytes, sizeof(there_bytes), until);
  if (passed) found->there_bytes = there_bytes;
  if (!passed) {
    // A reset ends the server's part of a probe that hangs at once.
    const linger reset = {1, 0};
    (void)setsockopt(fd->get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }
  return passed;
}

absl::StatusOr<uint32_t> LargestThatPasses(const PathMtuRoute& route, Way way, PathMtu* found) {
  // The second time is for a loss that has another cause.
  for (int i = 0; i < 2; ++i) {
    const auto passed = Attempt(route, way, 0, kFirstTime, found);
    if (!passed.ok()) return passed.status();
    if (*passed) return found->here_bytes;
  }
  uint32_t passes = 0, lost = std::max(found->here_bytes, kPathMtuLeast + 1);
  for (uint32_t mtu = kPathMtuLeast; passes == 0 || lost - passes > kPathMtuStep;
       mtu = (passes + lost) / 2) {
    const auto passed = Attempt(route, way, mtu, kAttemptTime, found);
    if (!passed.ok()) return passed.status();
    if (!*passed && mtu == kPathMtuLeast) return 0;
    (*passed ? passes : lost) = mtu;
  }
  return passes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PathMtuServer>> PathMtuServer::Listen(const std::string& host,
                                                                     uint32_t port_min,
                                                                     uint32_t port_max) {
  int error = 0;
  for (uint32_t port = port_min; port <= std::max(port_min, port_max); ++port) {
    absl::StatusOr<SocketAddress> at = AddressOf(host, port);
    if (!at.ok()) return at.status();
    absl::StatusOr<wire::UniqueFd> fd = NewSocket(*at);
    if (!fd.ok()) return fd.status();
    if (bind(fd->get(), at->get(), at->length) == 0 && listen(fd->get(), 8) == 0 &&
        getsockname(fd->get(), at->get(), &at->length) == 0) {
      const bool ipv6 = at->storage.ss_family == AF_INET6;
      const uint16_t bound = ipv6 ? reinterpret_cast<sockaddr_in6*>(at->get())->sin6_port
                                  : reinterpret_cast<sockaddr_in*>(at->get())->sin_port;
      std::unique_ptr<PathMtuServer> server(new PathMtuServer(*std::move(fd), ntohs(bound)));
      if (getentropy(server->token_.data(), server->token_.size()) != 0) {
        return absl::ErrnoToStatus(errno, "no random numbers for a token");
      }
      return server;
    }
    error = errno;
  }
  return absl::ErrnoToStatus(error, absl::StrCat("listen at ", host));
}

absl::Status PathMtuServer::Serve(absl::Duration within) {
  const absl::Time end = Now() + within;
  std::string probe(kProbeBytes, '\0');
  while (Await(fd_.get(), POLLIN, end)) {
    SocketAddress from;
    from.length = sizeof(from.storage);
    const wire::UniqueFd fd(base::Retry([&] {
      return accept4(fd_.get(), from.get(), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }));
    if (!fd.valid()) continue;
    Request request;
    if (!Receive(fd.get(), &request, sizeof(request), Now() + kRequestTime) ||
        request.token != token_) {
      continue;
    }
    const absl::Time until = std::min(end, Now() + kFirstTime);
    const uint32_t mtu = MtuOf(fd.get(), from);
    bool passed = true;
    if (request.way == Way::kTo) passed = Receive(fd.get(), probe.data(), probe.size(), until);
    if (request.way == Way::kFrom) passed = Send(fd.get(), probe.data(), probe.size(), until);
    if (passed) (void)Send(fd.get(), &mtu, sizeof(mtu), until);
    if (request.way == Way::kEnd) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the other node did not end the test of the path's MTU within ",
                   absl::FormatDuration(within)));
}

absl::StatusOr<PathMtu> MeasurePathMtu(const PathMtuRoute& route) {
  PathMtu found;
  for (const Way way : {Way::kTo, Way::kFrom}) {
    const auto passes = LargestThatPasses(route, way, &found);
    if (!passes.ok()) return passes.status();
    (way == Way::kTo ? found.passes_to_bytes : found.passes_from_bytes) = *passes;
  }
  return found;
}

absl::Status EndPathMtu(const PathMtuRoute& route) {
  PathMtu unused;
  const auto ended = Attempt(route, Way::kEnd, 0, kFirstTime, &unused);
  if (!ended.ok()) return ended.status();
  return *ended ? absl::OkStatus()
                : absl::FailedPreconditionError(absl::StrCat("port ", route.port, " of ", route.to,
                                                             " is not that of this test"));
}

}  // namespace iris::ctl
