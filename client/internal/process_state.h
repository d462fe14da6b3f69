// What /proc says of a process. Thread-safe; owns nothing.
#pragma once

#include <cstdint>

namespace iris::internal {

// Whether a signal or a debugger has stopped it. False also where /proc does not say.
bool IsStopped(int64_t pid);

}  // namespace iris::internal
