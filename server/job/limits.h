// Limits and timeouts of the JobMachine. Plain data.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace iris::server {

struct JobLimits {
  uint32_t max_jobs = 1024;
  uint32_t max_jobs_per_uid = 256;
  uint64_t max_descriptors = 0;         // of segments and pages, over all jobs; 0: no limit
  uint64_t max_heap_bytes_per_uid = 0;  // over all ranks of all its jobs; 0: no quota
  absl::Duration join_timeout_default = absl::Seconds(60);
  absl::Duration join_timeout_max = absl::Hours(1);
  absl::Duration map_timeout = absl::Seconds(60);
  absl::Duration operation_timeout_default = absl::Seconds(60);
  absl::Duration operation_timeout_max = absl::Hours(1);
  absl::Duration grow_timeout = absl::Seconds(30);
};

// How long a session has, after its Join was cancelled, to repeat it on a new connection or to hang
// up, before irisd withdraws the Join. A client on a busy machine needs most of a second to get a
// connection and to come back.
inline constexpr absl::Duration kWithdrawAfter = absl::Seconds(2);

// After another irisd has taken over: how long clients have to make their calls again, and those
// whose session was not kept to resume their ranks.
inline constexpr absl::Duration kRepeatsWithin = absl::Seconds(10);
inline constexpr absl::Duration kResumesWithin = absl::Seconds(30);

// Pairs of devices (from, to) for which kernels on `from` cannot use memory of `to`, with the
// reason. A pair (d, d) means that device d itself is unusable.
using UnusablePairs = std::map<std::pair<uint32_t, uint32_t>, absl::Status>;

}  // namespace iris::server
