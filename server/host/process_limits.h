// Limits of this process: what irisd needs, and its end if they are too low. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace iris::server {

// Raises the limit of descriptors as far as possible, and returns it.
uint64_t RaiseDescriptorLimit();

// kResourceExhausted: irisd cannot serve with so few descriptors, or so little address space.
absl::Status CheckLimits(uint64_t fd_limit);

// For std::set_terminate: want of memory, and any std::system_error, ends the process with one line
// on stderr and exit code 1, without a core file. Anything else is a bug, and aborts.
[[noreturn]] void EndForWant();

}  // namespace iris::server
