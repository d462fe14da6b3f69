// The tables of system calls: what irisd's core gives up, and what its other processes may do.
// docs/security.md shows them. Thread-safe.
#pragma once

#include <sys/types.h>

#include "server/sandbox/seccomp_filter.h"

namespace iris::server {

// Forbids calls to the core, before it serves anybody: it is unknown which ones a GPU vendor's
// library makes. `worker_program` is the descriptor of the one program that the core may still
// execute; -1: none.
SyscallTable CoreSyscalls(int worker_program);

// Allows a worker, once its gRPC server runs, to move bytes on sockets that it was given, to wait,
// and to manage its own memory and threads. Any other call ends it. `pid` is the worker's: it may
// signal its own threads (abort) and nobody else.
SyscallTable WorkerSyscalls(pid_t pid);

// Also allows the process that inspects descriptors to ask the kernel for their kind.
SyscallTable LookingSyscalls(pid_t pid);

}  // namespace iris::server
