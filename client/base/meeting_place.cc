#include "client/base/meeting_place.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cstdint>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/unique_fd.h"

namespace iris::base {
namespace {

// Returns the address at which a socket to `there` begins. Nothing is sent: connect chooses the
// route. Empty if there is none.
std::string OwnAddress(const addrinfo& there) {
  const wire::UniqueFd probe(socket(there.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  sockaddr* const any = reinterpret_cast<sockaddr*>(&own);
  char number[NI_MAXHOST] = {};
  if (connect(probe.get(), there.ai_addr, there.ai_addrlen) != 0 ||
      getsockname(probe.get(), any, &length) != 0 ||
      getnameinfo(any, length, number, sizeof(number), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  return number;
}

}  // namespace

std::string HostAndPort(const std::string& host, int port) {
  const bool is_address = absl::StrContains(host, ':');  // of IPv6
  return absl::StrCat(is_address ? "[" : "", host, is_address ? "]" : "", ":", port);
}

int FreePort() {
  constexpr int kFirst = 20000, kPorts = 10000, kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    uint32_t random = 0;
    if (getrandom(&random, sizeof(random), 0) != sizeof(random)) return 0;
    const wire::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    const int port = kFirst + static_cast<int>(random % kPorts);
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
      return port;
    }
  }
  return 0;
}

std::string AddressToward(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  // A port is needed for a connect, and any will do.
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const std::string own = OwnAddress(*each);
    // Addresses of one link have no meaning elsewhere, and the loopback is no way to another host.
    const bool usable =
        own != "::1" && !absl::StartsWith(own, "127.") && !absl::StrContains(own, '%');
    if (!own.empty() && usable) return own;
  }
  return "";
}

}  // namespace iris::base
