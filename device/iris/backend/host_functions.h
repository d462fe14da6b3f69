// The host versions of primitives that also run on the host, on every backend. C++17.
#pragma once

#include <cstdint>

namespace iris::backend {

// Reads the monotonic clock.
uint64_t HostClockNanoseconds();

// Prints the text and ends the process.
[[noreturn]] void HostTrap(const char* literal);

}  // namespace iris::backend
