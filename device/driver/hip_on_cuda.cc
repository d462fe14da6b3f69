#include "device/driver/hip_on_cuda.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace iris::driver {

struct HipOnCuda::Management {
  struct Memory {
    unsigned long long total = 0;
    unsigned long long free = 0;
    unsigned long long used = 0;
  };
  int (*init)() = nullptr;
  int (*by_uuid)(const char*, void**) = nullptr;
  int (*memory_info)(void*, Memory*) = nullptr;
  bool usable = false;

  Management() {
    absl::StatusOr<Library> library =
        Library::Open({"libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"});
    if (!library.ok()) return;
    library->Load(&init, "nvmlInit_v2");
    library->Load(&by_uuid, "nvmlDeviceGetHandleByUUID");
    library->Load(&memory_info, "nvmlDeviceGetMemoryInfo");
    usable = library->missing().ok() && init() == 0;
  }
};

HipOnCuda::HipOnCuda(Library library) : library_(std::move(library)) {}

absl::StatusOr<std::unique_ptr<HipApi>> HipOnCuda::Open(const std::string& library_path) {
  std::vector<std::string> names = {library_path};
  // Where container runtimes put it; the loader does not look there by itself.
  if (library_path.empty()) names = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"};
  absl::StatusOr<Library> library = Library::Open(names);
  if (!library.ok()) return library.status();
  std::unique_ptr<HipOnCuda> api(new HipOnCuda(*std::move(library)));
  if (absl::Status status = api->LoadAll(); !status.ok()) return status;
  return api;
}

