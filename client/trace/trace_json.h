// A trace as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: the JSON of Chrome's
// "Trace Event Format". Pure.
//
// A process of the file is a rank; its threads are the host's threads and the blocks of its
// kernels. All times are the host's monotonic clock, in microseconds since `origin_ns` of the
// file's otherData, which also has the error of each rank's clock and the number of dropped events.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/trace/mapped_trace.h"

namespace iris::internal {

// An event of irisd's log.
struct TraceMark {
  uint64_t host_ns = 0;
  std::string name;
  std::string text;
  int32_t rank = -1;  // -1: none
  int64_t pid = 0;
};

struct TraceFile {
  std::string job;
  std::string host;  // HostId: whose monotonic clock it is
  std::vector<RankTrace> ranks;
  std::vector<TraceMark> marks;
  uint64_t marks_error_ns = 0;
};

// The number of irisd's process in the file, which no rank has, and the category of its events.
inline constexpr uint32_t kIrisdProcess = 1000;
inline constexpr char kIrisdCategory[] = "irisd";

std::string TraceJson(const TraceFile& file);

// Returns a name of this boot of this machine; "" if the kernel has none.
std::string HostId();

// Converts a time of the device's clock to the host's, by the straight line through the samples.
uint64_t HostTime(uint64_t device_ns, const ClockSample& first, const ClockSample& last);

}  // namespace iris::internal
