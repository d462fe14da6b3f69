// Finds UCX, which carries data between the nodes of a job (server/port). Port processes load the
// library that is found here, and `iris-ctl doctor` shows it. Thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace iris::ucx {

struct Library {
  std::string name;  // for dlopen
  std::string path;  // of the file that dlopen found
  std::string version;
};

// Finds libucp.so.0: at `path`, or if that is empty, the system's, or the one below
// /usr/local/lib/iris/ucx, where deploy/setup.sh unpacks it. kFailedPrecondition, with the places,
// what was found there, and a remedy, if none of them is new enough. It loads libraries in a child,
// for at most ten seconds each.
absl::StatusOr<Library> Find(const std::string& path);

}  // namespace iris::ucx
