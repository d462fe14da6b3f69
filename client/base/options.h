// ResolveOptions: fills in the fields that the caller left out of the options of a context.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/base/environment.h"
#include "client/base/pmix.h"
#include "iris/context_types.h"

namespace iris::internal {

// The options of a context, with additional ones that callers in C++ do not give.
struct HostContextOptions : ContextOptions {
  std::string kernels;  // the backend of the program's own kernels; empty: none
  // Filled in by ResolveOptions from IRIS_TRACE_EVENTS and IRIS_TRACE: the number of events for
  // which a rank's trace has room (0: no trace), and the file that each rank writes when it leaves.
  uint64_t trace_events = 0;
  std::string trace_file;
  // Filled in by ResolveOptions: rendezvous or secret is missing, and the launcher's PMIx server,
  // which numbers the ranks as this job does, can be asked.
  bool asks_pmix = false;
  // The answer, which counts where irisd has no setting either.
  base::Meeting by_launcher;

  // Returns true if the job has ranks on other nodes. After ResolveOptions.
  bool spans_nodes() const { return n_local > 0 && n_local < n_ranks; }
};

// Fills each field that is left out from the environment, else with its default. The launcher's
// variables are not read if rank and n_ranks are both given. kInvalidArgument names the option or
// variable that is wrong.
absl::StatusOr<HostContextOptions> ResolveOptions(const HostContextOptions& options,
                                                  const Getter& get = Environment);

}  // namespace iris::internal
