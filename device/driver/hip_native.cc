#include "device/driver/hip_native.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace iris::driver {

absl::StatusOr<std::unique_ptr<HipApi>> HipNative::Open(const std::string& library_path) {
  std::vector<std::string> names = {library_path};
  if (library_path.empty()) {
    // The library brings a compiler along: do not load 100 MB where there is no GPU.
    if (access("/dev/kfd", F_OK) != 0) {
      return absl::NotFoundError(
          "no GPU with a loaded amdgpu driver here: /dev/kfd does not exist");
    }
    names = {"libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so",
             "libamdhip64.so.5"};
  }
  absl::StatusOr<Library> library = Library::Open(names);
  if (!library.ok()) return library.status();
  std::unique_ptr<HipNative> api(new HipNative(*std::move(library)));
  if (absl::Status status = api->LoadAll(); !status.ok()) return status;
  return api;
}

absl::Status HipNative::LoadAll() {
  library_.Load(&f_.hipDeviceCanAccessPeer, "hipDeviceCanAccessPeer");
  library_.Load(&f_.hipDeviceGetName, "hipDeviceGetName");
  library_.Load(&f_.hipDeviceGetUuid, "hipDeviceGetUuid");
  library_.Load(&f_.hipDeviceTotalMem, "hipDeviceTotalMem");
  library_.Load(&f_.hipGetDevice, "hipGetDevice");
  library_.Load(&f_.hipGetDeviceCount, "hipGetDeviceCount");
  library_.Load(&f_.hipGetErrorName, "hipGetErrorName");
  library_.Load(&f_.hipGetErrorString, "hipGetErrorString");
  library_.Load(&f_.hipHostGetDevicePointer, "hipHostGetDevicePointer");
  library_.Load(&f_.hipHostRegister, "hipHostRegister");
  library_.Load(&f_.hipHostUnregister, "hipHostUnregister");
  library_.Load(&f_.hipInit, "hipInit");
  library_.Load(&f_.hipMemAddressFree, "hipMemAddressFree");
  library_.Load(&f_.hipMemAddressReserve, "hipMemAddressReserve");
  library_.Load(&f_.hipMemCreate, "hipMemCreate");
  library_.Load(&f_.hipMemExportToShareableHandle, "hipMemExportToShareableHandle");
  library_.Load(&f_.hipMemGetAllocationGranularity, "hipMemGetAllocationGranularity");
  library_.Load(&f_.hipMemGetInfo, "hipMemGetInfo");
  library_.Load(&f_.hipMemImportFromShareableHandle, "hipMemImportFromShareableHandle");
  library_.Load(&f_.hipMemMap, "hipMemMap");
  library_.Load(&f_.hipMemRelease, "hipMemRelease");
  library_.Load(&f_.hipMemSetAccess, "hipMemSetAccess");
  library_.Load(&f_.hipMemUnmap, "hipMemUnmap");
  library_.Load(&f_.hipMemcpyAsync, "hipMemcpyAsync");
  library_.Load(&f_.hipMemsetAsync, "hipMemsetAsync");
  library_.Load(&f_.hipRuntimeGetVersion, "hipRuntimeGetVersion");
  library_.Load(&f_.hipSetDevice, "hipSetDevice");
  library_.Load(&f_.hipStreamCreateWithFlags, "hipStreamCreateWithFlags");
  library_.Load(&f_.hipStreamDestroy, "hipStreamDestroy");
  library_.Load(&f_.hipStreamSynchronize, "hipStreamSynchronize");
  library_.LoadOptional(&f_.hipMemGetAccess, "hipMemGetAccess");
  library_.LoadOptional(&f_.hipMemGetAddressRange, "hipMemGetAddressRange");
  library_.LoadOptional(&f_.hipMemGetAllocationPropertiesFromHandle,
                        "hipMemGetAllocationPropertiesFromHandle");
  library_.LoadOptional(&f_.hipMemRetainAllocationHandle, "hipMemRetainAllocationHandle");
  library_.LoadOptional(&f_.hipThreadExchangeStreamCaptureMode,
                        "hipThreadExchangeStreamCaptureMode");
  return library_.missing();
}

hipError_t HipNative::DeviceUuid(int device, std::string* text) {
  hipUUID uuid = {};
  const hipError_t error = f_.hipDeviceGetUuid(&uuid, device);
  if (error != hipSuccess) return error;
  // Sixteen hexadecimal digits as text, as the vendor's tools print them; else, in case, the bytes.
  const absl::string_view bytes(uuid.bytes, sizeof(uuid.bytes));
  *text = "GPU-";
  if (std::all_of(bytes.begin(), bytes.end(),
                  [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); })) {
    absl::StrAppend(text, bytes);
    return hipSuccess;
  }
  for (const char c : bytes) {
    absl::StrAppend(text, absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  }
  return hipSuccess;
}

hipError_t HipNative::hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* handle,
                                                   void* address) {
  if (f_.hipMemRetainAllocationHandle == nullptr || f_.hipMemGetAccess == nullptr) {
    return hipErrorNotSupported;
  }
  // Versions up to 7.14 crash on memory of hipMalloc. Only mapped memory has access rights.
  hipMemLocation location;
  location.type = hipMemLocationTypeDevice;
  hipError_t error = f_.hipGetDevice(&location.id);
  if (error != hipSuccess) return error;
  unsigned long long rights = 0;
  error = f_.hipMemGetAccess(&rights, &location, address);
  if (error != hipSuccess || rights == 0) return hipErrorInvalidValue;
  return f_.hipMemRetainAllocationHandle(handle, address);
}

hipError_t HipNative::DeviceMemGetInfo(int device, size_t* free_bytes, size_t* total_bytes) {
  int previous = 0;
  hipError_t error = PushDevice(device, &previous);
  if (error != hipSuccess) return error;
  error = f_.hipMemGetInfo(free_bytes, total_bytes);
  PopDevice(previous);
  return error;
}

}  // namespace iris::driver
