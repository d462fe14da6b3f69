// The part of HIP that this folder uses: types, constants and entry points are declared here, so
// that a build needs no vendor's header or toolkit.
//
// Names, arguments and numbers are HIP's. Both vendors use the same numbers for errors and flags,
// and the same layout for the structs below; vendor_headers_test.py compares them with the vendors'
// headers. Thread-safe, as the libraries are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/driver/backend_kind.h"

namespace iris::driver {

class Library;

using hipError_t = int;
using hipStream_t = void*;
// In both libraries this is a pointer or a number of 8 bytes.
using hipMemGenericAllocationHandle_t = uint64_t;

inline constexpr hipError_t hipSuccess = 0;
inline constexpr hipError_t hipErrorInvalidValue = 1;
inline constexpr hipError_t hipErrorOutOfMemory = 2;
inline constexpr hipError_t hipErrorNotInitialized = 3;
inline constexpr hipError_t hipErrorDeinitialized = 4;
inline constexpr hipError_t hipErrorInvalidDevicePointer = 17;
inline constexpr hipError_t hipErrorInsufficientDriver = 35;
inline constexpr hipError_t hipErrorNoDevice = 100;
inline constexpr hipError_t hipErrorInvalidDevice = 101;
inline constexpr hipError_t hipErrorInvalidContext = 201;
inline constexpr hipError_t hipErrorECCNotCorrectable = 214;
inline constexpr hipError_t hipErrorPeerAccessUnsupported = 217;
inline constexpr hipError_t hipErrorOperatingSystem = 304;
inline constexpr hipError_t hipErrorInvalidHandle = 400;
inline constexpr hipError_t hipErrorNotFound = 500;
inline constexpr hipError_t hipErrorNotReady = 600;
inline constexpr hipError_t hipErrorIllegalAddress = 700;
inline constexpr hipError_t hipErrorHostMemoryAlreadyRegistered = 712;
inline constexpr hipError_t hipErrorHostMemoryNotRegistered = 713;
inline constexpr hipError_t hipErrorLaunchFailure = 719;
inline constexpr hipError_t hipErrorNotSupported = 801;
inline constexpr hipError_t hipErrorUnknown = 999;

inline constexpr int hipMemAllocationTypePinned = 1;
inline constexpr int hipMemAllocationTypeUncached = 0x40000000;
inline constexpr int hipMemHandleTypePosixFileDescriptor = 1;
inline constexpr int hipMemHandleTypeFabric = 8;
inline constexpr int hipMemLocationTypeDevice = 1;
inline constexpr int hipMemAccessFlagsProtRead = 1;
inline constexpr int hipMemAccessFlagsProtReadWrite = 3;
inline constexpr int hipMemAllocationGranularityRecommended = 1;
inline constexpr unsigned hipHostRegisterPortable = 1;
inline constexpr unsigned hipHostRegisterMapped = 2;
inline constexpr unsigned hipHostRegisterReadOnly = 8;
inline constexpr unsigned hipStreamNonBlocking = 1;
inline constexpr int hipStreamCaptureModeRelaxed = 2;

struct hipUUID {
  char bytes[16];
};
struct hipMemLocation {
  int type = 0;
  int id = 0;
};
struct hipMemAllocationProp {
  int type = 0;
  int requestedHandleTypes = 0;
  hipMemLocation location;
  void* win32HandleMetaData = nullptr;
  struct {
    unsigned char compressionType = 0;
    unsigned char gpuDirectRDMACapable = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } allocFlags;
};
struct hipMemAccessDesc {
  hipMemLocation location;
  int flags = 0;
};
static_assert(sizeof(hipMemAllocationProp) == 32 && sizeof(hipMemAccessDesc) == 12);

// Stands for an entry point that the library lacks.
template <typename... Parameters>
hipError_t NotSupported(Parameters...) {
  return hipErrorNotSupported;
}

// Entry points that have the same form in both libraries. An address of HIP and a number of the
// same size of CUDA are passed in the same way, so these types also fit libcuda's functions.
struct HipFunctions {
  hipError_t (*hipDeviceCanAccessPeer)(int* can, int device, int peer) = nullptr;
  hipError_t (*hipDeviceGetName)(char* name, int bytes, int device) = nullptr;
  hipError_t (*hipDeviceGetUuid)(hipUUID*, int device) = nullptr;
  hipError_t (*hipDeviceTotalMem)(size_t* bytes, int device) = nullptr;
  hipError_t (*hipGetDeviceCount)(int*) = nullptr;
  hipError_t (*hipHostGetDevicePointer)(void** device, void* host, unsigned flags) = nullptr;
  hipError_t (*hipHostRegister)(void* host, size_t bytes, unsigned flags) = nullptr;
  hipError_t (*hipHostUnregister)(void* host) = nullptr;
  hipError_t (*hipInit)(unsigned flags) = nullptr;
  hipError_t (*hipMemAddressFree)(void*, size_t bytes) = nullptr;
  hipError_t (*hipMemAddressReserve)(void**, size_t bytes, size_t alignment, void* wanted,
                                     unsigned long long flags) = nullptr;
  hipError_t (*hipMemCreate)(hipMemGenericAllocationHandle_t*, size_t bytes,
                             const hipMemAllocationProp*, unsigned long long flags) = nullptr;
  hipError_t (*hipMemExportToShareableHandle)(void* shareable, hipMemGenericAllocationHandle_t,
                                              int type, unsigned long long flags) = nullptr;
  hipError_t (*hipMemGetAllocationGranularity)(size_t*, const hipMemAllocationProp*,
                                               int option) = nullptr;
  // Applies to the current device.
  hipError_t (*hipMemGetInfo)(size_t* free_bytes, size_t* total_bytes) = nullptr;
  hipError_t (*hipMemImportFromShareableHandle)(hipMemGenericAllocationHandle_t*, void* os_handle,
                                                int type) = nullptr;
  hipError_t (*hipMemMap)(void*, size_t bytes, size_t offset, hipMemGenericAllocationHandle_t,
                          unsigned long long flags) = nullptr;
  hipError_t (*hipMemRelease)(hipMemGenericAllocationHandle_t) = nullptr;
  hipError_t (*hipMemSetAccess)(void*, size_t bytes, const hipMemAccessDesc*,
                                size_t count) = nullptr;
  hipError_t (*hipMemUnmap)(void*, size_t bytes) = nullptr;
  // hip: major * 10'000'000 + minor * 100'000 + patch; cuda: major * 1000 + minor * 10.
  hipError_t (*hipRuntimeGetVersion)(int*) = nullptr;
  // Streams belong to the current device, which must be current when they are used.
  hipError_t (*hipStreamCreateWithFlags)(hipStream_t*, unsigned flags) = nullptr;
  hipError_t (*hipStreamDestroy)(hipStream_t) = nullptr;
  hipError_t (*hipStreamQuery)(hipStream_t) = nullptr;
  hipError_t (*hipStreamSynchronize)(hipStream_t) = nullptr;

