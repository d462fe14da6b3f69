// Sets the environment of the CUDA runtime where it is not set: all code is loaded at once, since
// tests launch kernels while others wait for them, and each stream has its own queue.
#include <cstdlib>

namespace {

[[gnu::constructor]] void SetEnvironment() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

}  // namespace
