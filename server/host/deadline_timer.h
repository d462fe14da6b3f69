// DeadlineTimer: calls back on its thread when a deadline has passed. Thread-safe. Borrows the
// clock.
#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/job/clock.h"

namespace iris::server {

class DeadlineTimer {
 public:
  // `due` runs with no lock held, repeatedly until Set moves the deadline into the future. Throws
  // std::system_error, as std::thread does, if this process can have no more descriptors or
  // threads.
  DeadlineTimer(const Clock* clock, std::function<void()> due);
  ~DeadlineTimer();
  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;

  // Replaces the deadline; InfiniteFuture: none.
  void Set(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // After it has returned, `due` does not run any more. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Wake();
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const Clock* const clock_;
  const std::function<void()> due_;
  absl::Mutex mu_;
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  wire::UniqueFd wake_;  // an eventfd: the thread looks at its deadline again
  std::thread thread_;
};

}  // namespace iris::server