  // Libraries may lack these.

  // Finds the allocation of hipMemCreate that is mapped at the address.
  hipError_t (*hipMemGetAddressRange)(void** base, size_t* bytes, void*) = &NotSupported;
  hipError_t (*hipMemGetAllocationPropertiesFromHandle)(
      hipMemAllocationProp*, hipMemGenericAllocationHandle_t) = &NotSupported;
  hipError_t (*hipMemRetainAllocationHandle)(hipMemGenericAllocationHandle_t*,
                                             void*) = &NotSupported;
  // Exchanges `*mode`, a hipStreamCaptureMode, for the calling thread's.
  hipError_t (*hipThreadExchangeStreamCaptureMode)(int* mode) = &NotSupported;

  // Looks up all entry points by the names that a library of this kind exports.
  void Load(Library& library, BackendKind kind);
};

class HipApi : public HipFunctions {
 public:
  virtual ~HipApi() = default;

  virtual const char* ErrorName(hipError_t error) = 0;
  virtual const char* ErrorString(hipError_t error) = 0;
  // Writes the UUID in the form of the vendor's tools: "GPU-…".
  virtual hipError_t DeviceUuid(int device, std::string* text) = 0;

  // Set and get the calling thread's device, or -1. cuda keeps a primary context until the end.
  virtual hipError_t SetDevice(int device) = 0;
  virtual hipError_t GetDevice(int* device) = 0;
  // Sets the device until PopDevice, which takes the previous one that PushDevice returned.
  virtual hipError_t PushDevice(int device, int* previous) = 0;
  virtual hipError_t PopDevice(int previous) = 0;

