// WorkerOptions: the command line by which the core starts a worker. Plain data; thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "server/account/party.h"

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

// The kind of a descriptor's file, as far as no file system need be asked. Descriptors of devices'
// memory have the same.
struct FileKind {
  uint32_t type = 0;    // S_IFMT of its mode; 0: made by the kernel, and in no directory
  uint64_t device = 0;  // of a device, its number; else its file system's
  friend bool operator==(const FileKind&, const FileKind&) = default;
};

struct LookingLimits {
  // Descriptors of this kind are good, besides memfds.
  std::optional<FileKind> device_memory;
  // Bound the descriptors that are not good and do not close.
  uint64_t max_closing_per_tenant = 2048;
  uint64_t max_closing = 4096;
  friend bool operator==(const LookingLimits&, const LookingLimits&) = default;
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

// Return the arguments after argv[0], and the options in such arguments. kInvalidArgument if they
// are not such.
std::vector<std::string> ToArguments(const WorkerOptions& options);
absl::StatusOr<WorkerOptions> FromArguments(const std::vector<std::string>& arguments);

// Messages between irisd and the process that looks at descriptors for it. Both are of one version
// and on one machine: structs, as they lie in memory.

// Asks whether irisd may receive the next packet of the session's socket that comes with this.
struct LookRequest {
  uint64_t look = 0;
  Party tenant;  // the session's
};
static_assert(std::is_trivially_copyable_v<LookRequest>);

enum class LookVerdict : uint32_t {
  kGood = 1,    // no descriptor of the next packet can make irisd wait
  kBad = 2,     // one of them can, or nobody knows
  kFull = 3,    // so many descriptors of the tenant do not close that it looks at no more
  kUnseen = 4,  // it could not get all of them, or there are none
};

struct LookAnswer {
  uint64_t look = 0;  // 0: it says only the rest
  LookVerdict verdict = LookVerdict::kGood;
  uint32_t n_closing = 0;  // descriptors, of all tenants, that it has not closed yet
};

}  // namespace iris::server
