// Searches for torn lines on this machine, while all links are busy, because no platform promises
// the whole lines on which kLines and kTwoLines rely (Traits::kStoresWholeLines). Every rank writes
// lines of 128 bytes to all others, each with one number in all its parts, and reads the lines it
// receives. A line read with two numbers is torn.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/types.h"

namespace iris::ccl {

// The counts of a rank, at the beginning of its area in device memory.
struct LinesSeen {
  uint64_t written = 0;
  uint64_t read = 0;
  uint64_t changed = 0;  // reads that saw another number than the read before
  uint64_t torn = 0;
};

struct LineSearch {
  DeviceContext context;
  DeviceTeam team;
  // In the caller's heap, at the same offset on all ranks, aligned to 256 bytes; zeros at first.
  void* area = nullptr;
  uint64_t duration_ns = 0;  // at most kMaxLineSearchNs
  bool writes = true;
  bool reads = true;
  bool tears = false;  // writes lines that are torn, to show that the search finds them
};
inline constexpr uint64_t kMaxLineSearchNs = 10ull * 1000 * 1000 * 1000;

// Returns the bytes of an area for a team of `n_members`.
uint64_t LineSearchBytes(uint32_t n_members);

// The search ends by the clock, and waits for no rank. kInvalidArgument says what is wrong.
Result SearchTornLines(const LineSearch& search, backend::Stream& stream);

}  // namespace iris::ccl
