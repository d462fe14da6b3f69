// Merges the traces of several ranks, one file each, into one file on one clock. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace iris::internal {

inline constexpr size_t kMergedFilesMax = 4096;

struct TraceText {
  std::string name;  // of its file, for errors
  std::string json;  // the result of TraceJson or MergeTraces
};

struct MergedTrace {
  std::string json;
  // A bound on the error of the clocks of nodes, compared with the leader's; none if the traces are
  // of one node's job.
  std::optional<double> nodes_error_us;
};

// Merges traces. Those of a job of one node use the host's monotonic clock, so each is moved by the
// distance between its origin and the earliest one. If the job spans nodes, times are converted to
// the clock of its leader. The events of each irisd are taken from the file that has the most of
// them. kInvalidArgument names a file that is no trace of Iris, is of another job or run of it than
// the first one, or of another boot or machine without a comparison of the clocks, or has a rank
// that another file has, too.
absl::StatusOr<MergedTrace> MergeTraces(const std::vector<TraceText>& traces);

// Reads the files `paths`, and writes the merged one to `out`. Returns it without the text.
absl::StatusOr<MergedTrace> MergeTraceFiles(const std::vector<std::string>& paths,
                                            const std::string& out);

}  // namespace iris::internal
