// Compares what this folder declares of the vendors' libraries with the vendors' own headers.
// Compiled, never run, by vendor_headers_test.py, with one of -DWITH_CUDA and -DWITH_HIP.
#include <cstddef>
#include <type_traits>

#if defined(WITH_CUDA)
#include <cuda.h>
#elif defined(WITH_HIP)
#include <hip/hip_runtime_api.h>
// Macros there, constants here.
namespace {
constexpr unsigned kTheirPortable = hipHostRegisterPortable;
constexpr unsigned kTheirMapped = hipHostRegisterMapped;
constexpr unsigned kTheirNonBlocking = hipStreamNonBlocking;
}  // namespace
#undef hipHostRegisterPortable
#undef hipHostRegisterMapped
#undef hipHostRegisterReadOnly
#undef hipStreamNonBlocking
#endif

#include "device/driver/hip_api.h"

namespace ours = iris::driver;

namespace {

// Types that are passed alike, though they have different names here and there: by size and kind.
template <typename A, typename B>
constexpr bool kSameParameter = (std::is_pointer_v<A> && std::is_pointer_v<B>) ||
                                (!std::is_floating_point_v<A> && !std::is_floating_point_v<B> &&
                                 (std::is_pointer_v<A> || std::is_integral_v<A> ||
                                  std::is_enum_v<A>)&&(std::is_pointer_v<B> ||
                                                       std::is_integral_v<B> ||
                                                       std::is_enum_v<B>)&&sizeof(A) == sizeof(B));

// The targets of pointers must also have one size, or be void, or of unknown size.
template <typename T, typename = void>
constexpr size_t kSizeBehind = 0;
template <typename T>
constexpr size_t kSizeBehind<T, std::void_t<decltype(sizeof(std::remove_pointer_t<T>))>> =
    std::is_void_v<std::remove_pointer_t<T>> ? 0 : sizeof(std::remove_pointer_t<T>);
template <typename A, typename B>
constexpr bool kSameBehind =
    !std::is_pointer_v<A> || !std::is_pointer_v<B> || kSizeBehind<A> == 0 || kSizeBehind<B> == 0 ||
    kSizeBehind<A> == kSizeBehind<B>;

template <typename A, typename B>
struct SameFunction : std::false_type {};
template <typename RA, typename... PA, typename RB, typename... PB>
struct SameFunction<RA (*)(PA...), RB (*)(PB...)> {
  template <typename... P>
  struct List {};
  template <typename A, typename B>
  struct Pairs : std::false_type {};
  template <typename... A, typename... B>
  struct Pairs<List<A...>, List<B...>> {
    static constexpr bool value = ((kSameParameter<A, B> && kSameBehind<A, B>)&&...);
  };
  static constexpr bool Value() {
    if constexpr (sizeof...(PA) != sizeof...(PB)) {
      return false;
    } else {
      return kSameParameter<RA, RB> && Pairs<List<PA...>, List<PB...>>::value;
    }
  }
  static constexpr bool value = Value();
};

#define IRIS_SAME_NUMBER(mine, theirs) \
  static_assert(static_cast<long long>(ours::mine) == static_cast<long long>(theirs), #theirs)
#define IRIS_SAME_FIELD(mine, theirs, field, their_field) \
  static_assert(offsetof(mine, field) == offsetof(theirs, their_field), #their_field)

#if defined(WITH_CUDA)

#define IRIS_TEXT_OF(name) #name
#define IRIS_TEXT(name) IRIS_TEXT_OF(name)
constexpr bool Same(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}
// The header renames a function to the version that it declares: that is the name to look up. (It
// renames members of CudaOnlyFunctions with it.)
#define IRIS_SAME_CUDA(table, member, name, suffix)                                      \
  static_assert(Same(IRIS_TEXT(name), #name suffix), #name " has another version here"); \
  static_assert(SameFunction<decltype(ours::table::member), decltype(&::name)>::value, #name)

IRIS_SAME_CUDA(CudaOnlyFunctions, cuCtxGetDevice, cuCtxGetDevice, "");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuCtxPopCurrent, cuCtxPopCurrent, "_v2");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuCtxPushCurrent, cuCtxPushCurrent, "_v2");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuCtxSetCurrent, cuCtxSetCurrent, "");
IRIS_SAME_CUDA(HipFunctions, hipDeviceCanAccessPeer, cuDeviceCanAccessPeer, "");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuDeviceGetAttribute, cuDeviceGetAttribute, "");
IRIS_SAME_CUDA(HipFunctions, hipGetDeviceCount, cuDeviceGetCount, "");
IRIS_SAME_CUDA(HipFunctions, hipDeviceGetName, cuDeviceGetName, "");
IRIS_SAME_CUDA(HipFunctions, hipDeviceGetUuid, cuDeviceGetUuid, "_v2");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, "_v2");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, "");
IRIS_SAME_CUDA(HipFunctions, hipDeviceTotalMem, cuDeviceTotalMem, "_v2");
IRIS_SAME_CUDA(HipFunctions, hipRuntimeGetVersion, cuDriverGetVersion, "");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuGetErrorName, cuGetErrorName, "");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuGetErrorString, cuGetErrorString, "");
IRIS_SAME_CUDA(HipFunctions, hipInit, cuInit, "");
IRIS_SAME_CUDA(HipFunctions, hipMemAddressFree, cuMemAddressFree, "");
IRIS_SAME_CUDA(HipFunctions, hipMemAddressReserve, cuMemAddressReserve, "");
IRIS_SAME_CUDA(HipFunctions, hipMemCreate, cuMemCreate, "");
IRIS_SAME_CUDA(HipFunctions, hipMemExportToShareableHandle, cuMemExportToShareableHandle, "");
IRIS_SAME_CUDA(HipFunctions, hipMemGetAddressRange, cuMemGetAddressRange, "_v2");
IRIS_SAME_CUDA(HipFunctions, hipMemGetAllocationGranularity, cuMemGetAllocationGranularity, "");
IRIS_SAME_CUDA(HipFunctions, hipMemGetAllocationPropertiesFromHandle,
               cuMemGetAllocationPropertiesFromHandle, "");
