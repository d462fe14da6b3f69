// RateBudget: allows `burst` events at once, then one in each `interval`. Pure; not thread-safe.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace iris::server {

class RateBudget {
 public:
  constexpr RateBudget(double burst, absl::Duration interval)
      : burst_(burst), interval_(interval) {}

  // Returns when the next event is allowed.
  absl::Time next() const { return due_ - (burst_ - 1) * interval_; }
  bool Allows(absl::Time now) {
    // If the clock was set back, the budget is empty, but for no longer than it takes to fill.
    due_ = std::min(due_, now + burst_ * interval_);
    return next() <= now;
  }
  void Spend(absl::Time now) { due_ = std::max(due_, now) + interval_; }
  // Returns true if `burst` events are allowed now.
  bool full(absl::Time now) { return Allows(now) && due_ <= now; }

 private:
  double burst_;
  absl::Duration interval_;
  absl::Time due_ = absl::InfinitePast();  // of the next event, if events came evenly
};

}  // namespace iris::server
