// The types that the functions of an operation (operation_spec.h) take and return. Inside the
// JobMachine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/job/events.h"
#include "server/job/job.h"
#include "server/job/operation_spec.h"
#include "server/job/results.h"

namespace iris::server {

// The operation has succeeded; the caller fills in the heap size of its outcome.
struct Concluded {
  OperationResult result;
  bool ends_team = false;  // it was the team's last operation
};
// The operation must be executed again after the heap has grown.
struct NeedsGrowth {
  uint64_t needed_bytes = 0;
  uint64_t wanted_bytes = 0;
  absl::Status unfit;  // the outcome if the heap cannot grow; the reason is appended
};
// Memory that the caller, which has the descriptors, adopts: the pieces become segments of the
// ranks' heaps, and the free range at `offset_bytes` becomes an allocation of the team.
struct Adopts {
  uint64_t offset_bytes = 0;
  HeapAllocation allocation;
};

// Memory that a rank registers: the bytes of its allocations, and how many of them precede the
// range.
struct Given {
  Rank rank = 0;
  uint64_t lead_bytes = 0;
  uint64_t bytes = 0;
};

// The job and the team on which an operation runs.
struct Run {
  Job& job;
  Team& team;
  absl::Time wall;
  bool grown = false;              // the growth that the operation needed is published
  uint64_t granularity_bytes = 0;  // of every device's memory
  // For a register operation: from every rank. On a node that follows, what the leader has found to
  // have room for all.
  std::vector<Given> given;
  std::vector<EventDetail> events;  // reported before the outcome
};

}  // namespace iris::server
