// Sets environment variables of the CUDA runtime that are not set: all code is loaded at once,
// because tests launch kernels for which others already wait, and each stream has its own queue.
#include <cstdlib>

namespace {

[[gnu::constructor]] void SetEnvironment() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

}  // namespace
