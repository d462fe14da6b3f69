// Merges the traces of several ranks, one file each, into one file on one clock. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace iris::internal {

inline constexpr size_t kMergedFilesMax = 4096;

struct TraceText {
  std::string name;  // of its file, for errors
  std::string json;  // the result of TraceJson or MergeTraces
};

// Merges traces. All of them use the host's monotonic clock, so each is moved by the distance
// between its origin and the earliest one. irisd's events are taken from the file that has the most
// of them. kInvalidArgument names a file that is no trace of Iris, is of another job, boot or
// machine than the first one, or has a rank that another file has, too.
absl::StatusOr<std::string> MergeTraces(const std::vector<TraceText>& traces);

// Reads the files `paths`, and writes the merged one to `out`.
absl::Status MergeTraceFiles(const std::vector<std::string>& paths, const std::string& out);

}  // namespace iris::internal
