// The clock of this library's deadlines. Thread-safe.
#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/wire/pages.h"

namespace iris::internal {

// The longest wait, also if a caller asks for more.
inline constexpr absl::Duration kTimeoutMax = absl::Hours(24);

// Returns the wall clock at the first call, continued by the steady clock: setting the clock
// neither delays nor advances a deadline.
inline absl::Time Now() {
  const auto steady = [] {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  };
  static const absl::Time zero = absl::Now() - steady();
  return zero + steady();
}

// Returns Now() in the format of shared pages.
inline uint32_t PageNow() {
  return wire::PageMilliseconds(std::chrono::duration_cast<std::chrono::milliseconds>(
                                    std::chrono::steady_clock::now().time_since_epoch())
                                    .count());
}

inline absl::Time DeadlineIn(absl::Duration timeout) {
  return Now() + std::min(timeout, kTimeoutMax);
}

}  // namespace iris::internal
