// HipOnCuda: HIP's entry points in terms of the CUDA driver API of libcuda.so.1. Entry points are
// looked up by the names that the library exports, version suffixes included.
//
// Contexts: the primary context of a device is retained by the first hipSetDevice or PushDevice for
// it and released by the destructor. Creating, exporting, importing and mapping memory need none.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "device/driver/hip_api.h"
#include "device/driver/library.h"

namespace iris::driver {

using CUresult = int;
using CUdevice = int;
using CUcontext = void*;
using CUstream = void*;
using CUdeviceptr = unsigned long long;

inline constexpr int kCudaVirtualMemoryManagementSupported = 102;  // CU_DEVICE_ATTRIBUTE_…
inline constexpr int kCudaHandleTypePosixFileDescriptorSupported = 103;

// The entry points of libcuda, in alphabetical order, those that may be missing last. Structs go
// through unchanged: hip_api.h says why.
struct CudaFunctions {
  CUresult (*cuCtxGetDevice)(CUdevice*) = nullptr;
  CUresult (*cuCtxPopCurrent)(CUcontext*) = nullptr;
  CUresult (*cuCtxPushCurrent)(CUcontext) = nullptr;
  CUresult (*cuCtxSetCurrent)(CUcontext) = nullptr;
  CUresult (*cuDeviceCanAccessPeer)(int*, CUdevice, CUdevice) = nullptr;
  CUresult (*cuDeviceGet)(CUdevice*, int) = nullptr;
  CUresult (*cuDeviceGetAttribute)(int*, int, CUdevice) = nullptr;
  CUresult (*cuDeviceGetCount)(int*) = nullptr;
  CUresult (*cuDeviceGetName)(char*, int, CUdevice) = nullptr;
  CUresult (*cuDeviceGetUuid)(hipUUID*, CUdevice) = nullptr;
  CUresult (*cuDevicePrimaryCtxRelease)(CUdevice) = nullptr;
  CUresult (*cuDevicePrimaryCtxRetain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*cuDeviceTotalMem)(size_t*, CUdevice) = nullptr;
  CUresult (*cuDriverGetVersion)(int*) = nullptr;
  CUresult (*cuGetErrorName)(CUresult, const char**) = nullptr;
  CUresult (*cuGetErrorString)(CUresult, const char**) = nullptr;
  CUresult (*cuInit)(unsigned) = nullptr;
  CUresult (*cuMemAddressFree)(CUdeviceptr, size_t) = nullptr;
  CUresult (*cuMemAddressReserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr,
                                  unsigned long long) = nullptr;
  CUresult (*cuMemCreate)(unsigned long long*, size_t, const hipMemAllocationProp*,
                          unsigned long long) = nullptr;
  CUresult (*cuMemExportToShareableHandle)(void*, unsigned long long, int,
                                           unsigned long long) = nullptr;
  CUresult (*cuMemGetAllocationGranularity)(size_t*, const hipMemAllocationProp*, int) = nullptr;
  CUresult (*cuMemGetInfo)(size_t*, size_t*) = nullptr;
  CUresult (*cuMemHostGetDevicePointer)(CUdeviceptr*, void*, unsigned) = nullptr;
  CUresult (*cuMemHostRegister)(void*, size_t, unsigned) = nullptr;
  CUresult (*cuMemHostUnregister)(void*) = nullptr;
  CUresult (*cuMemImportFromShareableHandle)(unsigned long long*, void*, int) = nullptr;
  CUresult (*cuMemMap)(CUdeviceptr, size_t, size_t, unsigned long long,
                       unsigned long long) = nullptr;
  CUresult (*cuMemRelease)(unsigned long long) = nullptr;
  CUresult (*cuMemSetAccess)(CUdeviceptr, size_t, const hipMemAccessDesc*, size_t) = nullptr;
  CUresult (*cuMemUnmap)(CUdeviceptr, size_t) = nullptr;
  CUresult (*cuMemcpyAsync)(CUdeviceptr, CUdeviceptr, size_t, CUstream) = nullptr;
  CUresult (*cuMemsetD8Async)(CUdeviceptr, unsigned char, size_t, CUstream) = nullptr;
  CUresult (*cuStreamCreate)(CUstream*, unsigned) = nullptr;
  CUresult (*cuStreamDestroy)(CUstream) = nullptr;
  CUresult (*cuStreamSynchronize)(CUstream) = nullptr;

