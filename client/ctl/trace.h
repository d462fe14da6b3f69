// iris-ctl trace: switches the traces of a running job's ranks on for a while, from outside, and
// writes their events as one file. One thread.
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
  double seconds = 5;  // 0: what is there from before is read, and nothing switched on
  std::string file = "trace.json";
  std::optional<uint32_t> rank;    // that alone
  std::vector<std::string> merge;  // files that become one, instead of all that
};

// Takes the trace, writes the file, and returns a summary. `over` is asked some times a second and
// ends the trace early. `say` gets a line once all traces are on. If this process dies meanwhile,
// the traces end by themselves at about the same time. kNotFound if there is no such job or rank.
// kFailedPrecondition, with a remedy, if the job has no room for a trace, or if one is on already.
absl::StatusOr<std::string> TakeTrace(const TraceWish& wish, AdminClient& client,
                                      absl::FunctionRef<bool()> over,
                                      absl::FunctionRef<void(const std::string&)> say);

}  // namespace iris::ctl
