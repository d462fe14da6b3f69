// iris-ctl trace: switches on the traces of a running job's ranks for a while, and writes their
// events into one file. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "client/ctl/admin_client.h"

namespace iris::ctl {

struct TraceWish {
  std::string job;
  double seconds = 5;  // 0: existing traces are read, and nothing is switched on
  std::string file = "trace.json";
  std::optional<uint32_t> rank;    // only this rank
  std::vector<std::string> merge;  // files to merge, instead of taking a trace
};

// Takes the trace, writes the file, and returns a summary. `over` is called several times a second
// and ends the trace early if it returns true. `say` gets a line once all traces are on. If this
// process dies, the traces still end at about the same time. kNotFound for no such job or rank.
// kFailedPrecondition, with a remedy, if the job has no room for a trace, or if one is on already.
absl::StatusOr<std::string> TakeTrace(const TraceWish& wish, AdminClient& client,
                                      absl::FunctionRef<bool()> over,
                                      absl::FunctionRef<void(const std::string&)> say);

}  // namespace iris::ctl