  // Null where the library has none.
  CUresult (*cuMemGetAddressRange)(CUdeviceptr*, size_t*, CUdeviceptr) = nullptr;
  CUresult (*cuMemGetAllocationPropertiesFromHandle)(hipMemAllocationProp*,
                                                     unsigned long long) = nullptr;
  CUresult (*cuMemRetainAllocationHandle)(unsigned long long*, void*) = nullptr;
  CUresult (*cuThreadExchangeStreamCaptureMode)(int*) = nullptr;
};

class HipOnCuda final : public HipApi {
 public:
  // `library_path`: empty for the system's libcuda.so.1. kNotFound: no such library.
  // kFailedPrecondition: too old.
  static absl::StatusOr<std::unique_ptr<HipApi>> Open(const std::string& library_path);
  ~HipOnCuda() override;

  hipError_t hipInit(unsigned flags) override { return f_.cuInit(flags); }
  hipError_t hipRuntimeGetVersion(int* version) override { return f_.cuDriverGetVersion(version); }
  const char* hipGetErrorName(hipError_t error) override {
    const char* text = nullptr;
    return f_.cuGetErrorName(error, &text) == hipSuccess && text != nullptr ? text : "unknown";
  }
  const char* hipGetErrorString(hipError_t error) override {
    const char* text = nullptr;
    return f_.cuGetErrorString(error, &text) == hipSuccess && text != nullptr ? text : "unknown";
  }

  hipError_t hipGetDeviceCount(int* count) override { return f_.cuDeviceGetCount(count); }
  hipError_t hipDeviceGetName(char* name, int bytes, int device) override {
    CUdevice d = 0;
    const CUresult error = f_.cuDeviceGet(&d, device);
    return error != hipSuccess ? error : f_.cuDeviceGetName(name, bytes, d);
  }
  hipError_t DeviceUuid(int device, std::string* text) override;
  hipError_t hipDeviceTotalMem(size_t* bytes, int device) override {
    CUdevice d = 0;
    const CUresult error = f_.cuDeviceGet(&d, device);
    return error != hipSuccess ? error : f_.cuDeviceTotalMem(bytes, d);
  }
  hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) override {
    CUdevice d = 0, p = 0;
    CUresult error = f_.cuDeviceGet(&d, device);
    if (error == hipSuccess) error = f_.cuDeviceGet(&p, peer);
    return error != hipSuccess ? error : f_.cuDeviceCanAccessPeer(can, d, p);
  }
  bool HasExportableMemory(int device) override;

  hipError_t hipSetDevice(int device) override {
    CUcontext context = nullptr;
    const CUresult error = Retain(device, &context);
    return error != hipSuccess ? error : f_.cuCtxSetCurrent(context);
  }
  // A CUdevice is its ordinal.
  hipError_t hipGetDevice(int* device) override {
    if (f_.cuCtxGetDevice(device) != hipSuccess) *device = -1;
    return hipSuccess;
  }
  hipError_t PushDevice(int device, int* previous) override {
    CUcontext context = nullptr;
    const CUresult error = Retain(device, &context);
    return error != hipSuccess ? error : f_.cuCtxPushCurrent(context);
  }
  hipError_t PopDevice(int previous) override {
    CUcontext context = nullptr;
    return f_.cuCtxPopCurrent(&context);
  }
  hipError_t DeviceMemGetInfo(int device, size_t* free_bytes, size_t* total_bytes) override;

