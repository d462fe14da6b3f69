// RunningWorker: a process that irisd has started, as its owner sees it. Belongs to one thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "proto/wire/unique_fd.h"

namespace iris::server {

// The destructor kills it if it runs, and reaps it, for which it waits a moment at most.
class RunningWorker {
 public:
  virtual ~RunningWorker() = default;
  virtual pid_t pid() const = 0;
  // Readable once it has ended.
  virtual int pidfd() const = 0;
  // The core's end of its link, which does not block. Once.
  virtual wire::UniqueFd TakeLink() = 0;
  // Ends it now; does not wait.
  virtual void Kill() = 0;
  // How it has ended, for people; nothing if it runs.
  virtual std::optional<std::string> Reap() = 0;
};

}  // namespace iris::server
