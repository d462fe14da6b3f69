// WorkerOptions: the command line with which the core starts a worker. Plain data; thread-safe.
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

// The exit code of a worker whose memory is used up, if it can detect that.
inline constexpr int kOutOfMemoryExit = 3;

// The user that a worker becomes when irisd is root.
struct WorkerIds {
  uid_t uid = 0;
  gid_t gid = 0;
};

// The kind of a descriptor's file, as far as it is known without asking a file system. Descriptors
// of devices' memory have the same kind.
struct FileKind {
  uint32_t type = 0;    // S_IFMT of its mode; 0: made by the kernel, and in no directory
  uint64_t device = 0;  // the number of a device; otherwise of its file system
  friend bool operator==(const FileKind&, const FileKind&) = default;
};

struct LookingLimits {
  // Descriptors of this kind are accepted, in addition to memfds.
  std::optional<FileKind> device_memory;
  // Limits of descriptors that are not accepted and do not close.
  uint64_t max_closing_per_tenant = 2048;
  uint64_t max_closing = 4096;
  friend bool operator==(const LookingLimits&, const LookingLimits&) = default;
};

struct WorkerOptions {
  std::string tenant;         // its user, for its log and for lists of processes
  uint64_t memory_bytes = 0;  // beyond it, the worker dies
  bool seccomp = true;        // confine its system calls
  bool json_log = false;      // as for irisd's own log
  bool closing = false;       // the worker serves no tenant: it closes descriptors that it is given
  // If set, the worker serves no tenant: it inspects descriptors that sessions have sent.
  std::optional<LookingLimits> looking;
  // The program is irisd-port: its memory is not bounded, since it maps heaps, and its priority is
  // that of ranks, which wait for it.
  bool port = false;
  std::optional<WorkerIds> ids;  // none: it keeps irisd's user
};

// Return the arguments after argv[0], and the options in such arguments. FromArguments returns
// kInvalidArgument if the arguments are invalid.
std::vector<std::string> ToArguments(const WorkerOptions& options);
absl::StatusOr<WorkerOptions> FromArguments(const std::vector<std::string>& arguments);

// Messages between irisd and the process that looks at descriptors for it. Both are of one version
// and on one machine: structs, as they lie in memory.

// Asks if irisd may receive the next packet of the session's socket that comes with this request.
struct LookRequest {
  uint64_t look = 0;
  Party tenant;  // of the session
};
static_assert(std::is_trivially_copyable_v<LookRequest>);

enum class LookVerdict : uint32_t {
  kGood = 1,    // no descriptor of the next packet can make irisd wait
  kBad = 2,     // one of them can, or its kind is unknown
  kFull = 3,    // too many descriptors of the tenant do not close: none was inspected
  kUnseen = 4,  // not all descriptors arrived, or there are none
};

struct LookAnswer {
  uint64_t look = 0;  // 0: only n_closing is valid
  LookVerdict verdict = LookVerdict::kGood;
  uint32_t n_closing = 0;  // descriptors, of all tenants, that it has not closed yet
};

}  // namespace iris::server
