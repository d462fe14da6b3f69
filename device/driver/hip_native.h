// HipNative: HIP's entry points as libamdhip64 has them.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "device/driver/hip_api.h"
#include "device/driver/library.h"

namespace iris::driver {

struct HipFunctions {
  hipError_t (*hipDeviceCanAccessPeer)(int*, int, int) = nullptr;
  hipError_t (*hipDeviceGetName)(char*, int, int) = nullptr;
  hipError_t (*hipDeviceGetUuid)(hipUUID*, int) = nullptr;
  hipError_t (*hipDeviceTotalMem)(size_t*, int) = nullptr;
  hipError_t (*hipGetDevice)(int*) = nullptr;
  hipError_t (*hipGetDeviceCount)(int*) = nullptr;
  const char* (*hipGetErrorName)(hipError_t) = nullptr;
  const char* (*hipGetErrorString)(hipError_t) = nullptr;
  hipError_t (*hipHostGetDevicePointer)(void**, void*, unsigned) = nullptr;
  hipError_t (*hipHostRegister)(void*, size_t, unsigned) = nullptr;
  hipError_t (*hipHostUnregister)(void*) = nullptr;
  hipError_t (*hipInit)(unsigned) = nullptr;
  hipError_t (*hipMemAddressFree)(void*, size_t) = nullptr;
  hipError_t (*hipMemAddressReserve)(void**, size_t, size_t, void*, unsigned long long) = nullptr;
  hipError_t (*hipMemCreate)(hipMemGenericAllocationHandle_t*, size_t, const hipMemAllocationProp*,
                             unsigned long long) = nullptr;
  hipError_t (*hipMemExportToShareableHandle)(void*, hipMemGenericAllocationHandle_t, int,
                                              unsigned long long) = nullptr;
  hipError_t (*hipMemGetAllocationGranularity)(size_t*, const hipMemAllocationProp*, int) = nullptr;
  hipError_t (*hipMemGetInfo)(size_t*, size_t*) = nullptr;
  hipError_t (*hipMemImportFromShareableHandle)(hipMemGenericAllocationHandle_t*, void*,
                                                int) = nullptr;
  hipError_t (*hipMemMap)(void*, size_t, size_t, hipMemGenericAllocationHandle_t,
                          unsigned long long) = nullptr;
  hipError_t (*hipMemRelease)(hipMemGenericAllocationHandle_t) = nullptr;
  hipError_t (*hipMemSetAccess)(void*, size_t, const hipMemAccessDesc*, size_t) = nullptr;
  hipError_t (*hipMemUnmap)(void*, size_t) = nullptr;
  hipError_t (*hipMemcpyAsync)(void*, const void*, size_t, int, hipStream_t) = nullptr;
  hipError_t (*hipMemsetAsync)(void*, int, size_t, hipStream_t) = nullptr;
  hipError_t (*hipRuntimeGetVersion)(int*) = nullptr;
  hipError_t (*hipSetDevice)(int) = nullptr;
  hipError_t (*hipStreamCreateWithFlags)(hipStream_t*, unsigned) = nullptr;
  hipError_t (*hipStreamDestroy)(hipStream_t) = nullptr;
  hipError_t (*hipStreamSynchronize)(hipStream_t) = nullptr;

  // Null where the library has none.
  hipError_t (*hipMemGetAccess)(unsigned long long*, const hipMemLocation*, void*) = nullptr;
  hipError_t (*hipMemGetAddressRange)(void**, size_t*, void*) = nullptr;
  hipError_t (*hipMemGetAllocationPropertiesFromHandle)(hipMemAllocationProp*,
                                                        hipMemGenericAllocationHandle_t) = nullptr;
  hipError_t (*hipMemRetainAllocationHandle)(hipMemGenericAllocationHandle_t*, void*) = nullptr;
  hipError_t (*hipThreadExchangeStreamCaptureMode)(int*) = nullptr;
};

class HipNative final : public HipApi {
 public:
  // `library_path`: empty for the system's libamdhip64. kNotFound: no such library, or no such GPU.
  // kFailedPrecondition: too old.
  static absl::StatusOr<std::unique_ptr<HipApi>> Open(const std::string& library_path);

  hipError_t hipInit(unsigned flags) override { return f_.hipInit(flags); }
  hipError_t hipRuntimeGetVersion(int* version) override {
    return f_.hipRuntimeGetVersion(version);
  }
  const char* hipGetErrorName(hipError_t error) override { return f_.hipGetErrorName(error); }
  const char* hipGetErrorString(hipError_t error) override { return f_.hipGetErrorString(error); }

  hipError_t hipGetDeviceCount(int* count) override { return f_.hipGetDeviceCount(count); }
  hipError_t hipDeviceGetName(char* name, int bytes, int device) override {
    return f_.hipDeviceGetName(name, bytes, device);
  }
  hipError_t DeviceUuid(int device, std::string* text) override;
  hipError_t hipDeviceTotalMem(size_t* bytes, int device) override {
    return f_.hipDeviceTotalMem(bytes, device);
  }
  hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) override {
    return f_.hipDeviceCanAccessPeer(can, device, peer);
  }

