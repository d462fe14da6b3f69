#include "client/base/context_guard.h"

namespace iris::internal {
namespace {

// The process that first made a context.
std::atomic<pid_t> process_pid{0};

}  // namespace

absl::Status ContextGuard::ClaimProcess() {
  pid_t nobody = 0;
  if (process_pid.compare_exchange_strong(nobody, getpid()) || nobody == getpid()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "this process was forked from one that has made a context; exec a new program, or fork "
      "before the first context is made");
}

absl::Status ContextGuard::Usable() const {
  if (!OwnProcess()) {
    return absl::FailedPreconditionError(
        "this context belongs to the parent process; after fork, exec a program that makes its "
        "own");
  }
  if (closed_.load(std::memory_order_acquire)) {
    return absl::FailedPreconditionError("this context has left the job");
  }
  return absl::OkStatus();
}

}  // namespace iris::internal
