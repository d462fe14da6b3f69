// Threads of irisd. Both classes are thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/job/clock.h"

namespace iris::server {

// Threads for work that may block for long.
class WorkerPool {
 public:
  explicit WorkerPool(int n_threads);
  // Finishes the posted work, and ends the threads.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `work` soon on a worker. Never blocks. After Stop, `work` is destroyed and not run.
  void Post(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);

  // Finishes the posted work and ends the threads. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// Calls back on its thread when a deadline has passed. Borrows the clock.
class DeadlineTimer {
 public:
  // `due` runs with no lock held, repeatedly until Set moves the deadline into the future. Throws
  // std::system_error, as std::thread does, if this process has no descriptor or thread left.
  DeadlineTimer(const Clock* clock, std::function<void()> due);
  ~DeadlineTimer();
  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;

  // Replaces the deadline. InfiniteFuture means none.
  void Set(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);

  // After Stop has returned, `due` does not run any more. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Wake();
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const Clock* const clock_;
  const std::function<void()> due_;
  absl::Mutex mu_;
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  wire::UniqueFd wake_;  // an eventfd: makes the thread read its deadline again
  std::thread thread_;
};

}  // namespace iris::server