absl::Status HipOnCuda::LoadAll() {
  library_.Load(&f_.cuCtxGetDevice, "cuCtxGetDevice");
  library_.Load(&f_.cuCtxPopCurrent, "cuCtxPopCurrent_v2");
  library_.Load(&f_.cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  library_.Load(&f_.cuCtxSetCurrent, "cuCtxSetCurrent");
  library_.Load(&f_.cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer");
  library_.Load(&f_.cuDeviceGet, "cuDeviceGet");
  library_.Load(&f_.cuDeviceGetAttribute, "cuDeviceGetAttribute");
  library_.Load(&f_.cuDeviceGetCount, "cuDeviceGetCount");
  library_.Load(&f_.cuDeviceGetName, "cuDeviceGetName");
  library_.Load(&f_.cuDeviceGetUuid, "cuDeviceGetUuid_v2");
  library_.Load(&f_.cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
  library_.Load(&f_.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  library_.Load(&f_.cuDeviceTotalMem, "cuDeviceTotalMem_v2");
  library_.Load(&f_.cuDriverGetVersion, "cuDriverGetVersion");
  library_.Load(&f_.cuGetErrorName, "cuGetErrorName");
  library_.Load(&f_.cuGetErrorString, "cuGetErrorString");
  library_.Load(&f_.cuInit, "cuInit");
  library_.Load(&f_.cuMemAddressFree, "cuMemAddressFree");
  library_.Load(&f_.cuMemAddressReserve, "cuMemAddressReserve");
  library_.Load(&f_.cuMemCreate, "cuMemCreate");
  library_.Load(&f_.cuMemExportToShareableHandle, "cuMemExportToShareableHandle");
  library_.Load(&f_.cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity");
  library_.Load(&f_.cuMemGetInfo, "cuMemGetInfo_v2");
  library_.Load(&f_.cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2");
  library_.Load(&f_.cuMemHostRegister, "cuMemHostRegister_v2");
  library_.Load(&f_.cuMemHostUnregister, "cuMemHostUnregister");
  library_.Load(&f_.cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle");
  library_.Load(&f_.cuMemMap, "cuMemMap");
  library_.Load(&f_.cuMemRelease, "cuMemRelease");
  library_.Load(&f_.cuMemSetAccess, "cuMemSetAccess");
  library_.Load(&f_.cuMemUnmap, "cuMemUnmap");
  library_.Load(&f_.cuMemcpyAsync, "cuMemcpyAsync");
  library_.Load(&f_.cuMemsetD8Async, "cuMemsetD8Async");
  library_.Load(&f_.cuStreamCreate, "cuStreamCreate");
  library_.Load(&f_.cuStreamDestroy, "cuStreamDestroy_v2");
  library_.Load(&f_.cuStreamSynchronize, "cuStreamSynchronize");
  library_.LoadOptional(&f_.cuMemGetAddressRange, "cuMemGetAddressRange_v2");
  library_.LoadOptional(&f_.cuMemGetAllocationPropertiesFromHandle,
                        "cuMemGetAllocationPropertiesFromHandle");
  library_.LoadOptional(&f_.cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle");
  library_.LoadOptional(&f_.cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  return library_.missing();
}

HipOnCuda::~HipOnCuda() {
  absl::MutexLock lock(&mu_);
  for (int device = 0; device < kMaxDevices; ++device) {
    CUdevice d = 0;
    if (contexts_[device] != nullptr && f_.cuDeviceGet(&d, device) == hipSuccess) {
      f_.cuDevicePrimaryCtxRelease(d);
    }
  }
}

CUresult HipOnCuda::Retain(int device, CUcontext* context) {
  if (device < 0 || device >= kMaxDevices) return hipErrorInvalidDevice;
  absl::MutexLock lock(&mu_);
  if (contexts_[device] == nullptr) {
    CUdevice d = 0;
    CUresult error = f_.cuDeviceGet(&d, device);
    if (error == hipSuccess) error = f_.cuDevicePrimaryCtxRetain(&contexts_[device], d);
    if (error != hipSuccess) {
      contexts_[device] = nullptr;
      return error;
    }
  }
  *context = contexts_[device];
  return hipSuccess;
}

hipError_t HipOnCuda::DeviceUuid(int device, std::string* text) {
  CUdevice d = 0;
  hipUUID uuid = {};
  CUresult error = f_.cuDeviceGet(&d, device);
  if (error == hipSuccess) error = f_.cuDeviceGetUuid(&uuid, d);
  if (error != hipSuccess) return error;
  *text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text->push_back('-');
    absl::StrAppend(text, absl::Hex(static_cast<unsigned char>(uuid.bytes[i]), absl::kZeroPad2));
  }
  return hipSuccess;
}

bool HipOnCuda::HasExportableMemory(int device) {
  CUdevice d = 0;
  if (f_.cuDeviceGet(&d, device) != hipSuccess) return false;
  for (const int attribute :
       {kCudaVirtualMemoryManagementSupported, kCudaHandleTypePosixFileDescriptorSupported}) {
    int value = 0;
    if (f_.cuDeviceGetAttribute(&value, attribute, d) != hipSuccess || value == 0) return false;
  }
  return true;
}

hipError_t HipOnCuda::DeviceMemGetInfo(int device, size_t* free_bytes, size_t* total_bytes) {
  bool has_context = false;
  {
    absl::MutexLock lock(&mu_);
    has_context = device >= 0 && device < kMaxDevices && contexts_[device] != nullptr;
  }
  if (has_context) {
    int previous = -1;
    CUresult error = PushDevice(device, &previous);
    if (error != hipSuccess) return error;
    error = f_.cuMemGetInfo(free_bytes, total_bytes);
    PopDevice(previous);
    return error;
  }
  std::string uuid;
  if (DeviceUuid(device, &uuid) != hipSuccess) return hipErrorInvalidDevice;
  absl::MutexLock lock(&mu_);
  if (management_ == nullptr) management_ = std::make_unique<Management>();
  if (!management_->usable) return hipErrorInvalidContext;
  void* handle = nullptr;
  Management::Memory memory;
  if (management_->by_uuid(uuid.c_str(), &handle) != 0 ||
      management_->memory_info(handle, &memory) != 0) {
    return hipErrorInvalidContext;
  }
  *free_bytes = memory.free;
  *total_bytes = memory.total;
  return hipSuccess;
}

}  // namespace iris::driver
