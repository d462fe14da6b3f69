// Sets what the CUDA runtime reads when it starts, unless the environment says otherwise: all code
// is loaded at once, since tests launch kernels of their own beside others that wait for them, and
// loading waits for those.
#include <cstdlib>

namespace {

[[gnu::constructor]] void SetEnvironment() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace
