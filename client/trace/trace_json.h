// A trace as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open: the JSON of Chrome's
// "Trace Event Format". Pure.
//
// A process of the file is a rank; its threads are the host's threads and the blocks of its
// kernels. All times are the host's monotonic clock, in microseconds since `origin_ns` of the
// file's otherData, which also has the error of each rank's clock and the number of dropped events.
// If the job spans nodes, `leader_clock` there says how this host's clock compares with that of the
// job's leader, and MergeTraces converts times to the leader's clock.
#pragma once

#include <cstdint>
#include <optional>
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

// The node where a trace was taken, of a job that spans several.
struct TraceNode {
  uint32_t node = 0;  // its first rank; node 0 leads the job
  std::string name;   // of the host
  uint64_t run = 0;   // the same on all nodes for one run of the job
  // This node's clock, in place of a device's, and the leader's, in place of the host's, at the
  // beginning and at the end; none: it was not known.
  std::optional<ClockSample> first, last;
};

struct TraceFile {
  std::string job;
  std::string host;  // HostId: whose monotonic clock it is
  std::optional<TraceNode> node;
  std::vector<RankTrace> ranks;
  std::vector<TraceMark> marks;
  uint64_t marks_error_ns = 0;
};

// The number of irisd's process in the file, plus that of the node. It is higher than that of any
// rank.
inline constexpr uint32_t kIrisdProcess = 1'000'000;
// The category of its events.
inline constexpr char kIrisdCategory[] = "irisd";

std::string TraceJson(const TraceFile& file);

// Returns a bound on the error of the leader's clock, for all times of the file; none if it was not
// known. It assumes that the clocks drift apart at one rate while a trace is taken, and by less
// than wire::ClockDriftNs before that.
std::optional<uint64_t> NodeErrorNs(const TraceFile& file);

// Returns a name of this boot of this machine; "" if the kernel has none.
std::string HostId();

// Converts a time of the device's clock to the host's, by the straight line through the samples.
uint64_t HostTime(uint64_t device_ns, const ClockSample& first, const ClockSample& last);

}  // namespace iris::internal
