// Looks up HipFunctions by the names that each vendor's library exports.
#include "device/driver/hip_api.h"
#include "device/driver/library.h"

namespace iris::driver {

void HipFunctions::Load(Library& library, BackendKind kind) {
  const bool cuda = kind == BackendKind::kCuda;
#define IRIS_LOAD(name, cuda_name) library.Load(&name, cuda ? cuda_name : #name)
  IRIS_LOAD(hipDeviceCanAccessPeer, "cuDeviceCanAccessPeer");
  IRIS_LOAD(hipDeviceGetName, "cuDeviceGetName");
  IRIS_LOAD(hipDeviceGetUuid, "cuDeviceGetUuid_v2");
  IRIS_LOAD(hipDeviceTotalMem, "cuDeviceTotalMem_v2");
  IRIS_LOAD(hipGetDeviceCount, "cuDeviceGetCount");
  IRIS_LOAD(hipHostGetDevicePointer, "cuMemHostGetDevicePointer_v2");
  IRIS_LOAD(hipHostRegister, "cuMemHostRegister_v2");
  IRIS_LOAD(hipHostUnregister, "cuMemHostUnregister");
  IRIS_LOAD(hipInit, "cuInit");
  IRIS_LOAD(hipMemAddressFree, "cuMemAddressFree");
  IRIS_LOAD(hipMemAddressReserve, "cuMemAddressReserve");
  IRIS_LOAD(hipMemCreate, "cuMemCreate");
  IRIS_LOAD(hipMemExportToShareableHandle, "cuMemExportToShareableHandle");
  IRIS_LOAD(hipMemGetAllocationGranularity, "cuMemGetAllocationGranularity");
  IRIS_LOAD(hipMemGetInfo, "cuMemGetInfo_v2");
  IRIS_LOAD(hipMemImportFromShareableHandle, "cuMemImportFromShareableHandle");
  IRIS_LOAD(hipMemMap, "cuMemMap");
  IRIS_LOAD(hipMemRelease, "cuMemRelease");
  IRIS_LOAD(hipMemSetAccess, "cuMemSetAccess");
  IRIS_LOAD(hipMemUnmap, "cuMemUnmap");
  IRIS_LOAD(hipRuntimeGetVersion, "cuDriverGetVersion");
  IRIS_LOAD(hipStreamCreateWithFlags, "cuStreamCreate");
  IRIS_LOAD(hipStreamDestroy, "cuStreamDestroy_v2");
  IRIS_LOAD(hipStreamQuery, "cuStreamQuery");
  IRIS_LOAD(hipStreamSynchronize, "cuStreamSynchronize");
#undef IRIS_LOAD
#define IRIS_LOAD(name, cuda_name) library.LoadOptional(&name, cuda ? cuda_name : #name)
  IRIS_LOAD(hipMemGetAddressRange, "cuMemGetAddressRange_v2");
  IRIS_LOAD(hipMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle");
  IRIS_LOAD(hipMemRetainAllocationHandle, "cuMemRetainAllocationHandle");
  IRIS_LOAD(hipThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
#undef IRIS_LOAD
}

}  // namespace iris::driver
