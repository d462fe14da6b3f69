// What the kernel lets this process have: what irisd needs of it, and how it ends where that is not
// enough. Thread-safe; owns nothing.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace iris::server {

// Raises the limit of descriptors as far as this process may. Returns the limit.
uint64_t RaiseDescriptorLimit();

// kResourceExhausted: irisd cannot serve with so few descriptors, or so little address space. The
// text says how to give it more.
absl::Status CheckLimits(uint64_t fd_limit);

// For std::set_terminate: want of memory, of threads and of what else std::system_error speaks of
// ends the process with one line on stderr and exit code 1, without a core file. Anything else is a
// bug, and aborts.
[[noreturn]] void EndForWant();

}  // namespace iris::server
