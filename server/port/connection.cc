#include "server/port/connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "device/base/posix.h"
#include "proto/wire/clock_drift.h"
#include "proto/wire/frame.h"
#include "server/port/secret.h"

namespace iris::port {
namespace {

constexpr size_t kShortMacBytes = 16;
constexpr size_t kReadBytes = 256 << 10;  // at a time
constexpr size_t kMaxQueuedBytes = 64 << 20;
constexpr int kBacklog = 1024;

union SocketAddress {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
};

socklen_t ToSocket(const Address& address, SocketAddress* out) {
  memset(out, 0, sizeof(*out));
  if (address.ipv6) {
    out->v6.sin6_family = AF_INET6;
    out->v6.sin6_port = htons(address.port);
    // An address of a link names its interface after a '%'.
    const size_t percent = address.host.find('%');
    inet_pton(AF_INET6, address.host.substr(0, percent).c_str(), &out->v6.sin6_addr);
    if (percent != std::string::npos) {
      out->v6.sin6_scope_id = if_nametoindex(address.host.c_str() + percent + 1);
    }
    return sizeof(out->v6);
  }
  out->v4.sin_family = AF_INET;
  out->v4.sin_port = htons(address.port);
  inet_pton(AF_INET, address.host.c_str(), &out->v4.sin_addr);
  return sizeof(out->v4);
}

Address FromSocket(const struct sockaddr* from) {
  Address address;
  char text[NI_MAXHOST] = {};
  address.ipv6 = from->sa_family == AF_INET6;
  (void)getnameinfo(from, address.ipv6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in),
                    text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  address.host = text;
  address.port = ntohs(address.ipv6 ? reinterpret_cast<const struct sockaddr_in6*>(from)->sin6_port
                                    : reinterpret_cast<const struct sockaddr_in*>(from)->sin_port);
  return address;
}

absl::StatusOr<wire::UniqueFd> NewSocket(const Address& address, int type) {
  wire::UniqueFd fd(
      socket(address.ipv6 ? AF_INET6 : AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return wire::ErrnoStatus(errno, "make a socket");
  return fd;
}

// A beat, or the answer to one. Times are in nanoseconds of the steady clock of the named side.
struct Beat {
  int64_t sent_ns = 0;      // of the side that asks: when it sent the beat
  int64_t answered_ns = 0;  // of the side that answers: a time after it came, and before the answer
};
static_assert(sizeof(Beat) == 16);
constexpr uint64_t kMaxRttNs = 3'600'000'000'000;

std::string_view BytesOf(const Beat& beat) {
  return {reinterpret_cast<const char*>(&beat), sizeof(beat)};
}

}  // namespace

Connection::Connection(wire::UniqueFd fd, const Identity* self, const std::string* secret,
                       bool initiator, absl::Time now)
    : fd_(std::move(fd)),
      handshake_(self, secret, initiator),
      connecting_(initiator),
      opened_(now),
      heard_(now),
      beaten_(now) {
  handshake_.Begin(&out_);
}

std::string Connection::MacOf(const std::string& key, uint64_t number, const FrameHeader& header,
                              std::string_view payload) {
  const std::string_view number_bytes(reinterpret_cast<const char*>(&number), sizeof(number));
  const std::string_view header_bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  return Hmac(key, {number_bytes, header_bytes, payload}).substr(0, kShortMacBytes);
}

absl::Status Connection::Read(absl::Time now) {
  char buffer[kReadBytes];
  const ssize_t n = base::Retry([&] { return recv(fd_.get(), buffer, sizeof(buffer), 0); });
  if (n == 0) return absl::UnavailableError("the other port closed the connection");
  if (n < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the connection ended: ", strerror(errno)));
  }
  heard_ = now;
  in_.append(buffer, static_cast<size_t>(n));
  size_t at = 0;
  absl::Status status;
  while (status.ok() && in_.size() - at >= sizeof(FrameHeader)) {
    FrameHeader header;
    memcpy(&header, in_.data() + at, sizeof(header));
    if (header.bytes > (ready_ ? kMaxFrameBytes : kMaxHandshakeBytes) || header.reserved != 0) {
      return absl::InvalidArgumentError(ready_ ? "it sent a frame that is too long"
                                               : "it is no port of an Iris job");
    }
    const size_t mac_bytes = ready_ ? kShortMacBytes : 0;
    if (in_.size() - at < sizeof(header) + header.bytes + mac_bytes) break;
    const std::string_view payload(in_.data() + at + sizeof(header), header.bytes);
    at += sizeof(header) + header.bytes + mac_bytes;
    if (!ready_) {
      status = Take(header.type, payload);
      continue;
    }
    const std::string_view mac(payload.data() + payload.size(), mac_bytes);
    if (!SameBytes(mac, MacOf(keys().received, n_received_++, header, payload))) {
      return absl::PermissionDeniedError("a frame was forged");
    }
    frames_.push_back({header.type, std::string(payload)});
  }
  in_.erase(0, at);
  return status;
}

absl::Status Connection::Take(FrameType type, std::string_view payload) {
  const absl::StatusOr<bool> done = handshake_.Take(type, payload, &out_);
  if (!done.ok()) return done.status();
  ready_ = *done;
  return absl::OkStatus();
}

std::optional<Connection::Frame> Connection::Next() {
  if (frames_.empty()) return std::nullopt;
  Frame frame = std::move(frames_.front());
  frames_.pop_front();
  return frame;
}

void Connection::Send(FrameType type, std::string_view payload) {
  FrameHeader header;
  header.bytes = static_cast<uint32_t>(payload.size());
  header.type = type;
  AppendFrame(type, payload, &out_);
  out_ += MacOf(keys().sent, n_sent_++, header, payload);
}

void Connection::SendBeat(absl::Time now) {
  beaten_ = now;
  Send(FrameType::kBeat, BytesOf({absl::ToUnixNanos(now), 0}));
}

bool Connection::TakeBeat(std::string_view payload, absl::Time now) {
  Beat beat;
  if (payload.size() != sizeof(beat)) return false;
  memcpy(&beat, payload.data(), sizeof(beat));
  beat.answered_ns = absl::ToUnixNanos(now);
  Send(FrameType::kAnswer, BytesOf(beat));
  return true;
}

bool Connection::TakeAnswer(std::string_view payload, absl::Time now) {
  Beat beat;
  if (payload.size() != sizeof(beat)) return false;
  memcpy(&beat, payload.data(), sizeof(beat));
  // Numbers from outside: the differences wrap, and what is impossible is left out.
  const auto now_ns = static_cast<uint64_t>(absl::ToUnixNanos(now));
  const uint64_t rtt_ns = now_ns - static_cast<uint64_t>(beat.sent_ns);
  if (rtt_ns > kMaxRttNs) return true;
  rtt_ = absl::Nanoseconds(rtt_ns);
  // The other side's time is one between the beat and now.
  const uint64_t ahead_ns = static_cast<uint64_t>(beat.answered_ns) - (now_ns - rtt_ns / 2);
  clocks_.push_back({now, {static_cast<int64_t>(ahead_ns), rtt_ns / 2 + 1}});
  if (clocks_.size() > kClockSamples) clocks_.pop_front();
  return true;
}

std::optional<ClockReading> Connection::clock(absl::Time now) const {
  std::optional<ClockReading> best;
  for (const ClockSample& sample : clocks_) {
    ClockReading reading = sample.reading;
    reading.error_ns += wire::ClockDriftNs(
        static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Nanoseconds(now - sample.at))));
    if (!best.has_value() || reading.error_ns <= best->error_ns) best = reading;
  }
  return best;
}

absl::Status Connection::Flush() {
  if (connecting_) {
    int error = 0;
    socklen_t length = sizeof(error);
    (void)getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return absl::UnavailableError(strerror(error));
    // Where nobody listens on a port of this host, a socket can get this very port, and connect to
    // itself.
    SocketAddress own = {}, peer = {};
    socklen_t own_length = sizeof(own), peer_length = sizeof(peer);
    if (getsockname(fd_.get(), &own.any, &own_length) == 0 && own.any.sa_family != AF_UNIX &&
        getpeername(fd_.get(), &peer.any, &peer_length) == 0 &&
        memcmp(&own, &peer, own_length) == 0) {
      return absl::UnavailableError(strerror(ECONNREFUSED));
    }
  }
  size_t done = 0;
  while (done < out_.size()) {
    const ssize_t n = base::Retry(
        [&] { return send(fd_.get(), out_.data() + done, out_.size() - done, MSG_NOSIGNAL); });
    if (n < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || (connecting_ && errno == ENOTCONN)) break;
      return absl::UnavailableError(absl::StrCat("the connection ended: ", strerror(errno)));
    }
    connecting_ = false;
    done += static_cast<size_t>(n);
  }
  out_.erase(0, done);
  if (out_.size() > kMaxQueuedBytes) {
    return absl::ResourceExhaustedError("the other port does not read");
  }
  return absl::OkStatus();
}

