// ContextGuard: knows if a context may still be used, and by this process. Thread-safe.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>

#include "absl/status/status.h"

namespace iris::internal {

class ContextGuard {
 public:
  // Call before a context is made. kFailedPrecondition in a child that was forked from a process
  // that has made one: the threads of its contexts do not survive fork.
  static absl::Status ClaimProcess();

  // Returns false in a forked child of the process that made this.
  bool OwnProcess() const { return getpid() == owner_pid_; }

  // Returns OK while calls are allowed: kFailedPrecondition in a forked child, and after Close.
  absl::Status Usable() const;

  // Makes later calls fail.
  void Close() { closed_.store(true, std::memory_order_release); }
  // Becomes true at Close, which ends waits.
  const std::atomic<bool>& closed() const { return closed_; }

 private:
  const pid_t owner_pid_ = getpid();
  std::atomic<bool> closed_{false};
};

}  // namespace iris::internal
