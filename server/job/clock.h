// Clock: the source of irisd's time; tests move their own (testing/fake_clock.h). Thread-safe.
//
// Deadlines use Now, which never jumps. Timestamps for people use Wall, which jumps when somebody
// sets the clock.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace iris::server {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;   // since some fixed point in the past
  virtual absl::Time Wall() const = 0;  // the time of day
};

// Returns the time of the steady clock. It can only be compared with other such times.
inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

class SystemClock : public Clock {
 public:
  absl::Time Now() const override { return SteadyNow(); }
  absl::Time Wall() const override { return absl::Now(); }
};

}  // namespace iris::server
