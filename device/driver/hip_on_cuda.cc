// HIP by the CUDA driver API of libcuda.so.1. Entry points are looked up by the names that the
// library exports, version suffixes included.
//
// The first SetDevice or PushDevice for a device retains the device's primary context, and the
// destructor releases it. Creating, exporting, importing and mapping memory need no context.
#include <string.h>

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "device/driver/hip_api.h"
#include "device/driver/library.h"

namespace iris::driver {
namespace {

// The management library, which reports a device's memory without a context on the device, and the
// NVLink domain that the device's node is in.
struct Management {
  struct Memory {
    unsigned long long total = 0;
    unsigned long long free = 0;
    unsigned long long used = 0;
  };
  struct Fabric {  // nvmlGpuFabricInfo_t
    char cluster_uuid[16] = {};
    int status = 0;
    unsigned clique_id = 0;
    unsigned char state = 0;
  };
  static constexpr int kFabricDone = 3;  // NVML_GPU_FABRIC_STATE_COMPLETED
  int (*init)() = nullptr;
  int (*by_uuid)(const char*, void**) = nullptr;
  int (*memory_info)(void*, Memory*) = nullptr;
  int (*fabric_info)(void*, Fabric*) = nullptr;  // libraries may lack it
  bool usable = false;

  Management() {
    absl::StatusOr<Library> library =
        Library::Open({"libnvidia-ml.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"});
    if (!library.ok()) return;
    library->Load(&init, "nvmlInit_v2");
    library->Load(&by_uuid, "nvmlDeviceGetHandleByUUID");
    library->Load(&memory_info, "nvmlDeviceGetMemoryInfo");
    library->LoadOptional(&fabric_info, "nvmlDeviceGetGpuFabricInfo");
    usable = library->missing().ok() && init() == 0;
  }
};

// The layout of nvmlGpuFabricInfo_t, as the vendor's nvml.h declares it.
static_assert(sizeof(Management::Fabric) == 28 && offsetof(Management::Fabric, status) == 16 &&
              offsetof(Management::Fabric, clique_id) == 20 &&
              offsetof(Management::Fabric, state) == 24);
// That of nvmlMemory_t.
static_assert(sizeof(Management::Memory) == 24 && offsetof(Management::Memory, free) == 8);

class HipOnCuda final : public HipApi, private CudaOnlyFunctions {
 public:
  explicit HipOnCuda(Library& library) {
    library.Load(&cuCtxGetDevice, "cuCtxGetDevice");
    library.Load(&cuCtxPopCurrent, "cuCtxPopCurrent_v2");
    library.Load(&cuCtxPushCurrent, "cuCtxPushCurrent_v2");
    library.Load(&cuCtxSetCurrent, "cuCtxSetCurrent");
    library.Load(&cuDeviceGetAttribute, "cuDeviceGetAttribute");
    library.Load(&cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
    library.Load(&cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    library.Load(&cuGetErrorName, "cuGetErrorName");
    library.Load(&cuGetErrorString, "cuGetErrorString");
    library.Load(&cuMemcpy2DAsync, "cuMemcpy2DAsync_v2");
    library.Load(&cuMemcpyAsync, "cuMemcpyAsync");
    library.Load(&cuMemsetD8Async, "cuMemsetD8Async");
    library.LoadOptional(&cuStreamWriteValue32, "cuStreamWriteValue32_v2");
    library.LoadOptional(&cuStreamWriteValue64, "cuStreamWriteValue64_v2");
    Load(library, BackendKind::kCuda);
  }
  ~HipOnCuda() override {
    absl::MutexLock lock(&mu_);
    for (int device = 0; device < kMaxDevices; ++device) {
      if (contexts_[device] != nullptr) cuDevicePrimaryCtxRelease(device);
    }
  }

  const char* ErrorName(hipError_t error) override {
    const char* text = nullptr;
    return cuGetErrorName(error, &text) == hipSuccess && text != nullptr ? text : "unknown";
  }
  const char* ErrorString(hipError_t error) override {
    const char* text = nullptr;
    return cuGetErrorString(error, &text) == hipSuccess && text != nullptr ? text : "unknown";
  }

  hipError_t DeviceUuid(int device, std::string* text) override {
    hipUUID uuid = {};
    const hipError_t error = hipDeviceGetUuid(&uuid, device);
    if (error != hipSuccess) return error;
    *text = absl::StrCat("GPU-",
                         absl::BytesToHexString(absl::string_view(uuid.bytes, sizeof(uuid.bytes))));
    for (const size_t at : {12, 17, 22, 27}) text->insert(at, 1, '-');
    return hipSuccess;
  }

  hipError_t SetDevice(int device) override {
    CUcontext context = nullptr;
    const hipError_t error = Retain(device, &context);
    return error != hipSuccess ? error : cuCtxSetCurrent(context);
  }
  hipError_t GetDevice(int* device) override {
    if (cuCtxGetDevice(device) != hipSuccess) *device = -1;
    return hipSuccess;
  }
  hipError_t PushDevice(int device, int* previous) override {
    CUcontext context = nullptr;
    const hipError_t error = Retain(device, &context);
    return error != hipSuccess ? error : cuCtxPushCurrent(context);
  }
  hipError_t PopDevice(int previous) override {
    CUcontext context = nullptr;
    return cuCtxPopCurrent(&context);
  }

  hipError_t DeviceMemGetInfo(int device, size_t* free_bytes, size_t* total_bytes) override {
    bool has_context = false;
    {
      absl::MutexLock lock(&mu_);
      has_context = device >= 0 && device < kMaxDevices && contexts_[device] != nullptr;
    }
    if (has_context) return InfoOfPushed(device, free_bytes, total_bytes);
    absl::MutexLock lock(&mu_);
    void* const handle = ManagedDevice(device);
    Management::Memory memory;
    if (handle == nullptr || management_->memory_info(handle, &memory) != 0) {
      return hipErrorInvalidContext;
    }
    *free_bytes = memory.free;
    *total_bytes = memory.total;
    return hipSuccess;
  }

  bool HasExportableMemory(int device) override {
    for (const int attribute :
         {kCudaVirtualMemoryManagementSupported, kCudaHandleTypePosixFileDescriptorSupported}) {
      int value = 0;
      if (cuDeviceGetAttribute(&value, attribute, device) != hipSuccess || value == 0) return false;
    }
    return true;
  }

  absl::StatusOr<std::string> FabricDomain(int device) override {
    int supported = 0;
    if (cuDeviceGetAttribute(&supported, kCudaHandleTypeFabricSupported, device) != hipSuccess ||
        supported == 0) {
      return absl::FailedPreconditionError(
          "the device or its driver has no fabric handles: they need GPUs with NVLink between "
          "nodes, and a driver of CUDA 12.4 or newer");
    }
    absl::MutexLock lock(&mu_);
    void* const handle = ManagedDevice(device);
    Management::Fabric fabric;
    if (handle == nullptr || management_->fabric_info == nullptr) {
      return absl::FailedPreconditionError(
          "the management library (libnvidia-ml.so.1), which names the NVLink domain, is missing "
          "or too old: install that of the driver");
    }
    const int error = management_->fabric_info(handle, &fabric);
    if (error != 0 || fabric.state != Management::kFabricDone || fabric.status != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the device is not registered with an NVLink domain (error ", error, ", state ",
          fabric.state, ", status ", fabric.status, "): look at the fabric manager of this node"));
    }
    const absl::string_view uuid(fabric.cluster_uuid, sizeof(fabric.cluster_uuid));
    if (uuid.find_first_not_of('\0') == absl::string_view::npos) {
      return absl::FailedPreconditionError("the NVLink domain of this device has this node alone");
    }
    return absl::StrCat("nvlink ", absl::BytesToHexString(uuid), ".", fabric.clique_id);
  }

  hipError_t RetainHandle(hipMemGenericAllocationHandle_t* handle, void* address) override {
    return hipMemRetainAllocationHandle(handle, address);
  }

  hipError_t CopyAsync(void* to, const void* from, size_t bytes, hipStream_t stream) override {
    return cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                         bytes, stream);
  }
  hipError_t FillAsync(void* to, uint8_t value, size_t bytes, hipStream_t stream) override {
    return cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(to), value, bytes, stream);
  }

