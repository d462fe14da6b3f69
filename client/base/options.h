// ResolveOptions: the options of a context, with the fields that its caller left out filled in.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/base/environment.h"
#include "iris/context_types.h"

namespace iris::internal {

// The options of a context, with those that no caller of C++ gives.
struct HostContextOptions : ContextOptions {
  std::string kernels;  // the backend of the program's own kernels; empty: none
  // Filled in by ResolveOptions from IRIS_TRACE_EVENTS and IRIS_TRACE: how many events the trace of
  // a rank has room for, 0: no trace; and where each rank writes its own when it leaves.
  uint64_t trace_events = 0;
  std::string trace_file;
};

// Fills each field that is left out from the environment, else with its default. The launcher's
// variables are not looked at if rank and n_ranks are both given. kInvalidArgument names the option
// or variable that is wrong.
absl::StatusOr<HostContextOptions> ResolveOptions(const HostContextOptions& options,
                                                  const Getter& get = Environment);

}  // namespace iris::internal
