// TimedLock: holds a lock if it gets it before a deadline.
//
//   TimedLock lock(&mutex, deadline);
//   if (!lock.held()) return ...;  // another thread had it all the time
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/base/clock.h"

namespace iris::internal {

class TimedMutex {
 public:
  // Waits for the lock and takes it. Returns false if the deadline came first.
  bool Lock(absl::Time deadline) {
    absl::MutexLock lock(&mu_);
    const auto is_free = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !held_; };
    if (!mu_.AwaitWithTimeout(absl::Condition(&is_free), deadline - Now())) return false;
    held_ = true;
    return true;
  }
  void Unlock() {
    absl::MutexLock lock(&mu_);
    held_ = false;
  }

 private:
  absl::Mutex mu_;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
};

class TimedLock {
 public:
  TimedLock(TimedMutex* mutex, absl::Time deadline) : mutex_(mutex), held_(mutex->Lock(deadline)) {}
  ~TimedLock() {
    if (held_) mutex_->Unlock();
  }
  TimedLock(const TimedLock&) = delete;
  TimedLock& operator=(const TimedLock&) = delete;
  bool held() const { return held_; }

 private:
  TimedMutex* const mutex_;
  const bool held_;
};

}  // namespace iris::internal
