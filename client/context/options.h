// What a Context was asked for, with the launcher's variables and the defaults filled in.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/base/types.h"

namespace iris::internal {

// The same options with no field left that the environment fills: what is given, then the
// environment, then the defaults. The launcher's variables are not looked at if rank and n_ranks
// are both given. kInvalidArgument names the option or variable that is wrong.
absl::StatusOr<ContextOptions> ResolveOptions(
    const ContextOptions& options,
    const std::function<std::optional<std::string>(const char*)>& get);
absl::StatusOr<ContextOptions> ResolveOptions(const ContextOptions& options);

}  // namespace iris::internal
