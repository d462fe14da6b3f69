// WorkerProgram: the executable of workers, and how one is started.
//
// irisd opens the program once, when it starts, and every worker executes that file: when another
// version is installed over it meanwhile, core and workers stay of one version. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/tenant/running_worker.h"
#include "server/worker/worker_options.h"

namespace iris::server {

struct WorkerSettings {
  // Empty: "irisd-worker" in the folder of this executable, else in ../libexec/iris beside it.
  std::string program;
  // The user that workers become, if this process is root. Empty: they stay who irisd is.
  std::string user = "nobody";
  uint64_t memory_bytes = 512ull << 20;
  bool seccomp = true;  // irisd's core goes by it, too
  bool json_log = false;
};

class WorkerProgram {
 public:
  // Finds and opens the program, and the user that workers become. kNotFound: there is no program,
  // or no such user. kFailedPrecondition: this process is root but may not become that user. The
  // text says what to do.
  static absl::StatusOr<WorkerProgram> Open(const WorkerSettings& settings);

  // Starts a worker and ends it once it says that it is ready. kDeadlineExceeded: it did not say so
  // in time, as on a slow machine. Any other error: no worker can run; the text says what to do.
  absl::Status Try(absl::Duration within) const;

  using Started = absl::StatusOr<std::unique_ptr<RunningWorker>>;
  // Starts a worker. `tenant` is for logs and lists of processes. Takes about as long as the kernel
  // needs to load a program; it does not wait for kReady. The kernel ends the worker when the
  // calling *thread* ends, so call it on one that lives as long as irisd serves.
  // kResourceExhausted: no process or descriptor is left; try again in a moment.
  Started Start(absl::string_view tenant) const;
  // Starts one that closes what comes over its link (server/worker/helper_work.h).
  Started StartClosing() const;
  // Starts one that looks at descriptors (server/worker/helper_work.h).
  Started StartLooking(const LookingLimits& limits) const;

  // The descriptor that is executed, for CoreSyscalls.
  int fd() const { return program_.get(); }
  const std::string& path() const { return path_; }
  // The user that workers become; none: they stay who irisd is.
  const std::optional<WorkerIds>& ids() const { return options_.ids; }

 private:
  Started StartWith(const WorkerOptions& options) const;

  std::string path_;
  wire::UniqueFd program_;
  wire::UniqueFd null_;  // /dev/null: stdin and stdout of workers
  WorkerOptions options_;
  std::vector<std::string> environment_;
};

}  // namespace iris::server
