// The directories of irisd's sockets, and the error for a user whose irisd cannot be reached.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/base/environment.h"

namespace iris::internal {

// Returns the runtime directories to try, in order: only `explicit_dir` if it is not empty, else
// only IRIS_RUNTIME_DIR, else /run/iris and then $XDG_RUNTIME_DIR/iris. Never empty.
std::vector<std::string> RuntimeDirs(absl::string_view explicit_dir,
                                     const Getter& get = Environment);

// Returns "cannot reach irisd at DIR/session.sock: No such file or directory. Start it with `irisd
// --runtime-dir DIR` (or systemctl start irisd), or set IRIS_RUNTIME_DIR". `dirs` has every
// directory that was tried, the intended one first. The code is kUnavailable, or kPermissionDenied
// if the socket exists and refuses this user.
absl::Status CannotReach(const std::vector<std::string>& dirs, absl::string_view socket_name,
                         int error);

}  // namespace iris::internal
