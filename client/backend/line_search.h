// A rank's part in the search for torn lines, for iris-ctl doctor. See
// iris/collective/whole_lines.h.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "iris/types.h"

namespace iris::internal {

// Counts of lines, which add up over ranks.
struct LinesSeen {
  uint64_t written = 0;
  uint64_t read = 0;
  uint64_t changed = 0;  // of those read: other than a moment before
  uint64_t torn = 0;
};

// The size of a rank's area in the heap, for a job of so many ranks.
absl::StatusOr<uint64_t> LineSearchBytes(const std::string& backend, uint32_t n_ranks);

// Writes to all ranks of the world and reads what they write, for `duration_ns`, at most ten
// seconds, on device `device_uuid` of this process. `area`: in the heap, at the same offset on all
// ranks, and zero on all of them before any rank begins. All begin at about the same time.
absl::StatusOr<LinesSeen> SearchTornLines(const std::string& backend, const DeviceContext& context,
                                          const std::string& device_uuid, void* area,
                                          uint64_t duration_ns);

}  // namespace iris::internal
