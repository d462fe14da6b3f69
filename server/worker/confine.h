// What a worker gives up before it reads a byte of anybody's: its user, its capabilities, the right
// to gain new ones, and memory, descriptors and processes beyond a limit. Free functions for main;
// the process must have one thread.
#pragma once

#include "absl/status/status.h"
#include "server/worker/worker_options.h"

namespace iris::server {

// All but the filter of system calls, which comes when the threads run (WorkerSyscalls).
// kUnavailable, kPermissionDenied: something could not be given up; the worker must not go on.
absl::Status Confine(const WorkerOptions& options);

}  // namespace iris::server
