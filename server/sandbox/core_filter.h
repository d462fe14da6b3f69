// The system calls that irisd's core gives up before it serves anybody. Which ones a GPU vendor's
// library makes is not known, so this is a list of what is forbidden, not of what is allowed.
// Thread-safe; it owns nothing.
#pragma once

#include "server/sandbox/seccomp_filter.h"

namespace iris::server {

// `worker_program` is the descriptor of the one program that the core may still execute; -1: none.
SyscallTable CoreSyscalls(int worker_program);

}  // namespace iris::server