  // The library writes up to some 32 KiB from the host by the engine of kernels, which processes
  // use in turn: while a kernel of another one runs, such a write takes milliseconds, and by a copy
  // engine 10 us. Copies of rows go by a copy engine, and so does a value behind a copy
  // (docs/decisions/062: measured on an H200 with CUDA 13.0).
  hipError_t WriteAsync(void* to, const void* from, size_t bytes, void* scratch,
                        hipStream_t stream) override {
    const CUdeviceptr target = reinterpret_cast<CUdeviceptr>(to);
    if ((bytes == 4 || bytes == 8) && target % bytes == 0) {
      uint64_t value = 0;
      memcpy(&value, from, bytes);
      hipError_t error = hipSuccess;
      if (scratch != nullptr) {
        error = cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(scratch), target, bytes, stream);
      }
      if (error == hipSuccess) {
        error = bytes == 8 ? cuStreamWriteValue64(stream, target, value, 0)
                           : cuStreamWriteValue32(stream, target, static_cast<uint32_t>(value), 0);
      }
      return error == hipErrorNotSupported ? CopyAsync(to, from, bytes, stream) : error;
    }
    // Two bytes may be a word, too.
    if (bytes <= 2 || bytes > kMostByRows) return CopyAsync(to, from, bytes, stream);
    const hipError_t error = CopyHalves(target, from, bytes / 2, stream);
    if (error != hipSuccess || bytes % 2 == 0) return error;
    return CopyHalves(target + bytes - 2, static_cast<const uint8_t*>(from) + bytes - 2, 1, stream);
  }

