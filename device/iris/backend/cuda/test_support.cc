// Sets what the CUDA runtime reads when it starts, unless the environment says otherwise: all code
// is loaded at once, since tests launch kernels of their own beside others that wait for them, and
// loading waits for those; and each stream has a queue of its own, so that none waits behind what
// another waits for.
#include <cstdlib>

namespace {

[[gnu::constructor]] void SetEnvironment() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

}  // namespace
