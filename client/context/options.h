// ResolveOptions: the options of a context with the launcher's variables and the defaults filled
// in.
#pragma once

#include "absl/status/statusor.h"
#include "client/base/environment.h"
#include "client/base/types.h"

namespace iris::internal {

// Fills each field that is left out from the environment, else with its default. The launcher's
// variables are not looked at if rank and n_ranks are both given. kInvalidArgument names the option
// or variable that is wrong.
absl::StatusOr<HostContextOptions> ResolveOptions(const HostContextOptions& options,
                                                  const Getter& get = Environment);

}  // namespace iris::internal
