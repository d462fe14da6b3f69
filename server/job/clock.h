// Clock: where irisd gets the time from; tests have one that they move. Thread-safe.
//
// Deadlines count on Now, which never jumps; what people read is stamped with Wall, which does when
// somebody sets the clock.
#pragma once

#include <chrono>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace iris::server {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;   // since some fixed point in the past
  virtual absl::Time Wall() const = 0;  // of day
};

// Of the steady clock. Meaningful against each other alone.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

class SystemClock : public Clock {
 public:
  absl::Time Now() const override { return SteadyNow(); }
  absl::Time Wall() const override { return absl::Now(); }
};

// Stands still until told to move.
class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time now = absl::UnixEpoch() + absl::Hours(1)) : now_(now) {}
  absl::Time Now() const override {
    absl::MutexLock lock(&mu_);
    return now_;
  }
  absl::Time Wall() const override { return Now(); }
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mu_);
    now_ += by;
  }

 private:
  mutable absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::server
