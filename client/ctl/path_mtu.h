// The size of the packets that pass between two nodes. A path may lose large packets although small
// ones pass and nobody reports it (an MTU black hole): connections are then made, and hang.
//
// One node serves, and the other one measures by TCP connections, whose largest packets it chooses.
// Both know a token, without which the server does nothing. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"

namespace iris::ctl {

using PathMtuToken = std::array<uint8_t, 16>;

struct PathMtu {
  // Of both ends of the connection, as their kernels know it.
  uint32_t here_bytes = 0;
  uint32_t there_bytes = 0;
  // The largest packets that pass in each direction, to within kPathMtuStep; 0: not even those of
  // kPathMtuLeast.
  uint32_t passes_to_bytes = 0;
  uint32_t passes_from_bytes = 0;
};
inline constexpr uint32_t kPathMtuLeast = 576;
inline constexpr uint32_t kPathMtuStep = 8;

class PathMtuServer {
 public:
  // Listens at the address `host`, a number, and a port from `port_min` to `port_max`; 0: any port.
  static absl::StatusOr<std::unique_ptr<PathMtuServer>> Listen(const std::string& host,
                                                               uint32_t port_min,
                                                               uint32_t port_max);
  uint16_t port() const { return port_; }
  const PathMtuToken& token() const { return token_; }

  // Serves until the other node has called EndPathMtu. kDeadlineExceeded if it does not in time.
  absl::Status Serve(absl::Duration within);

 private:
  PathMtuServer(wire::UniqueFd fd, uint16_t port) : fd_(std::move(fd)), port_(port) {}

  const wire::UniqueFd fd_;
  const uint16_t port_;
  PathMtuToken token_ = {};
};

// Where a server listens, and the address of this node to connect from; both are numbers.
struct PathMtuRoute {
  std::string from;
  std::string to;
  uint16_t port = 0;
  PathMtuToken token = {};
};

// Measures, which takes milliseconds, or up to 25 s if packets are lost. kUnavailable if no
// connection is made, kFailedPrecondition if the server is another program.
absl::StatusOr<PathMtu> MeasurePathMtu(const PathMtuRoute& route);
absl::Status EndPathMtu(const PathMtuRoute& route);

}  // namespace iris::ctl
