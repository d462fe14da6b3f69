// WorkerProgram: the executable of workers, and functions that start it.
//
// irisd opens the program once, when it starts, and every worker executes that file. If another
// version is installed over it meanwhile, core and workers still have one version. Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/job/states.h"
#include "server/worker/worker_options.h"

namespace iris::server {

struct WorkerSettings {
  // If empty: "irisd-worker" in the folder of this executable, or else in ../libexec/iris.
  std::string program;
  // The user that workers become if this process is root. If empty, workers keep irisd's user.
  std::string user = "nobody";
  uint64_t memory_bytes = 512ull << 20;
  bool seccomp = true;  // also for irisd's core
  bool json_log = false;
};

// A process that irisd has started. Belongs to one thread. The destructor kills the process if it
// runs, and reaps it. A process that the kernel does not let end, because it hangs on a descriptor,
// is left after a second to the reaper of orphans.
class RunningWorker {
 public:
  virtual ~RunningWorker() = default;
  virtual pid_t pid() const = 0;
  // Returns a descriptor that is readable after the process has ended.
  virtual int pidfd() const = 0;
  // Returns the core's end of its link, a SOCK_STREAM socket that does not block. Call it once.
  virtual wire::UniqueFd TakeLink() = 0;
  // Kills the process. Idempotent; does not wait.
  virtual void Kill() = 0;
  // Reaps the process. Returns how it has ended, as text ("exited with 0", "killed by signal 9
  // (Killed)"); nothing if it still runs, or was reaped before.
  virtual std::optional<std::string> Reap() = 0;
};

// Takes over a process that another irisd started, by its pidfd. The process has no pid and no link
// here, and its parent reaps it. kInvalidArgument if the descriptor is no pidfd.
absl::StatusOr<std::unique_ptr<RunningWorker>> AdoptWorker(wire::UniqueFd pidfd);

class WorkerProgram {
 public:
  // Finds and opens the program, and finds the user that workers become. Returns kNotFound if there
  // is no program, or no such user, and kFailedPrecondition if this process is root but may not
  // become that user. The message says what to do.
  static absl::StatusOr<WorkerProgram> Open(const WorkerSettings& settings);

  // Starts a worker and ends it once it reports that it is ready. Returns kDeadlineExceeded if it
  // did not report in time, as on a slow machine. Any other error means that no worker can run; the
  // message says what to do.
  absl::Status Try(absl::Duration within) const;

  using Started = absl::StatusOr<std::unique_ptr<RunningWorker>>;
  // Starts a worker. `tenant` is for logs and lists of processes. Takes about as long as the kernel
  // needs to load a program; it does not wait for kReady. The kernel ends the worker when the
  // calling *thread* ends, so call it on one that lives as long as irisd serves. Returns
  // kResourceExhausted if no process or descriptor is left; retry in a moment.
  Started Start(absl::string_view tenant) const;
  // Starts a helper that closes the connections sent over its link (server/worker/helper_work.h).
  Started StartClosing() const;
  // Starts a helper that inspects descriptors (server/worker/helper_work.h).
  Started StartLooking(const LookingLimits& limits) const;
  // Starts the port process of a user's job (server/port). If this process is root, it becomes that
  // user. Returns kNotFound if the program is not installed.
  Started StartPort(absl::string_view job, const CallerInfo& user) const;

  // Return the descriptors that are executed, for CoreSyscalls. There is no port's program if -1.
  int fd() const { return program_.get(); }
  int port_fd() const { return port_program_.get(); }
  const std::string& path() const { return path_; }
  // Returns the user that workers become, or none if they keep irisd's user.
  const std::optional<WorkerIds>& ids() const { return options_.ids; }

 private:
  Started StartWith(const wire::UniqueFd& program, const WorkerOptions& options) const;

  std::string path_;
  wire::UniqueFd program_;
  wire::UniqueFd port_program_;
  absl::Status no_port_;  // why there is none
  wire::UniqueFd null_;   // /dev/null: stdin and stdout of workers
  WorkerOptions options_;
  std::vector<std::string> environment_;
};

}  // namespace iris::server
