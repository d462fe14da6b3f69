// Whether this machine stores whole lines: a search for torn ones, while all links are busy. What
// kLines and kTwoLines rely on is promised by no platform (Traits::kStoresWholeLines).
//
// Every member writes lines of 128 bytes to all others, each with one number in all its parts,
// again and again, and reads those that the others write to it. A line of which a read shows two
// numbers is torn.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/types.h"

namespace iris::ccl {

// What a member has seen. In device memory, at the begin of its area; a copy on the stream fetches
// it.
struct LinesSeen {
  uint64_t written = 0;
  uint64_t read = 0;
  uint64_t changed = 0;  // since the last read: what was read while it was written
  uint64_t torn = 0;
};

struct LineSearch {
  DeviceContext context;
  DeviceTeam team;
  // In the caller's heap, at the same offset on all members, aligned to 256 bytes; all zero on
  // every member before any begins.
  void* area = nullptr;
  uint64_t duration_ns = 0;  // at most kMaxLineSearchNs
  bool writes = true;
  bool reads = true;
  bool tears = false;  // writes lines that are torn, to show that the search finds them
};
inline constexpr uint64_t kMaxLineSearchNs = 10ull * 1000 * 1000 * 1000;

// Of an area for a team of `n_members`.
uint64_t LineSearchBytes(uint32_t n_members);

// Puts the search on the stream: it ends by the clock, and waits for nobody. kInvalidArgument says
// what is wrong.
Result SearchTornLines(const LineSearch& search, backend::Stream& stream);

}  // namespace iris::ccl
