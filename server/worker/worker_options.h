// WorkerOptions: the command line by which the core starts a worker. Plain data; thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/worker/looking.h"

namespace iris::server {

// The worker's end of the link.
inline constexpr int kLinkFd = 3;

// The exit code of a worker whose memory is used up, as far as it can tell.
inline constexpr int kOutOfMemoryExit = 3;

// The user that a worker becomes when irisd is root.
struct WorkerIds {
  uid_t uid = 0;
  gid_t gid = 0;
};

struct WorkerOptions {
  std::string tenant;         // its user, for its log and for lists of processes
  uint64_t memory_bytes = 0;  // it dies rather than take more
  bool seccomp = true;        // confine its system calls
  bool json_log = false;      // as irisd's own
  bool closing = false;       // it serves no tenant: it closes what it is handed
  // Set: it serves no tenant, and looks at descriptors that sessions have sent.
  std::optional<LookingLimits> looking;
  std::optional<WorkerIds> ids;  // none: it stays who irisd is
};

// Return the arguments after argv[0], and the options of such. kInvalidArgument: they are not such.
std::vector<std::string> ToArguments(const WorkerOptions& options);
absl::StatusOr<WorkerOptions> FromArguments(const std::vector<std::string>& arguments);

}  // namespace iris::server
