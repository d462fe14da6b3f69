// HIP, as far as this folder uses it: types, constants and entry points declared here, so that no
// vendor's header or toolkit is needed to build. Filled in by libamdhip64 (hip_native.h) or,
// translated, by libcuda (hip_on_cuda.h).
//
// Names, arguments and numbers are HIP's. Both vendors use the same numbers for errors and flags,
// and the same layout for the structs below, as far as they are used here; vendor_headers_test.py
// compares them with the vendors' headers. Implementations are thread-safe, as the libraries are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace iris::driver {

using hipError_t = int;
using hipStream_t = void*;
// A pointer or a number: of 8 bytes in both libraries.
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
inline constexpr hipError_t hipErrorIllegalAddress = 700;
inline constexpr hipError_t hipErrorHostMemoryAlreadyRegistered = 712;
inline constexpr hipError_t hipErrorHostMemoryNotRegistered = 713;
inline constexpr hipError_t hipErrorLaunchFailure = 719;
inline constexpr hipError_t hipErrorNotSupported = 801;
inline constexpr hipError_t hipErrorUnknown = 999;

inline constexpr int hipMemAllocationTypePinned = 1;
inline constexpr int hipMemAllocationTypeUncached = 0x40000000;
inline constexpr int hipMemHandleTypePosixFileDescriptor = 1;
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

class HipApi {
 public:
  virtual ~HipApi() = default;

  virtual hipError_t hipInit(unsigned flags) = 0;
  // hip: major * 10'000'000 + minor * 100'000 + patch; cuda: major * 1000 + minor * 10. Before
  // hipInit.
  virtual hipError_t hipRuntimeGetVersion(int* version) = 0;
  virtual const char* hipGetErrorName(hipError_t error) = 0;
  virtual const char* hipGetErrorString(hipError_t error) = 0;

  virtual hipError_t hipGetDeviceCount(int* count) = 0;
  virtual hipError_t hipDeviceGetName(char* name, int bytes, int device) = 0;
  // As the vendor's tools print it: "GPU-…".
  virtual hipError_t DeviceUuid(int device, std::string* text) = 0;
  virtual hipError_t hipDeviceTotalMem(size_t* bytes, int device) = 0;
  virtual hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) = 0;

  // The calling thread's device; cuda: its primary context, which lives as long as this object.
  // hipGetDevice gives -1 if the thread has none.
  virtual hipError_t hipSetDevice(int device) = 0;
  virtual hipError_t hipGetDevice(int* device) = 0;
  // As hipSetDevice, until PopDevice with what PushDevice gave. HIP has no such pair.
  virtual hipError_t PushDevice(int device, int* previous) = 0;
  virtual hipError_t PopDevice(int previous) = 0;

  // Of a device that need not be current. hipErrorInvalidContext: the library does not say without
  // a context.
  virtual hipError_t DeviceMemGetInfo(int device, size_t* free_bytes, size_t* total_bytes) = 0;
  // False if the library says that the device has no memory that can be mapped and exported.
  virtual bool HasExportableMemory(int device) = 0;

  virtual hipError_t hipMemGetAllocationGranularity(size_t* granularity,
                                                    const hipMemAllocationProp* prop,
                                                    int option) = 0;
  virtual hipError_t hipMemCreate(hipMemGenericAllocationHandle_t* handle, size_t bytes,
                                  const hipMemAllocationProp* prop, unsigned long long flags) = 0;
  virtual hipError_t hipMemRelease(hipMemGenericAllocationHandle_t handle) = 0;
  virtual hipError_t hipMemExportToShareableHandle(void* shareable,
                                                   hipMemGenericAllocationHandle_t handle, int type,
                                                   unsigned long long flags) = 0;
  virtual hipError_t hipMemImportFromShareableHandle(hipMemGenericAllocationHandle_t* handle,
                                                     void* os_handle, int type) = 0;
  virtual hipError_t hipMemAddressReserve(void** address, size_t bytes, size_t alignment,
                                          void* wanted, unsigned long long flags) = 0;
  virtual hipError_t hipMemAddressFree(void* address, size_t bytes) = 0;
  virtual hipError_t hipMemMap(void* address, size_t bytes, size_t offset,
                               hipMemGenericAllocationHandle_t handle,
                               unsigned long long flags) = 0;
  virtual hipError_t hipMemUnmap(void* address, size_t bytes) = 0;
  virtual hipError_t hipMemSetAccess(void* address, size_t bytes, const hipMemAccessDesc* desc,
                                     size_t count) = 0;

  // What is behind an address. Libraries may lack these three: hipErrorNotSupported. The handle
  // counts as one more hold on the memory, to be released, unless Quirks::retain_is_not_counted.
  // hipErrorInvalidValue: not memory of hipMemCreate.
  virtual hipError_t hipMemRetainAllocationHandle(hipMemGenericAllocationHandle_t* handle,
                                                  void* address) = 0;
  virtual hipError_t hipMemGetAllocationPropertiesFromHandle(
      hipMemAllocationProp* prop, hipMemGenericAllocationHandle_t handle) = 0;
  // Of memory of hipMemCreate: the one allocation, where it is mapped.
  virtual hipError_t hipMemGetAddressRange(void** base, size_t* bytes, void* address) = 0;

  virtual hipError_t hipHostRegister(void* host, size_t bytes, unsigned flags) = 0;
  virtual hipError_t hipHostUnregister(void* host) = 0;
  virtual hipError_t hipHostGetDevicePointer(void** device, void* host, unsigned flags) = 0;

  // Streams belong to the current device, and are used with it current. Copies are between any two
  // kinds of memory.
  virtual hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) = 0;
  virtual hipError_t hipStreamDestroy(hipStream_t stream) = 0;
  virtual hipError_t hipStreamSynchronize(hipStream_t stream) = 0;
  virtual hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes,
                                    hipStream_t stream) = 0;
  virtual hipError_t hipMemsetAsync(void* address, int value, size_t bytes, hipStream_t stream) = 0;

  // What the calling thread may do while a stream is being captured: *mode, a hipStreamCaptureMode,
  // and the thread's until now are exchanged. Libraries may lack it: hipErrorNotSupported.
  virtual hipError_t hipThreadExchangeStreamCaptureMode(int* mode) = 0;
};

// While a program captures a stream for all threads, the library refuses calls of any thread that
// could wait for what is captured or change what it uses, such as mapping memory, and the capture
// fails as well. The driver's own calls touch nothing that is captured, and say so while one of
// these lives. Thread: the one that made it.
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
  // For one call: see CaptureSafeApi.
  HipApi* operator->() { return &api_; }

 private:
  HipApi& api_;
  int mode_ = hipStreamCaptureModeRelaxed;
  bool exchanged_ = false;
};

// Owns a HipApi; each call through `->` is one of OutsideCaptures. `*` gives the bare one.
class CaptureSafeApi {
 public:
  explicit CaptureSafeApi(std::unique_ptr<HipApi> api) : api_(std::move(api)) {}
  OutsideCaptures operator->() const { return OutsideCaptures(*api_); }
  HipApi& operator*() const { return *api_; }

 private:
  const std::unique_ptr<HipApi> api_;
};

}  // namespace iris::driver
