// RunningWorker: a process that irisd has started, as its owner sees it. Belongs to one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "proto/wire/unique_fd.h"

namespace iris::server {

// The destructor kills it if it runs, and reaps it. A process that the kernel does not let end,
// because it hangs over a descriptor, is left after a second to the reaper of orphans.
class RunningWorker {
 public:
  virtual ~RunningWorker() = default;
  virtual pid_t pid() const = 0;
  // Readable once it has ended.
  virtual int pidfd() const = 0;
  // Gives away the core's end of its link: SOCK_STREAM, does not block. Once.
  virtual wire::UniqueFd TakeLink() = 0;
  // Ends it now. Idempotent; does not wait.
  virtual void Kill() = 0;
  // Reaps it. Returns how it has ended, as text ("exited with 0", "killed by signal 9 (Killed)");
  // nothing if it runs, or was reaped before.
  virtual std::optional<std::string> Reap() = 0;
};

}  // namespace iris::server