  hipError_t hipSetDevice(int device) override { return f_.hipSetDevice(device); }
  hipError_t hipGetDevice(int* device) override { return f_.hipGetDevice(device); }
  hipError_t PushDevice(int device, int* previous) override {
    const hipError_t error = f_.hipGetDevice(previous);
    return error != hipSuccess ? error : f_.hipSetDevice(device);
  }
  hipError_t PopDevice(int previous) override { return f_.hipSetDevice(previous); }
  hipError_t DeviceMemGetInfo(int device, size_t* free_bytes, size_t* total_bytes) override;
  // Every version that Open takes has it; a device that has not makes hipMemCreate fail.
  bool HasExportableMemory(int device) override { return true; }

  hipError_t hipMemGetAllocationGranularity(size_t* granularity, const hipMemAllocationProp* prop,
                                            int option) override {
    return f_.hipMemGetAllocationGranularity(granularity, prop, option);
  }
  hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* handle, size_t bytes,
                          const hipMemAllocationProp* prop, unsigned long long flags) override {
    return f_.hipMemCreate(handle, bytes, prop, flags);
  }
  hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle) override {
    return f_.hipMemRelease(handle);
  }
  hipError_t hipMemExportToShareableHandle(void* shareable, hipMemGenericAllocationHandle_t handle,
                                           int type, unsigned long long flags) override {
    return f_.hipMemExportToShareableHandle(shareable, handle, type, flags);
  }
  hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* handle,
                                             void* os_handle, int type) override {
    return f_.hipMemImportFromShareableHandle(handle, os_handle, type);
  }
  hipError_t hipMemAddressReserve(void** address, size_t bytes, size_t alignment, void* wanted,
                                  unsigned long long flags) override {
    return f_.hipMemAddressReserve(address, bytes, alignment, wanted, flags);
  }
  hipError_t hipMemAddressFree(void* address, size_t bytes) override {
    return f_.hipMemAddressFree(address, bytes);
  }
  hipError_t hipMemMap(void* address, size_t bytes, size_t offset,
                       hipMemGenericAllocationHandle_t handle, unsigned long long flags) override {
    return f_.hipMemMap(address, bytes, offset, handle, flags);
  }
  hipError_t hipMemUnmap(void* address, size_t bytes) override {
    return f_.hipMemUnmap(address, bytes);
  }
  hipError_t hipMemSetAccess(void* address, size_t bytes, const hipMemAccessDesc* desc,
                             size_t count) override {
    return f_.hipMemSetAccess(address, bytes, desc, count);
  }

  hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* handle,
                                          void* address) override;
  hipError_t hipMemGetAllocationPropertiesFromHandle(
      hipMemAllocationProp* prop, hipMemGenericAllocationHandle_t handle) override {
    return f_.hipMemGetAllocationPropertiesFromHandle == nullptr
               ? hipErrorNotSupported
               : f_.hipMemGetAllocationPropertiesFromHandle(prop, handle);
  }
  hipError_t hipMemGetAddressRange(void** base, size_t* bytes, void* address) override {
    return f_.hipMemGetAddressRange == nullptr ? hipErrorNotSupported
                                               : f_.hipMemGetAddressRange(base, bytes, address);
  }

  hipError_t hipHostRegister(void* host, size_t bytes, unsigned flags) override {
    return f_.hipHostRegister(host, bytes, flags);
  }
  hipError_t hipHostUnregister(void* host) override { return f_.hipHostUnregister(host); }
  hipError_t hipHostGetDevicePointer(void** device, void* host, unsigned flags) override {
    return f_.hipHostGetDevicePointer(device, host, flags);
  }

  hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) override {
    return f_.hipStreamCreateWithFlags(stream, flags);
  }
  hipError_t hipStreamDestroy(hipStream_t stream) override { return f_.hipStreamDestroy(stream); }
  hipError_t hipStreamSynchronize(hipStream_t stream) override {
    return f_.hipStreamSynchronize(stream);
  }
  hipError_t hipThreadExchangeStreamCaptureMode(int* mode) override {
    return f_.hipThreadExchangeStreamCaptureMode == nullptr
               ? hipErrorNotSupported
               : f_.hipThreadExchangeStreamCaptureMode(mode);
  }
  hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, hipStream_t stream) override {
    constexpr int kHipMemcpyDefault = 4;
    return f_.hipMemcpyAsync(to, from, bytes, kHipMemcpyDefault, stream);
  }
  hipError_t hipMemsetAsync(void* address, int value, size_t bytes, hipStream_t stream) override {
    return f_.hipMemsetAsync(address, value, bytes, stream);
  }

 private:
  explicit HipNative(Library library) : library_(std::move(library)) {}
  absl::Status LoadAll();

  Library library_;
  HipFunctions f_;
};

}  // namespace iris::driver
