// This header gives the names of HIP that gpu_host.h uses their meaning on the CUDA runtime. C++17.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace iris::backend {

using hipError_t = cudaError_t;
using hipEvent_t = cudaEvent_t;
using hipFuncAttributes = cudaFuncAttributes;
using hipGraph_t = cudaGraph_t;
using hipStreamCaptureMode = cudaStreamCaptureMode;
using hipStreamCaptureStatus = cudaStreamCaptureStatus;
using hipStream_t = cudaStream_t;

inline constexpr auto hipSuccess = cudaSuccess;
inline constexpr auto hipErrorInsufficientDriver = cudaErrorInsufficientDriver;
inline constexpr auto hipErrorInvalidConfiguration = cudaErrorInvalidConfiguration;
inline constexpr auto hipErrorInvalidDevice = cudaErrorInvalidDevice;
inline constexpr auto hipErrorInvalidValue = cudaErrorInvalidValue;
inline constexpr auto hipErrorLaunchOutOfResources = cudaErrorLaunchOutOfResources;
inline constexpr auto hipErrorNoBinaryForGpu = cudaErrorNoKernelImageForDevice;
inline constexpr auto hipErrorNoDevice = cudaErrorNoDevice;
inline constexpr auto hipErrorNotReady = cudaErrorNotReady;
inline constexpr auto hipErrorOutOfMemory = cudaErrorMemoryAllocation;
inline constexpr auto hipErrorStreamCaptureImplicit = cudaErrorStreamCaptureImplicit;
inline constexpr auto hipErrorStreamCaptureInvalidated = cudaErrorStreamCaptureInvalidated;
inline constexpr auto hipErrorStreamCaptureIsolation = cudaErrorStreamCaptureIsolation;
inline constexpr auto hipErrorStreamCaptureMerge = cudaErrorStreamCaptureMerge;
inline constexpr auto hipErrorStreamCaptureUnjoined = cudaErrorStreamCaptureUnjoined;
inline constexpr auto hipErrorStreamCaptureUnmatched = cudaErrorStreamCaptureUnmatched;
inline constexpr auto hipErrorStreamCaptureUnsupported = cudaErrorStreamCaptureUnsupported;
inline constexpr auto hipErrorStreamCaptureWrongThread = cudaErrorStreamCaptureWrongThread;
inline constexpr auto hipDeviceAttributeMultiprocessorCount = cudaDevAttrMultiProcessorCount;
inline constexpr auto hipMemcpyDefault = cudaMemcpyDefault;
inline constexpr auto hipStreamCaptureModeRelaxed = cudaStreamCaptureModeRelaxed;
inline constexpr auto hipStreamCaptureModeThreadLocal = cudaStreamCaptureModeThreadLocal;
inline constexpr auto hipStreamCaptureStatusNone = cudaStreamCaptureStatusNone;
inline constexpr auto hipEventDefault = cudaEventDefault;
inline constexpr auto hipStreamNonBlocking = cudaStreamNonBlocking;
inline constexpr auto hipHostMallocPortable = cudaHostAllocPortable;
inline constexpr auto hipHostMallocMapped = cudaHostAllocMapped;
// Host memory of CUDA is always coherent.
inline constexpr unsigned hipHostMallocCoherent = 0;

inline hipError_t hipDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device);
}
inline hipError_t hipDeviceSynchronize() { return cudaDeviceSynchronize(); }
inline hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return cudaEventCreateWithFlags(event, flags);
}
inline hipError_t hipEventDestroy(hipEvent_t event) { return cudaEventDestroy(event); }
inline hipError_t hipEventElapsedTime(float* ms, hipEvent_t from, hipEvent_t to) {
  return cudaEventElapsedTime(ms, from, to);
}
inline hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return cudaEventRecord(event, stream);
}
inline hipError_t hipEventSynchronize(hipEvent_t event) { return cudaEventSynchronize(event); }
inline hipError_t hipFree(void* p) { return cudaFree(p); }
inline hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, const void* kernel) {
  return cudaFuncGetAttributes(attributes, kernel);
}
inline hipError_t hipGetDevice(int* device) { return cudaGetDevice(device); }
inline hipError_t hipGetDeviceCount(int* count) { return cudaGetDeviceCount(count); }
inline hipError_t hipGetLastError() { return cudaGetLastError(); }
inline hipError_t hipGraphDestroy(hipGraph_t graph) { return cudaGraphDestroy(graph); }
inline hipError_t hipHostFree(void* p) { return cudaFreeHost(p); }
inline hipError_t hipHostMalloc(void** p, size_t bytes, unsigned flags) {
  return cudaHostAlloc(p, bytes, flags);
}
inline hipError_t hipMalloc(void** p, size_t bytes) { return cudaMalloc(p, bytes); }
inline hipError_t hipMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                   size_t width, size_t height, cudaMemcpyKind kind,
                                   hipStream_t stream) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, stream);
}
inline hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                 hipStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, kind, stream);
}
inline hipError_t hipMemsetAsync(void* to, int value, size_t bytes, hipStream_t stream) {
  return cudaMemsetAsync(to, value, bytes, stream);
}
inline hipError_t hipSetDevice(int device) { return cudaSetDevice(device); }
inline hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode) {
  return cudaStreamBeginCapture(stream, mode);
}
inline hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithFlags(stream, flags);
}
inline hipError_t hipStreamDestroy(hipStream_t stream) { return cudaStreamDestroy(stream); }
inline hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph) {
  return cudaStreamEndCapture(stream, graph);
}
inline hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus* status) {
  return cudaStreamIsCapturing(stream, status);
}
inline hipError_t hipStreamQuery(hipStream_t stream) { return cudaStreamQuery(stream); }
inline hipError_t hipStreamSynchronize(hipStream_t stream) { return cudaStreamSynchronize(stream); }
inline hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags) {
  return cudaStreamWaitEvent(stream, event, flags);
}
inline hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode* mode) {
  return cudaThreadExchangeStreamCaptureMode(mode);
}
inline const char* hipGetErrorString(hipError_t error) { return cudaGetErrorString(error); }

}  // namespace iris::backend
