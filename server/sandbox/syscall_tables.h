// The tables of system calls that irisd's core gives up, and that its other processes may use.
// docs/security.md shows them. Thread-safe.
#pragma once

#include <sys/types.h>

#include "server/sandbox/seccomp_filter.h"

namespace iris::server {

// Returns the calls that the core gives up before it serves clients. They are a list of forbidden
// calls, because a GPU vendor's library makes unknown ones. `worker_program` and `port_program` are
// the descriptors of the programs that the core may still execute; -1: none.
SyscallTable CoreSyscalls(int worker_program, int port_program = -1);

// Returns the calls that a worker may make once its gRPC server runs: to move bytes on its sockets,
// to wait, and to manage its own memory and threads. Any other call ends it. `pid` is the worker's:
// it may signal (abort) only its own threads.
SyscallTable WorkerSyscalls(pid_t pid);

// Returns WorkerSyscalls, and calls by which the inspector of descriptors asks for their kind.
SyscallTable LookingSyscalls(pid_t pid);

}  // namespace iris::server
