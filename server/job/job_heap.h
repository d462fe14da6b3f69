// Ranges of a job's heap, with what is known of each. Not thread-safe: inside the JobMachine.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/job/job.h"

namespace iris::server {

// Finds room for a client's range or an area of irisd's own, and returns its offset.
// kResourceExhausted may be cured by growth: OffsetAllocator::ShortfallBytes says so. The
// allocation's name, if any, is not in use.
absl::StatusOr<uint64_t> Place(Job& job, HeapAllocation allocation);

// Gives back what Place returned, and its name.
absl::Status Unplace(Job& job, uint64_t offset_bytes);

}  // namespace iris::server
