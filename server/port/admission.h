// Decides which hosts may connect to UCX, which believes whoever connects and reads what it sends.
//
// UCX has no setting for that. So this library has an accept(2), which the loader gives to UCX in
// place of libc's. Filters of sockets would do the same in the kernel, but some kernels let no
// ordinary user set them. Thread-safe; its state is the process's, as accept(2) is.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace iris::port {

// From now on the libraries that this process opens accept connections by IP from admitted hosts
// alone; others are closed before a byte of them is read. kInternal if the loader would give them
// another accept(2) than this one.
absl::Status RefuseStrangers();

// Admits a host: its address as a number, perhaps with an interface ("fe80::1%eth0").
// kInvalidArgument if it is none. kResourceExhausted beyond wire::kMaxWorldRanks hosts.
absl::Status AdmitHost(const std::string& host);

// Connections that were refused since the last call.
struct RefusedStrangers {
  uint64_t n = 0;
  std::string last;  // the address of the last one
};
RefusedStrangers TakeRefusedStrangers();

}  // namespace iris::port