 private:
  static constexpr int kMaxDevices = 64;
  static constexpr size_t kMostByRows = 64 << 10;

  hipError_t CopyHalves(CUdeviceptr to, const void* from, size_t half_bytes, hipStream_t stream) {
    CUDA_MEMCPY2D rows;
    rows.srcMemoryType = kCudaMemoryTypeHost;
    rows.srcHost = from;
    rows.dstMemoryType = kCudaMemoryTypeDevice;
    rows.dstDevice = to;
    rows.srcPitch = rows.dstPitch = rows.WidthInBytes = half_bytes;
    rows.Height = 2;
    return cuMemcpy2DAsync(&rows, stream);
  }

  // Returns the management library's handle of a device, or null.
  void* ManagedDevice(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::string uuid;
    if (DeviceUuid(device, &uuid) != hipSuccess) return nullptr;
    if (management_ == nullptr) management_ = std::make_unique<Management>();
    void* handle = nullptr;
    const bool found = management_->usable && management_->by_uuid(uuid.c_str(), &handle) == 0;
    return found ? handle : nullptr;
  }

  hipError_t Retain(int device, CUcontext* context) ABSL_LOCKS_EXCLUDED(mu_) {
    if (device < 0 || device >= kMaxDevices) return hipErrorInvalidDevice;
    absl::MutexLock lock(&mu_);
    if (contexts_[device] == nullptr) {
      const hipError_t error = cuDevicePrimaryCtxRetain(&contexts_[device], device);
      if (error != hipSuccess) {
        contexts_[device] = nullptr;
        return error;
      }
    }
    *context = contexts_[device];
    return hipSuccess;
  }

  absl::Mutex mu_;
  std::unique_ptr<Management> management_ ABSL_GUARDED_BY(mu_);  // opened when first asked
  std::array<CUcontext, kMaxDevices> contexts_ ABSL_GUARDED_BY(mu_) = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<HipApi>> OpenHipOnCuda(const std::string& library_path) {
  std::vector<std::string> names = {library_path};
  // Container runtimes put the library into the latter folder, which the loader does not search.
  if (library_path.empty()) names = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"};
  absl::StatusOr<Library> library = Library::Open(names);
  if (!library.ok()) return library.status();
  auto api = std::make_unique<HipOnCuda>(*library);
  if (absl::Status status = library->missing(); !status.ok()) return status;
  return api;
}

}  // namespace iris::driver