  // Returns hipErrorInvalidContext if the library needs a context on the device for the answer.
  virtual hipError_t DeviceMemGetInfo(int device, size_t* free_bytes, size_t* total_bytes) = 0;
  // Returns false if the library says that no memory of the device can be mapped and exported.
  virtual bool HasExportableMemory(int device) = 0;
  // Returns the name of the device's fabric domain (GpuDriver::FabricDomain), or why it has none.
  virtual absl::StatusOr<std::string> FabricDomain(int device) = 0;

  // Finds the handle of the memory at an address, and takes a hold that must be released, unless
  // Quirks::retain_is_not_counted. hipErrorInvalidValue if hipMemCreate did not make the memory.
  virtual hipError_t RetainHandle(hipMemGenericAllocationHandle_t* handle, void* address) = 0;

  // Copies between any two kinds of memory.
  virtual hipError_t CopyAsync(void* to, const void* from, size_t bytes, hipStream_t stream) = 0;
  virtual hipError_t FillAsync(void* to, uint8_t value, size_t bytes, hipStream_t stream) = 0;
  // Copies from registered memory of the host to memory of the device, in the way that does not
  // wait for kernels of other processes, if there is one. An aligned word of 4 or 8 bytes is read
  // from `from` at once, and written by one access. `scratch`: 8 bytes of registered memory that
  // nobody uses; null if the last copy on the stream was a read, or a write of more than two bytes.
  virtual hipError_t WriteAsync(void* to, const void* from, size_t bytes, void* scratch,
                                hipStream_t stream) {
    return CopyAsync(to, from, bytes, stream);
  }

 protected:
  hipError_t InfoOfPushed(int device, size_t* free_bytes, size_t* total_bytes) {
    int previous = -1;
    hipError_t error = PushDevice(device, &previous);
    if (error != hipSuccess) return error;
    error = hipMemGetInfo(free_bytes, total_bytes);
    PopDevice(previous);
    return error;
  }
};

// The entry points that only libamdhip64 has.
struct HipOnlyFunctions {
  hipError_t (*hipGetDevice)(int*) = nullptr;
  const char* (*hipGetErrorName)(hipError_t) = nullptr;
  const char* (*hipGetErrorString)(hipError_t) = nullptr;
  hipError_t (*hipMemcpyAsync)(void*, const void*, size_t, int kind, hipStream_t) = nullptr;
  hipError_t (*hipMemsetAsync)(void*, int value, size_t, hipStream_t) = nullptr;
  hipError_t (*hipSetDevice)(int) = nullptr;
  // Null if the library lacks this function.
  hipError_t (*hipMemGetAccess)(unsigned long long*, const hipMemLocation*, void*) = nullptr;
};

// The entry points that only libcuda has.
using CUresult = int;
using CUdevice = int;  // the device's number
using CUcontext = void*;
using CUdeviceptr = unsigned long long;

inline constexpr int kCudaVirtualMemoryManagementSupported = 102;  // CU_DEVICE_ATTRIBUTE_…
inline constexpr int kCudaHandleTypePosixFileDescriptorSupported = 103;
inline constexpr int kCudaHandleTypeFabricSupported = 128;

struct CUDA_MEMCPY2D {
  size_t srcXInBytes = 0;
  size_t srcY = 0;
  int srcMemoryType = 0;
  const void* srcHost = nullptr;
  CUdeviceptr srcDevice = 0;
  void* srcArray = nullptr;
  size_t srcPitch = 0;
  size_t dstXInBytes = 0;
  size_t dstY = 0;
  int dstMemoryType = 0;
  void* dstHost = nullptr;
  CUdeviceptr dstDevice = 0;
  void* dstArray = nullptr;
  size_t dstPitch = 0;
  size_t WidthInBytes = 0;
  size_t Height = 0;
};
inline constexpr int kCudaMemoryTypeHost = 1;  // CU_MEMORYTYPE_…
inline constexpr int kCudaMemoryTypeDevice = 2;

struct CudaOnlyFunctions {
  CUresult (*cuCtxGetDevice)(CUdevice*) = nullptr;
  CUresult (*cuCtxPopCurrent)(CUcontext*) = nullptr;
  CUresult (*cuCtxPushCurrent)(CUcontext) = nullptr;
  CUresult (*cuCtxSetCurrent)(CUcontext) = nullptr;
  CUresult (*cuDeviceGetAttribute)(int*, int, CUdevice) = nullptr;
  CUresult (*cuDevicePrimaryCtxRelease)(CUdevice) = nullptr;
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*cuGetErrorName)(CUresult, const char**) = nullptr;
  CUresult (*cuGetErrorString)(CUresult, const char**) = nullptr;
  CUresult (*cuMemcpy2DAsync)(const CUDA_MEMCPY2D*, hipStream_t) = nullptr;
  CUresult (*cuMemcpyAsync)(CUdeviceptr, CUdeviceptr, size_t, hipStream_t) = nullptr;
  CUresult (*cuMemsetD8Async)(CUdeviceptr, unsigned char, size_t, hipStream_t) = nullptr;
  // After all that is before it on the stream.
  CUresult (*cuStreamWriteValue32)(hipStream_t, CUdeviceptr, uint32_t,
                                   unsigned flags) = &NotSupported;
  CUresult (*cuStreamWriteValue64)(hipStream_t, CUdeviceptr, uint64_t,
                                   unsigned flags) = &NotSupported;
};

