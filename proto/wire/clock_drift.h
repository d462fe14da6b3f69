// A bound on how far the clocks of two machines drift apart. Pure.
#pragma once

#include <cstdint>

namespace iris::wire {

// Returns a bound on the change, within `elapsed_ns`, of the difference between the steady clocks
// of two machines: twice the rate that NTP assumes for one clock (RFC 5905: 15 ppm).
constexpr uint64_t ClockDriftNs(uint64_t elapsed_ns) { return elapsed_ns / 100'000 * 3; }

}  // namespace iris::wire
