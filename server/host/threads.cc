#include "server/host/threads.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <utility>

namespace iris::server {

WorkerPool::WorkerPool(int n_threads) {
  for (int i = 0; i < n_threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkerPool::~WorkerPool() { Stop(); }

void WorkerPool::Post(std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  if (!stopping_) queue_.push_back(std::move(work));
}

void WorkerPool::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::Run() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mu_);
      const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return stopping_ || !queue_.empty();
      };
      mu_.Await(absl::Condition(&ready));
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    work();
  }
}

DeadlineTimer::DeadlineTimer(const Clock* clock, std::function<void()> due)
    : clock_(clock), due_(std::move(due)) {
  wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) throw std::system_error(errno, std::generic_category(), "make an eventfd");
  thread_ = std::thread([this] { Run(); });
}

DeadlineTimer::~DeadlineTimer() { Stop(); }

void DeadlineTimer::Set(absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  // The thread sleeps at most until the previous deadline, so only an earlier one must wake it.
  const bool earlier = deadline < std::exchange(deadline_, deadline);
  if (earlier) Wake();
}

void DeadlineTimer::Stop() {
  {
    absl::MutexLock lock(&mu_);
    ends_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
}

void DeadlineTimer::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));  // if it is full, the thread wakes anyway
}

void DeadlineTimer::Run() {
  while (true) {
    absl::Duration wait;
    {
      absl::MutexLock lock(&mu_);
      if (ends_) return;
      wait = deadline_ - clock_->Now();
    }
    if (wait <= absl::ZeroDuration()) {
      due_();
      continue;
    }
    // poll counts on the steady clock, unlike a condition variable. The wait is bounded, because
    // the clock of a test jumps.
    pollfd wake = {wake_.get(), POLLIN, 0};
    wait = std::min(wait, absl::Seconds(10));
    (void)poll(&wake, 1, static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
    uint64_t count;
    (void)!read(wake_.get(), &count, sizeof(count));
  }
}

}  // namespace iris::server