IRIS_SAME_CUDA(HipFunctions, hipMemGetInfo, cuMemGetInfo, "_v2");
IRIS_SAME_CUDA(HipFunctions, hipHostGetDevicePointer, cuMemHostGetDevicePointer, "_v2");
IRIS_SAME_CUDA(HipFunctions, hipHostRegister, cuMemHostRegister, "_v2");
IRIS_SAME_CUDA(HipFunctions, hipHostUnregister, cuMemHostUnregister, "");
IRIS_SAME_CUDA(HipFunctions, hipMemImportFromShareableHandle, cuMemImportFromShareableHandle, "");
IRIS_SAME_CUDA(HipFunctions, hipMemMap, cuMemMap, "");
IRIS_SAME_CUDA(HipFunctions, hipMemRelease, cuMemRelease, "");
IRIS_SAME_CUDA(HipFunctions, hipMemRetainAllocationHandle, cuMemRetainAllocationHandle, "");
IRIS_SAME_CUDA(HipFunctions, hipMemSetAccess, cuMemSetAccess, "");
IRIS_SAME_CUDA(HipFunctions, hipMemUnmap, cuMemUnmap, "");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuMemcpy2DAsync, cuMemcpy2DAsync, "_v2");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuMemcpyAsync, cuMemcpyAsync, "");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuMemsetD8Async, cuMemsetD8Async, "");
IRIS_SAME_CUDA(HipFunctions, hipStreamCreateWithFlags, cuStreamCreate, "");
IRIS_SAME_CUDA(HipFunctions, hipStreamDestroy, cuStreamDestroy, "_v2");
IRIS_SAME_CUDA(HipFunctions, hipStreamQuery, cuStreamQuery, "");
IRIS_SAME_CUDA(HipFunctions, hipStreamSynchronize, cuStreamSynchronize, "");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuStreamWriteValue32, cuStreamWriteValue32, "_v2");
IRIS_SAME_CUDA(CudaOnlyFunctions, cuStreamWriteValue64, cuStreamWriteValue64, "_v2");
IRIS_SAME_CUDA(HipFunctions, hipThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode,
               "");

