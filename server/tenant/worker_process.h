// WorkerProgram: the executable of workers, and how one is started. WorkerProcess: a worker that
// was started, as its parent holds it.
//
// The program is opened once, when irisd starts, and every worker executes that file: when another
// version is installed over it meanwhile, core and workers stay of one version.
//
// WorkerProgram is thread-safe. A WorkerProcess belongs to one thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/worker/worker_options.h"

namespace iris::server {

struct WorkerSettings {
  // Empty: "irisd-worker" in the folder of this executable, else in ../libexec/iris beside it.
  std::string program;
  // Whom workers become, if this process is root. Empty: they stay who irisd is.
  std::string user = "nobody";
  uint64_t memory_bytes = 512ull << 20;
  bool seccomp = true;  // irisd's core goes by it, too
  bool json_log = false;
};

class WorkerProcess {
 public:
  WorkerProcess() = default;
  WorkerProcess(WorkerProcess&& other) noexcept { *this = std::move(other); }
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;
  // Kills it if it runs, and reaps it. A process that the kernel does not let end, because it hangs
  // over a descriptor, is left to whoever reaps the orphans after a second.
  ~WorkerProcess();

  pid_t pid() const { return pid_; }
  // Readable once it has ended.
  int pidfd() const { return pidfd_.get(); }
  // The core's end of the link: SOCK_STREAM, does not block. The caller owns it from here on. Once.
  wire::UniqueFd TakeLink() { return std::move(link_); }

  // Ends it now. Idempotent; does not wait.
  void Kill();
  // How it has ended, as text ("exited with 0", "killed by signal 9 (Killed)"); nothing if it runs.
  // It is reaped by this.
  std::optional<std::string> Reap();

 private:
  friend class WorkerProgram;

  pid_t pid_ = -1;  // -1 once it is reaped
  wire::UniqueFd pidfd_;
  wire::UniqueFd link_;
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

  // Starts a worker. `tenant` is for logs and lists of processes. Takes about as long as the kernel
  // needs to load a program; it does not wait for kReady. The kernel ends the worker when the
  // calling *thread* ends, so call it on one that lives as long as irisd serves.
  // kResourceExhausted: no process or descriptor is left; again in a moment.
  absl::StatusOr<WorkerProcess> Start(absl::string_view tenant) const;
  // The same, one that closes what comes over its link (server/worker/close_connections.h).
  absl::StatusOr<WorkerProcess> StartClosing() const;
  // The same, one that looks at descriptors (server/worker/look_at_descriptors.h).
  absl::StatusOr<WorkerProcess> StartLooking(const LookingLimits& limits) const;

  // The descriptor that is executed, for CoreSyscalls.
  int fd() const { return program_.get(); }
  const std::string& path() const { return path_; }
  // Whom workers become; none: they stay who irisd is.
  const std::optional<WorkerIds>& ids() const { return options_.ids; }

 private:
  absl::StatusOr<WorkerProcess> StartWith(const WorkerOptions& options) const;

  std::string path_;
  wire::UniqueFd program_;
  wire::UniqueFd null_;  // what workers read and write where nothing is
  WorkerOptions options_;
  std::vector<std::string> environment_;
};

}  // namespace iris::server
