// The system calls that a worker may make, once its gRPC server runs: those that move bytes on
// sockets it was given, wait, and manage its own memory and threads. Any other ends it.
// Thread-safe; it owns nothing.
#pragma once

#include <sys/types.h>

#include "server/sandbox/seccomp_filter.h"

namespace iris::server {

// For the worker with this pid, which may signal its own threads (abort) and nobody else.
SyscallTable WorkerSyscalls(pid_t pid);

// The same for the one that looks at descriptors, which asks the kernel what they are, too.
SyscallTable LookingSyscalls(pid_t pid);

}  // namespace iris::server
