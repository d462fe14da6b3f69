// HIP by the entry points of libamdhip64.
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "device/driver/hip_api.h"
#include "device/driver/library.h"

namespace iris::driver {
namespace {

class HipNative final : public HipApi, private HipOnlyFunctions {
 public:
  explicit HipNative(Library& library) {
    library.Load(&hipGetDevice, "hipGetDevice");
    library.Load(&hipGetErrorName, "hipGetErrorName");
    library.Load(&hipGetErrorString, "hipGetErrorString");
    library.Load(&hipMemcpyAsync, "hipMemcpyAsync");
    library.Load(&hipMemsetAsync, "hipMemsetAsync");
    library.Load(&hipSetDevice, "hipSetDevice");
    library.LoadOptional(&hipMemGetAccess, "hipMemGetAccess");
    Load(library, BackendKind::kHip);
  }

  const char* ErrorName(hipError_t error) override { return hipGetErrorName(error); }
  const char* ErrorString(hipError_t error) override { return hipGetErrorString(error); }

  hipError_t DeviceUuid(int device, std::string* text) override {
    hipUUID uuid = {};
    const hipError_t error = hipDeviceGetUuid(&uuid, device);
    if (error != hipSuccess) return error;
    // Print sixteen hexadecimal digits as text, like the vendor's tools, and other UUIDs as bytes.
    const absl::string_view bytes(uuid.bytes, sizeof(uuid.bytes));
    const bool digits = std::all_of(bytes.begin(), bytes.end(), [](char c) {
      return absl::ascii_isxdigit(static_cast<unsigned char>(c));
    });
    *text = absl::StrCat("GPU-", digits ? std::string(bytes) : absl::BytesToHexString(bytes));
    return hipSuccess;
  }

  hipError_t SetDevice(int device) override { return hipSetDevice(device); }
  hipError_t GetDevice(int* device) override { return hipGetDevice(device); }
  hipError_t PushDevice(int device, int* previous) override {
    const hipError_t error = hipGetDevice(previous);
    return error != hipSuccess ? error : hipSetDevice(device);
  }
  hipError_t PopDevice(int previous) override { return hipSetDevice(previous); }
  hipError_t DeviceMemGetInfo(int device, size_t* free_bytes, size_t* total_bytes) override {
    return InfoOfPushed(device, free_bytes, total_bytes);
  }
  // All accepted versions support it; for a device without support, hipMemCreate fails.
  bool HasExportableMemory(int device) override { return true; }
  absl::StatusOr<std::string> FabricDomain(int /*device*/) override {
    return absl::UnimplementedError(
        "this library does not say which nodes share a fabric: other nodes are reached by ports");
  }

  hipError_t RetainHandle(hipMemGenericAllocationHandle_t* handle, void* address) override {
    if (hipMemGetAccess == nullptr) return hipErrorNotSupported;
    // Versions up to 7.14 crash on memory of hipMalloc. Only mapped memory has access rights.
    hipMemLocation location;
    location.type = hipMemLocationTypeDevice;
    hipError_t error = hipGetDevice(&location.id);
    if (error != hipSuccess) return error;
    unsigned long long rights = 0;
    error = hipMemGetAccess(&rights, &location, address);
    if (error != hipSuccess || rights == 0) return hipErrorInvalidValue;
    return hipMemRetainAllocationHandle(handle, address);
  }

  hipError_t CopyAsync(void* to, const void* from, size_t bytes, hipStream_t stream) override {
    constexpr int kHipMemcpyDefault = 4;
    return hipMemcpyAsync(to, from, bytes, kHipMemcpyDefault, stream);
  }
  hipError_t FillAsync(void* to, uint8_t value, size_t bytes, hipStream_t stream) override {
    return hipMemsetAsync(to, value, bytes, stream);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<HipApi>> OpenHipNative(const std::string& library_path) {
  std::vector<std::string> names = {library_path};
  if (library_path.empty()) {
    // The library contains a compiler, so these 100 MB are not loaded if there is no GPU.
    if (access("/dev/kfd", F_OK) != 0) {
      return absl::NotFoundError(
          "no GPU with a loaded amdgpu driver here: /dev/kfd does not exist");
    }
    names = {"libamdhip64.so.7", "libamdhip64.so.6", "/opt/rocm/lib/libamdhip64.so",
             "libamdhip64.so.5"};
  }
  absl::StatusOr<Library> library = Library::Open(names);
  if (!library.ok()) return library.status();
  auto api = std::make_unique<HipNative>(*library);
  if (absl::Status status = library->missing(); !status.ok()) return status;
  return api;
}

}  // namespace iris::driver
