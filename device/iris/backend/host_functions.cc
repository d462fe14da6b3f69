#include "iris/backend/host_functions.h"

#include <time.h>

#include <cstdio>
#include <cstdlib>

namespace iris::backend {

uint64_t HostClockNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 * 1000 * 1000 +
         static_cast<uint64_t>(now.tv_nsec);
}

void HostTrap(const char* literal) {
  fprintf(stderr, "iris: %s\n", literal);
  abort();
}

}  // namespace iris::backend
