// RateBudget: `burst` events at once, then one in each `interval`. Pure; not thread-safe.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace iris::server {

class RateBudget {
 public:
  constexpr RateBudget(double burst, absl::Duration interval)
      : burst_(burst), interval_(interval) {}

  // Returns when the next one may come.
  absl::Time next() const { return due_ - (burst_ - 1) * interval_; }
  bool Allows(absl::Time now) {
    // If the clock was set back, the budget is empty, and not for longer than it takes to fill.
    due_ = std::min(due_, now + burst_ * interval_);
    return next() <= now;
  }
  void Spend(absl::Time now) { due_ = std::max(due_, now) + interval_; }
  // Returns whether the whole burst may come.
  bool full(absl::Time now) { return Allows(now) && due_ <= now; }

 private:
  double burst_;
  absl::Duration interval_;
  absl::Time due_ = absl::InfinitePast();  // of the next one, if they came evenly
};

}  // namespace iris::server
