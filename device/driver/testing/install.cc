#include "device/driver/testing/install.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

namespace iris::driver::testing {

const char kFakeBackend[] = "cuda";
const char kOtherBackend[] = "hip";

FakeGpu* InstallFakeGpu(const std::string& folder) {
  char path[4096];
  if (realpath("device/driver/testing/libfake_gpu.so", path) == nullptr) {
    perror("device/driver/testing/libfake_gpu.so");
    return nullptr;
  }
  const std::string link = folder + "/libcuda.so.1";
  if (symlink(path, link.c_str()) != 0 || setenv("LD_LIBRARY_PATH", folder.c_str(), 1) != 0) {
    perror(link.c_str());
    return nullptr;
  }
  // Its name inside is the vendor's, so that this process's own search ends here, too.
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return nullptr;
  }
  return reinterpret_cast<GetFakeGpu>(dlsym(library, "fake_gpu"))();
}

void SetVisibleDevices(const std::string& list) { setenv("CUDA_VISIBLE_DEVICES", list.c_str(), 1); }

}  // namespace iris::driver::testing