std::string Address::Text() const {
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<Address> Resolve(const std::string& text) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (colon == std::string::npos || host.empty() ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port == 0 || port > 65535 ||
      (!bracketed && host.find(':') != std::string::npos)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address \"", text, "\" is not HOST:PORT or [ADDRESS]:PORT"));
  }
  struct addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  struct addrinfo* found = nullptr;
  int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error == EAI_NONAME) {
    hints.ai_flags = AI_ADDRCONFIG;
    error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  }
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat("find the address of host \"", host,
                                            "\": ", gai_strerror(error),
                                            ". Name a host that every node knows"));
  }
  Address address = FromSocket(found->ai_addr);
  freeaddrinfo(found);
  // Debian's /etc/hosts gives a machine's own name such an address, which no other node reaches.
  if (hints.ai_flags != AI_NUMERICHOST && host != "localhost" &&
      (address.host == "::1" || address.host.rfind("127.", 0) == 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the name \"", host, "\" means ", address.host,
                     " here, which is no address for other nodes: name an address, or mend "
                     "/etc/hosts"));
  }
  address.port = static_cast<uint16_t>(port);
  return address;
}

absl::StatusOr<Interface> FindInterface(const std::string& name, const Address& toward) {
  std::string wanted = name;
  if (wanted.empty()) {
    // Nothing is sent: connect chooses the route.
    absl::StatusOr<wire::UniqueFd> probe = NewSocket(toward, SOCK_DGRAM);
    if (!probe.ok()) return probe.status();
    SocketAddress to, from;
    const socklen_t length = ToSocket(toward, &to);
    socklen_t from_length = sizeof(from);
    if (connect(probe->get(), &to.any, length) != 0 ||
        getsockname(probe->get(), &from.any, &from_length) != 0) {
      return wire::ErrnoStatus(errno, absl::StrCat("find the network interface to ", toward.Text(),
                                                   "; name one that leads there"));
    }
    wanted = FromSocket(&from.any).host;
  }
  struct ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return wire::ErrnoStatus(errno, "list network interfaces");
  Interface best;
  std::string known;
  for (const struct ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || (each->ifa_flags & IFF_UP) == 0) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const Address address = FromSocket(each->ifa_addr);
    absl::StrAppend(&known, known.empty() ? "" : ", ", each->ifa_name, " (", address.host, ")");
    if (address.host == wanted) {
      best = {each->ifa_name, address};
      break;
    }
    if (wanted == each->ifa_name && address.ipv6 == toward.ipv6 && best.name.empty()) {
      best = {each->ifa_name, address};
    }
  }
  freeifaddrs(all);
  if (best.name.empty()) {
    return absl::NotFoundError(absl::StrCat("no network interface that is up is or has \"", wanted,
                                            "\"; there are: ", known));
  }
  best.address.port = 0;
  return best;
}

absl::StatusOr<wire::UniqueFd> Listen(Address* address, uint32_t port_min, uint32_t port_max) {
  const bool fixed = address->port != 0;
  const uint32_t first = fixed ? address->port : port_min;
  const uint32_t last = fixed ? address->port : std::max(port_min, port_max);
  int error = 0;
  for (uint32_t port = first; port <= last; ++port) {
    absl::StatusOr<wire::UniqueFd> fd = NewSocket(*address, SOCK_STREAM);
    if (!fd.ok()) return fd.status();
    const int on = 1;
    (void)setsockopt(fd->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    address->port = static_cast<uint16_t>(port);
    SocketAddress at;
    socklen_t length = ToSocket(*address, &at);
    if (bind(fd->get(), &at.any, length) == 0 && listen(fd->get(), kBacklog) == 0) {
      length = sizeof(at);
      if (getsockname(fd->get(), &at.any, &length) == 0) *address = FromSocket(&at.any);
      return fd;
    }
    error = errno;
    if (error != EADDRINUSE) break;
  }
  return wire::ErrnoStatus(
      error,
      absl::StrCat("listen at ", address->Text(),
                   fixed || first == last ? "" : absl::StrCat(" and ports from ", first),
                   error == EADDRINUSE      ? " (another program or job listens there)"
                   : error != EADDRNOTAVAIL ? ""
                   : fixed ? " (no interface here has the address, which has to be one of the "
                             "node of rank 0)"
                           : " (no interface here has the address)"));
}

absl::StatusOr<wire::UniqueFd> StartToConnect(const Address& to, const std::string& from) {
  absl::StatusOr<wire::UniqueFd> fd = NewSocket(to, SOCK_STREAM);
  if (!fd.ok()) return fd.status();
  TuneSocket(fd->get());
  SocketAddress at;
  if (!from.empty()) {
    const Address local = {from, 0, to.ipv6};
    const socklen_t length = ToSocket(local, &at);
    if (bind(fd->get(), &at.any, length) != 0) {
      return wire::ErrnoStatus(errno, absl::StrCat("connect from ", from));
    }
  }
  const socklen_t length = ToSocket(to, &at);
  if (connect(fd->get(), &at.any, length) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    return absl::UnavailableError(absl::StrCat(
        from.empty() ? "" : absl::StrCat("connect from ", from, ": "), strerror(error)));
  }
  return fd;
}

void TuneSocket(int fd) {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

}  // namespace iris::port