// OpenHipNative opens HIP by libamdhip64 (hip_native.cc), OpenHipOnCuda translated to libcuda
// (hip_on_cuda.cc). With an empty `library_path` they open the system's library. kNotFound if there
// is no such library, or no such GPU. kFailedPrecondition if the library is too old.
absl::StatusOr<std::unique_ptr<HipApi>> OpenHipNative(const std::string& library_path);
absl::StatusOr<std::unique_ptr<HipApi>> OpenHipOnCuda(const std::string& library_path);

// Returns "<what>: <NAME> (<number>: <text>); <what to do>", or OK for hipSuccess.
//
// kResourceExhausted if memory runs out (or descriptors, which some versions report so).
// kUnavailable if the device or this process's context on it is lost. kFailedPrecondition if there
// is no device, or if an installation does not fit together. kPermissionDenied, kUnimplemented and
// kInvalidArgument as the vendor says. kInternal for all other errors.
absl::Status HipStatus(HipApi& api, hipError_t error, absl::string_view what);

// Returns "NAME (number: text)".
std::string HipErrorText(HipApi& api, hipError_t error);

// Makes `device` current on the calling thread while the object lives.
class DeviceScope {
 public:
  DeviceScope(HipApi& api, int device) : api_(api), error_(api.PushDevice(device, &previous_)) {}
  ~DeviceScope() {
    if (error_ == hipSuccess) api_.PopDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  hipError_t error() const { return error_; }

 private:
  HipApi& api_;
  int previous_ = -1;
  const hipError_t error_;
};

// While a program captures a stream for all threads, the library refuses calls of any thread that
// could wait for captured work or change memory that the work uses, such as mapping memory, and the
// capture fails. The driver's own calls never touch captured work. An object of this class declares
// this to the library for its thread, while it lives.
class OutsideCaptures {
 public:
  explicit OutsideCaptures(HipApi& api) : api_(api) {
    exchanged_ = api_.hipThreadExchangeStreamCaptureMode(&mode_) == hipSuccess;
  }
  ~OutsideCaptures() {
    if (exchanged_) (void)api_.hipThreadExchangeStreamCaptureMode(&mode_);
  }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;
  // Makes one call: see CaptureSafeApi.
  HipApi* operator->() { return &api_; }

 private:
  HipApi& api_;
  int mode_ = hipStreamCaptureModeRelaxed;
  bool exchanged_ = false;
};

// Owns a HipApi. Each call through `->` is made within OutsideCaptures; calls through `*` are not.
class CaptureSafeApi {
 public:
  explicit CaptureSafeApi(std::unique_ptr<HipApi> api) : api_(std::move(api)) {}
  OutsideCaptures operator->() const { return OutsideCaptures(*api_); }
  HipApi& operator*() const { return *api_; }

 private:
  const std::unique_ptr<HipApi> api_;
};

}  // namespace iris::driver
