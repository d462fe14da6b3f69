// CallCounter: how many calls of our services are under way, so that a stopping irisd can let them
// finish. Thread-safe.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace iris::server {

class CallCounter {
 public:
  // Counts for as long as it lives.
  class Hold {
   public:
    explicit Hold(CallCounter* counter) : counter_(counter) { counter_->Change(1); }
    ~Hold() { counter_->Change(-1); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    CallCounter* const counter_;
  };

  // True once there is none; false if the timeout came first.
  bool WaitForNone(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return n_ == 0; };
    return mu_.AwaitWithTimeout(absl::Condition(&none), timeout);
  }

 private:
  void Change(int by) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    n_ += by;
  }

  absl::Mutex mu_;
  int n_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace iris::server
