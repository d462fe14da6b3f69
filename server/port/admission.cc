#include "server/port/admission.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/limits.h"

namespace iris::port {
namespace {

constexpr int kStrangersAtOnce = 16;  // then others of the accepting thread's events have a turn

absl::Mutex mu(absl::kConstInit);
struct State {
  bool refuses = false;
  std::set<std::string> hosts;  // the bytes of addresses
  RefusedStrangers refused;
};
State& GuardedState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  static State& state = *new State;
  return state;
}

// Returns whether the connection may be used. Those that are not by IP may.
bool MayEnter(const struct sockaddr_storage& from) {
  const void* number = nullptr;
  size_t bytes = 0;
  if (from.ss_family == AF_INET) {
    number = &reinterpret_cast<const struct sockaddr_in&>(from).sin_addr;
    bytes = sizeof(struct in_addr);
  } else if (from.ss_family == AF_INET6) {
    number = &reinterpret_cast<const struct sockaddr_in6&>(from).sin6_addr;
    bytes = sizeof(struct in6_addr);
  } else {
    return true;
  }
  absl::MutexLock lock(&mu);
  State& state = GuardedState();
  if (!state.refuses ||
      state.hosts.contains(std::string(static_cast<const char*>(number), bytes))) {
    return true;
  }
  char text[INET6_ADDRSTRLEN] = {};
  (void)inet_ntop(from.ss_family, number, text, sizeof(text));
  ++state.refused.n;
  state.refused.last = text;
  return false;
}

}  // namespace

absl::Status RefuseStrangers() {
  if (dlsym(RTLD_DEFAULT, "accept") != reinterpret_cast<void*>(&accept)) {
    return absl::InternalError(
        "any host could connect to UCX: this program's accept(2) is hidden from libraries, or "
        "another one was loaded before it (see LD_PRELOAD)");
  }
  absl::MutexLock lock(&mu);
  GuardedState().refuses = true;
  return absl::OkStatus();
}

absl::Status AdmitHost(const std::string& host) {
  const std::string number = host.substr(0, host.find('%'));
  char bytes[sizeof(struct in6_addr)];
  size_t length = sizeof(struct in6_addr);
  if (inet_pton(AF_INET6, number.c_str(), bytes) != 1) {
    if (inet_pton(AF_INET, number.c_str(), bytes) != 1) {
      return absl::InvalidArgumentError("the address from which its UCX connects is no number");
    }
    length = sizeof(struct in_addr);
  }
  absl::MutexLock lock(&mu);
  std::set<std::string>& hosts = GuardedState().hosts;
  hosts.emplace(bytes, length);
  if (hosts.size() <= wire::kMaxWorldRanks) return absl::OkStatus();
  hosts.erase({bytes, length});
  return absl::ResourceExhaustedError("more hosts than a job can have have proved its secret");
}

RefusedStrangers TakeRefusedStrangers() {
  absl::MutexLock lock(&mu);
  return std::exchange(GuardedState().refused, {});
}

}  // namespace iris::port

// Takes libc's place for libraries. A caller sees strangers as connections that have not come.
extern "C" __attribute__((visibility("default"))) int accept(int listener, struct sockaddr* address,
                                                             socklen_t* length) {
  for (int i = 0; i < iris::port::kStrangersAtOnce; ++i) {
    struct sockaddr_storage from = {};
    socklen_t from_length = sizeof(from);
    const int fd =
        accept4(listener, reinterpret_cast<struct sockaddr*>(&from), &from_length, /*flags=*/0);
    if (fd >= 0 && !iris::port::MayEnter(from)) {
      (void)close(fd);
      continue;
    }
    if (fd >= 0 && address != nullptr) {
      memcpy(address, &from, std::min(*length, from_length));
      *length = from_length;
    }
    return fd;
  }
  errno = EAGAIN;
  return -1;
}