  hipError_t hipMemGetAllocationGranularity(size_t* granularity, const hipMemAllocationProp* prop,
                                            int option) override {
    return f_.cuMemGetAllocationGranularity(granularity, prop, option);
  }
  hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* handle, size_t bytes,
                          const hipMemAllocationProp* prop, unsigned long long flags) override {
    unsigned long long h = 0;
    const CUresult error = f_.cuMemCreate(&h, bytes, prop, flags);
    *handle = h;
    return error;
  }
  hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle) override {
    return f_.cuMemRelease(handle);
  }
  hipError_t hipMemExportToShareableHandle(void* shareable, hipMemGenericAllocationHandle_t handle,
                                           int type, unsigned long long flags) override {
    return f_.cuMemExportToShareableHandle(shareable, handle, type, flags);
  }
  hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* handle,
                                             void* os_handle, int type) override {
    unsigned long long h = 0;
    const CUresult error = f_.cuMemImportFromShareableHandle(&h, os_handle, type);
    *handle = h;
    return error;
  }
  hipError_t hipMemAddressReserve(void** address, size_t bytes, size_t alignment, void* wanted,
                                  unsigned long long flags) override {
    CUdeviceptr at = 0;
    const CUresult error =
        f_.cuMemAddressReserve(&at, bytes, alignment, reinterpret_cast<CUdeviceptr>(wanted), flags);
    *address = reinterpret_cast<void*>(at);
    return error;
  }
  hipError_t hipMemAddressFree(void* address, size_t bytes) override {
    return f_.cuMemAddressFree(reinterpret_cast<CUdeviceptr>(address), bytes);
  }
  hipError_t hipMemMap(void* address, size_t bytes, size_t offset,
                       hipMemGenericAllocationHandle_t handle, unsigned long long flags) override {
    return f_.cuMemMap(reinterpret_cast<CUdeviceptr>(address), bytes, offset, handle, flags);
  }
  hipError_t hipMemUnmap(void* address, size_t bytes) override {
    return f_.cuMemUnmap(reinterpret_cast<CUdeviceptr>(address), bytes);
  }
  hipError_t hipMemSetAccess(void* address, size_t bytes, const hipMemAccessDesc* desc,
                             size_t count) override {
    return f_.cuMemSetAccess(reinterpret_cast<CUdeviceptr>(address), bytes, desc, count);
  }

  hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* handle,
                                          void* address) override {
    if (f_.cuMemRetainAllocationHandle == nullptr) return hipErrorNotSupported;
    unsigned long long h = 0;
    const CUresult error = f_.cuMemRetainAllocationHandle(&h, address);
    *handle = h;
    return error;
  }
  hipError_t hipMemGetAllocationPropertiesFromHandle(
      hipMemAllocationProp* prop, hipMemGenericAllocationHandle_t handle) override {
    return f_.cuMemGetAllocationPropertiesFromHandle == nullptr
               ? hipErrorNotSupported
               : f_.cuMemGetAllocationPropertiesFromHandle(prop, handle);
  }
  hipError_t hipMemGetAddressRange(void** base, size_t* bytes, void* address) override {
    if (f_.cuMemGetAddressRange == nullptr) return hipErrorNotSupported;
    CUdeviceptr at = 0;
    const CUresult error =
        f_.cuMemGetAddressRange(&at, bytes, reinterpret_cast<CUdeviceptr>(address));
    *base = reinterpret_cast<void*>(at);
    return error;
  }

  hipError_t hipHostRegister(void* host, size_t bytes, unsigned flags) override {
    return f_.cuMemHostRegister(host, bytes, flags);
  }
  hipError_t hipHostUnregister(void* host) override { return f_.cuMemHostUnregister(host); }
  hipError_t hipHostGetDevicePointer(void** device, void* host, unsigned flags) override {
    CUdeviceptr at = 0;
    const CUresult error = f_.cuMemHostGetDevicePointer(&at, host, flags);
    *device = reinterpret_cast<void*>(at);
    return error;
  }

  hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) override {
    return f_.cuStreamCreate(stream, flags);
  }
  hipError_t hipStreamDestroy(hipStream_t stream) override { return f_.cuStreamDestroy(stream); }
  hipError_t hipStreamSynchronize(hipStream_t stream) override {
    return f_.cuStreamSynchronize(stream);
  }
  hipError_t hipThreadExchangeStreamCaptureMode(int* mode) override {
    return f_.cuThreadExchangeStreamCaptureMode == nullptr
               ? hipErrorNotSupported
               : f_.cuThreadExchangeStreamCaptureMode(mode);
  }
  hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipStream_t stream) override {
    return f_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                            bytes, stream);
  }
  hipError_t hipMemsetAsync(void* address, int value, size_t bytes, hipStream_t stream) override {
    return f_.cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(address),
                              static_cast<unsigned char>(value), bytes, stream);
  }

 private:
  // The management library, which tells of a device's memory without a context on it.
  struct Management;
  static constexpr int kMaxDevices = 64;

  explicit HipOnCuda(Library library);
  absl::Status LoadAll();
  CUresult Retain(int device, CUcontext* context) ABSL_LOCKS_EXCLUDED(mu_);

  Library library_;
  CudaFunctions f_;
  absl::Mutex mu_;
  std::unique_ptr<Management> management_ ABSL_GUARDED_BY(mu_);  // opened when first asked
  std::array<CUcontext, kMaxDevices> contexts_ ABSL_GUARDED_BY(mu_) = {};
};

}  // namespace iris::driver
