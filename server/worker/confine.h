// Confinement of a worker before it reads any input: the worker gives up its user, its
// capabilities, the right to gain new ones, and memory, descriptors and processes beyond a limit.
// For main; the process must have one thread.
#pragma once

#include "absl/status/status.h"
#include "server/worker/worker_options.h"

namespace iris::server {

// Returns true if irisd has started this program: then its link is in place.
bool HasLink();

// Gives up all but system calls, whose filter is installed when the threads run (WorkerSyscalls).
// kUnavailable or kPermissionDenied if something could not be given up; the worker must then exit.
absl::Status Confine(const WorkerOptions& options);

}  // namespace iris::server
