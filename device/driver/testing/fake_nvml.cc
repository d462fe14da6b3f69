// A fake of the vendor's management library: it tells the registrations of the FakeGpu that the
// process has loaded.
#include <dlfcn.h>

#include <cstring>

#include "device/driver/testing/fake_gpu.h"

namespace {

iris::driver::testing::FakeGpu* Fake() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  auto* const get =
      library == nullptr
          ? nullptr
          : reinterpret_cast<iris::driver::testing::GetFakeGpu>(dlsym(library, "fake_gpu"));
  return get == nullptr ? nullptr : get();
}

struct Fabric {
  char cluster_uuid[16];
  int status;
  unsigned clique_id;
  unsigned char state;
};

constexpr int kError = 999;

}  // namespace

extern "C" {

int nvmlInit_v2() { return Fake() == nullptr ? kError : 0; }

int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  // "GPU-fa000000-0000-0000-0000-00000000000N"
  const size_t length = strlen(uuid);
  if (length != 40) return kError;
  *device = reinterpret_cast<void*>(static_cast<uintptr_t>(uuid[length - 1] - '0' + 1));
  return 0;
}

int nvmlDeviceGetMemoryInfo(void*, void*) { return kError; }

int nvmlDeviceGetGpuFabricInfo(void* device, Fabric* info) {
  const auto index = reinterpret_cast<uintptr_t>(device) - 1;
  const auto& all = Fake()->registrations;
  if (index >= all.size()) return kError;
  memcpy(info->cluster_uuid, all[index].cluster_uuid.data(), sizeof(info->cluster_uuid));
  info->status = all[index].status;
  info->clique_id = all[index].clique_id;
  info->state = all[index].state;
  return 0;
}

}  // extern "C"
