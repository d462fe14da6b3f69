// WorkerPool: threads for work that may block for long. Thread-safe.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace iris::server {

class WorkerPool {
 public:
  explicit WorkerPool(int n_threads);
  // Finishes what was posted.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Runs `work` soon on a worker. Never blocks. After Stop, `work` is destroyed and not run.
  void Post(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);

  // Finishes what was posted and ends the threads. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace iris::server