IRIS_SAME_NUMBER(hipErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
IRIS_SAME_NUMBER(hipErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
IRIS_SAME_NUMBER(hipErrorNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
IRIS_SAME_NUMBER(hipErrorDeinitialized, CUDA_ERROR_DEINITIALIZED);
IRIS_SAME_NUMBER(hipErrorNoDevice, CUDA_ERROR_NO_DEVICE);
IRIS_SAME_NUMBER(hipErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
IRIS_SAME_NUMBER(hipErrorInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
IRIS_SAME_NUMBER(hipErrorECCNotCorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
IRIS_SAME_NUMBER(hipErrorPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
IRIS_SAME_NUMBER(hipErrorOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
IRIS_SAME_NUMBER(hipErrorInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
IRIS_SAME_NUMBER(hipErrorNotFound, CUDA_ERROR_NOT_FOUND);
IRIS_SAME_NUMBER(hipErrorNotReady, CUDA_ERROR_NOT_READY);
IRIS_SAME_NUMBER(hipErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
IRIS_SAME_NUMBER(hipErrorHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
IRIS_SAME_NUMBER(hipErrorHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
IRIS_SAME_NUMBER(hipErrorLaunchFailure, CUDA_ERROR_LAUNCH_FAILED);
IRIS_SAME_NUMBER(hipErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED);
IRIS_SAME_NUMBER(hipErrorUnknown, CUDA_ERROR_UNKNOWN);
IRIS_SAME_NUMBER(hipMemAllocationTypePinned, CU_MEM_ALLOCATION_TYPE_PINNED);
IRIS_SAME_NUMBER(hipMemHandleTypePosixFileDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
#if CUDA_VERSION >= 12040
IRIS_SAME_NUMBER(hipMemHandleTypeFabric, CU_MEM_HANDLE_TYPE_FABRIC);
IRIS_SAME_NUMBER(kCudaHandleTypeFabricSupported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
static_assert(sizeof(CUmemFabricHandle) == 64);
#endif
IRIS_SAME_NUMBER(hipMemLocationTypeDevice, CU_MEM_LOCATION_TYPE_DEVICE);
IRIS_SAME_NUMBER(hipMemAccessFlagsProtRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
IRIS_SAME_NUMBER(hipMemAccessFlagsProtReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
IRIS_SAME_NUMBER(hipMemAllocationGranularityRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
IRIS_SAME_NUMBER(hipHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
IRIS_SAME_NUMBER(hipHostRegisterMapped, CU_MEMHOSTREGISTER_DEVICEMAP);
IRIS_SAME_NUMBER(hipHostRegisterReadOnly, CU_MEMHOSTREGISTER_READ_ONLY);
IRIS_SAME_NUMBER(hipStreamNonBlocking, CU_STREAM_NON_BLOCKING);
IRIS_SAME_NUMBER(hipStreamCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
IRIS_SAME_NUMBER(kCudaVirtualMemoryManagementSupported,
                 CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
IRIS_SAME_NUMBER(kCudaHandleTypePosixFileDescriptorSupported,
                 CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);

// hip_status.cc has these as bare numbers.
static_assert(CUDA_ERROR_STUB_LIBRARY == 34);
static_assert(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER == 36);
static_assert(CUDA_ERROR_DEVICE_UNAVAILABLE == 46);
static_assert(CUDA_ERROR_NVLINK_UNCORRECTABLE == 220);
static_assert(CUDA_ERROR_CONTAINED == 226);
static_assert(CUDA_ERROR_LAUNCH_TIMEOUT == 702);
static_assert(CUDA_ERROR_CONTEXT_IS_DESTROYED == 709);
static_assert(CUDA_ERROR_ASSERT == 710);
static_assert(CUDA_ERROR_HARDWARE_STACK_ERROR == 714);
static_assert(CUDA_ERROR_ILLEGAL_INSTRUCTION == 715);
static_assert(CUDA_ERROR_MISALIGNED_ADDRESS == 716);
static_assert(CUDA_ERROR_INVALID_ADDRESS_SPACE == 717);
static_assert(CUDA_ERROR_INVALID_PC == 718);
static_assert(CUDA_ERROR_NOT_PERMITTED == 800);
static_assert(CUDA_ERROR_SYSTEM_NOT_READY == 802);
static_assert(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH == 803);
static_assert(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE == 804);
static_assert(CUDA_ERROR_MPS_CONNECTION_FAILED == 805);
static_assert(CUDA_ERROR_MPS_CLIENT_TERMINATED == 810);

static_assert(sizeof(ours::hipMemAllocationProp) == sizeof(CUmemAllocationProp));
IRIS_SAME_FIELD(ours::hipMemAllocationProp, CUmemAllocationProp, type, type);
IRIS_SAME_FIELD(ours::hipMemAllocationProp, CUmemAllocationProp, requestedHandleTypes,
                requestedHandleTypes);
IRIS_SAME_FIELD(ours::hipMemAllocationProp, CUmemAllocationProp, location, location);
IRIS_SAME_FIELD(ours::hipMemAllocationProp, CUmemAllocationProp, win32HandleMetaData,
                win32HandleMetaData);
IRIS_SAME_FIELD(ours::hipMemAllocationProp, CUmemAllocationProp, allocFlags, allocFlags);
static_assert(sizeof(ours::hipMemLocation) == sizeof(CUmemLocation));
IRIS_SAME_FIELD(ours::hipMemLocation, CUmemLocation, type, type);
IRIS_SAME_FIELD(ours::hipMemLocation, CUmemLocation, id, id);
static_assert(sizeof(ours::hipMemAccessDesc) == sizeof(CUmemAccessDesc));
IRIS_SAME_FIELD(ours::hipMemAccessDesc, CUmemAccessDesc, location, location);
IRIS_SAME_FIELD(ours::hipMemAccessDesc, CUmemAccessDesc, flags, flags);
static_assert(sizeof(ours::hipUUID) == sizeof(CUuuid));
static_assert(sizeof(ours::hipMemGenericAllocationHandle_t) ==
              sizeof(CUmemGenericAllocationHandle));

#elif defined(WITH_HIP)

#define IRIS_SAME_HIP(table, name) \
  static_assert(SameFunction<decltype(ours::table::name), decltype(&::name)>::value, #name)

IRIS_SAME_HIP(HipFunctions, hipDeviceCanAccessPeer);
IRIS_SAME_HIP(HipFunctions, hipDeviceGetName);
IRIS_SAME_HIP(HipFunctions, hipDeviceGetUuid);
IRIS_SAME_HIP(HipFunctions, hipDeviceTotalMem);
IRIS_SAME_HIP(HipOnlyFunctions, hipGetDevice);
IRIS_SAME_HIP(HipFunctions, hipGetDeviceCount);
IRIS_SAME_HIP(HipOnlyFunctions, hipGetErrorName);
IRIS_SAME_HIP(HipOnlyFunctions, hipGetErrorString);
IRIS_SAME_HIP(HipFunctions, hipHostGetDevicePointer);
IRIS_SAME_HIP(HipFunctions, hipHostRegister);
IRIS_SAME_HIP(HipFunctions, hipHostUnregister);
IRIS_SAME_HIP(HipFunctions, hipInit);
IRIS_SAME_HIP(HipFunctions, hipMemAddressFree);
IRIS_SAME_HIP(HipFunctions, hipMemAddressReserve);
IRIS_SAME_HIP(HipFunctions, hipMemCreate);
IRIS_SAME_HIP(HipFunctions, hipMemExportToShareableHandle);
IRIS_SAME_HIP(HipOnlyFunctions, hipMemGetAccess);
IRIS_SAME_HIP(HipFunctions, hipMemGetAddressRange);
IRIS_SAME_HIP(HipFunctions, hipMemGetAllocationGranularity);
IRIS_SAME_HIP(HipFunctions, hipMemGetAllocationPropertiesFromHandle);
IRIS_SAME_HIP(HipFunctions, hipMemGetInfo);
IRIS_SAME_HIP(HipFunctions, hipMemImportFromShareableHandle);
IRIS_SAME_HIP(HipFunctions, hipMemMap);
IRIS_SAME_HIP(HipFunctions, hipMemRelease);
IRIS_SAME_HIP(HipFunctions, hipMemRetainAllocationHandle);
IRIS_SAME_HIP(HipFunctions, hipMemSetAccess);
IRIS_SAME_HIP(HipFunctions, hipMemUnmap);
IRIS_SAME_HIP(HipOnlyFunctions, hipMemcpyAsync);
IRIS_SAME_HIP(HipOnlyFunctions, hipMemsetAsync);
IRIS_SAME_HIP(HipFunctions, hipRuntimeGetVersion);
IRIS_SAME_HIP(HipOnlyFunctions, hipSetDevice);
IRIS_SAME_HIP(HipFunctions, hipStreamCreateWithFlags);
IRIS_SAME_HIP(HipFunctions, hipStreamDestroy);
IRIS_SAME_HIP(HipFunctions, hipStreamSynchronize);
IRIS_SAME_HIP(HipFunctions, hipThreadExchangeStreamCaptureMode);

IRIS_SAME_NUMBER(hipErrorInvalidValue, ::hipErrorInvalidValue);
IRIS_SAME_NUMBER(hipErrorOutOfMemory, ::hipErrorOutOfMemory);
IRIS_SAME_NUMBER(hipErrorNotInitialized, ::hipErrorNotInitialized);
IRIS_SAME_NUMBER(hipErrorDeinitialized, ::hipErrorDeinitialized);
IRIS_SAME_NUMBER(hipErrorInsufficientDriver, ::hipErrorInsufficientDriver);
IRIS_SAME_NUMBER(hipErrorNoDevice, ::hipErrorNoDevice);
IRIS_SAME_NUMBER(hipErrorInvalidDevice, ::hipErrorInvalidDevice);
IRIS_SAME_NUMBER(hipErrorInvalidContext, ::hipErrorInvalidContext);
IRIS_SAME_NUMBER(hipErrorECCNotCorrectable, ::hipErrorECCNotCorrectable);
IRIS_SAME_NUMBER(hipErrorPeerAccessUnsupported, ::hipErrorPeerAccessUnsupported);
IRIS_SAME_NUMBER(hipErrorOperatingSystem, ::hipErrorOperatingSystem);
IRIS_SAME_NUMBER(hipErrorInvalidHandle, ::hipErrorInvalidHandle);
IRIS_SAME_NUMBER(hipErrorInvalidDevicePointer, ::hipErrorInvalidDevicePointer);
IRIS_SAME_NUMBER(hipErrorNotFound, ::hipErrorNotFound);
IRIS_SAME_NUMBER(hipErrorIllegalAddress, ::hipErrorIllegalAddress);
IRIS_SAME_NUMBER(hipErrorHostMemoryAlreadyRegistered, ::hipErrorHostMemoryAlreadyRegistered);
IRIS_SAME_NUMBER(hipErrorHostMemoryNotRegistered, ::hipErrorHostMemoryNotRegistered);
IRIS_SAME_NUMBER(hipErrorLaunchFailure, ::hipErrorLaunchFailure);
IRIS_SAME_NUMBER(hipErrorNotSupported, ::hipErrorNotSupported);
IRIS_SAME_NUMBER(hipErrorUnknown, ::hipErrorUnknown);
IRIS_SAME_NUMBER(hipMemAllocationTypePinned, ::hipMemAllocationTypePinned);
IRIS_SAME_NUMBER(hipMemHandleTypePosixFileDescriptor, ::hipMemHandleTypePosixFileDescriptor);
IRIS_SAME_NUMBER(hipMemLocationTypeDevice, ::hipMemLocationTypeDevice);
IRIS_SAME_NUMBER(hipMemAccessFlagsProtRead, ::hipMemAccessFlagsProtRead);
IRIS_SAME_NUMBER(hipMemAccessFlagsProtReadWrite, ::hipMemAccessFlagsProtReadWrite);
IRIS_SAME_NUMBER(hipMemAllocationGranularityRecommended, ::hipMemAllocationGranularityRecommended);

static_assert(kTheirPortable == ours::hipHostRegisterPortable);
static_assert(kTheirMapped == ours::hipHostRegisterMapped);
static_assert(kTheirNonBlocking == ours::hipStreamNonBlocking);

static_assert(sizeof(ours::hipMemLocation) == sizeof(::hipMemLocation));
IRIS_SAME_FIELD(ours::hipMemLocation, ::hipMemLocation, type, type);
IRIS_SAME_FIELD(ours::hipMemLocation, ::hipMemLocation, id, id);
static_assert(sizeof(ours::hipMemAccessDesc) == sizeof(::hipMemAccessDesc));
IRIS_SAME_FIELD(ours::hipMemAccessDesc, ::hipMemAccessDesc, location, location);
IRIS_SAME_FIELD(ours::hipMemAccessDesc, ::hipMemAccessDesc, flags, flags);
static_assert(sizeof(ours::hipUUID) == sizeof(::hipUUID));
static_assert(sizeof(ours::hipMemGenericAllocationHandle_t) ==
              sizeof(::hipMemGenericAllocationHandle_t));
// Until 5 this struct had another layout; quirks.cc refuses those versions.
#if HIP_VERSION_MAJOR >= 6
static_assert(sizeof(ours::hipMemAllocationProp) == sizeof(::hipMemAllocationProp));
IRIS_SAME_FIELD(ours::hipMemAllocationProp, ::hipMemAllocationProp, type, type);
IRIS_SAME_FIELD(ours::hipMemAllocationProp, ::hipMemAllocationProp, requestedHandleTypes,
                requestedHandleType);
IRIS_SAME_FIELD(ours::hipMemAllocationProp, ::hipMemAllocationProp, location, location);
IRIS_SAME_FIELD(ours::hipMemAllocationProp, ::hipMemAllocationProp, allocFlags, allocFlags);
#endif
#endif

}  // namespace
