// The host half of the GPU backends, with HIP's names; raw_host.h has the contracts. A backend's
// host source includes HIP's header or cuda/hip_on_cuda.h first, and defines the functions that
// differ. A failed call becomes a Result at once, and leaves no "last error" to the program. C++17.
#pragma once

#include <cstdlib>

#include "iris/backend/select.h"
#include "iris/backend/spec.h"

namespace iris::backend {
namespace {

// Each backend defines these three.

// Returns the status code of an error that CodeOf does not translate.
StatusCode RareCodeOf(hipError_t error);
// Makes the graph that raw::LaunchGraph takes. The caller keeps `captured`.
Result MakeGraph(hipGraph_t captured, const raw::StreamHandle& stream, void** graph);
// Allows launches of a loaded kernel to use `bytes` of dynamic shared memory.
Result AllowSharedBytes(const void* kernel, const hipFuncAttributes& attributes, uint32_t bytes);

StatusCode CodeOf(hipError_t error) {
  switch (error) {
    case hipErrorInvalidValue:
    case hipErrorInvalidConfiguration:
    case hipErrorInvalidDevice:
      return StatusCode::kInvalidArgument;
    case hipErrorOutOfMemory:
    case hipErrorLaunchOutOfResources:
      return StatusCode::kResourceExhausted;
    case hipErrorNoDevice:
    case hipErrorInsufficientDriver:
    case hipErrorNoBinaryForGpu:
    case hipErrorStreamCaptureUnsupported:
    case hipErrorStreamCaptureInvalidated:
    case hipErrorStreamCaptureMerge:
    case hipErrorStreamCaptureUnmatched:
    case hipErrorStreamCaptureUnjoined:
    case hipErrorStreamCaptureIsolation:
    case hipErrorStreamCaptureImplicit:
    case hipErrorStreamCaptureWrongThread:
      return StatusCode::kFailedPrecondition;
    default:
      return RareCodeOf(error);
  }
}

// Translates an error and clears the "last error". The text is the runtime's own, which is static.
Result ResultOf(hipError_t error) {
  if (error == hipSuccess) return {};
  (void)hipGetLastError();
  return {CodeOf(error), hipGetErrorString(error)};
}

hipStream_t NativeOf(const raw::StreamHandle& stream) {
  return static_cast<hipStream_t>(stream.native);
}
hipEvent_t EventOf(void* event) { return static_cast<hipEvent_t>(event); }

// Drops an error that cannot be returned.
void Ignore(hipError_t error) { (void)ResultOf(error); }

// While a stream is being captured, the runtime refuses waits, queries and allocations, and the
// capture fails. While this object lives, its thread may make them: none touches captured work.
class OutsideCaptures {
 public:
  OutsideCaptures() { Ignore(hipThreadExchangeStreamCaptureMode(&mode_)); }
  ~OutsideCaptures() { Ignore(hipThreadExchangeStreamCaptureMode(&mode_)); }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  hipStreamCaptureMode mode_ = hipStreamCaptureModeRelaxed;
};

}  // namespace

raw::CurrentDevice::CurrentDevice(int device) {
  if (device < 0 || hipGetDevice(&before_) != hipSuccess || before_ == device) return;
  changed_ = hipSetDevice(device) == hipSuccess;
}
raw::CurrentDevice::~CurrentDevice() {
  if (changed_) (void)hipSetDevice(before_);
}

Result raw::CheckCaller() { return {}; }

uint32_t DeviceCount() {
  int count = 0;
  return ResultOf(hipGetDeviceCount(&count)).ok() ? static_cast<uint32_t>(count) : 0;
}

Result SetDevice(uint32_t index) { return ResultOf(hipSetDevice(static_cast<int>(index))); }

uint32_t CurrentDevice() {
  int device = 0;
  return ResultOf(hipGetDevice(&device)).ok() ? static_cast<uint32_t>(device) : 0;
}

uint32_t ResidentBlocks() { return MultiprocessorCount(); }

uint32_t MultiprocessorCount() {
  int device = 0;
  int count = 0;
  hipError_t error = hipGetDevice(&device);
  if (error == hipSuccess) {
    error = hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device);
  }
  return ResultOf(error).ok() ? static_cast<uint32_t>(count) : 0;
}

Result raw::CreateStream(StreamHandle* out) {
  const OutsideCaptures outside;
  int device = 0;
  hipStream_t native = nullptr;
  hipError_t error = hipGetDevice(&device);
  // Non-blocking, so that work of the application on the default stream does not delay this stream.
  if (error == hipSuccess) error = hipStreamCreateWithFlags(&native, hipStreamNonBlocking);
  if (error == hipSuccess) *out = {native, device};
  return ResultOf(error);
}

void raw::DestroyStream(const StreamHandle& stream) {
  const OutsideCaptures outside;
  Ignore(hipStreamSynchronize(NativeOf(stream)));
  Ignore(hipStreamDestroy(NativeOf(stream)));
}

Result raw::SynchronizeStream(const StreamHandle& stream) {
  const OutsideCaptures outside;
  return ResultOf(hipStreamSynchronize(NativeOf(stream)));
}

Result raw::SynchronizeDevice() {
  const OutsideCaptures outside;
  return ResultOf(hipDeviceSynchronize());
}

bool raw::IsIdle(const StreamHandle& stream) {
  const OutsideCaptures outside;
  const hipError_t error = hipStreamQuery(NativeOf(stream));
  Ignore(error);
  return error != hipErrorNotReady;  // a stream that failed has no more work
}

Result raw::PrepareKernel(const void* kernel, uint32_t shared_bytes) {
  const OutsideCaptures outside;
  hipFuncAttributes attributes;  // the query loads the code
  const hipError_t error = hipFuncGetAttributes(&attributes, kernel);
  if (error != hipSuccess) return ResultOf(error);
  return AllowSharedBytes(kernel, attributes, shared_bytes);
}

Result raw::CopyAsync(void* to, const void* from, uint64_t bytes, const StreamHandle& stream) {
  return ResultOf(hipMemcpyAsync(to, from, bytes, hipMemcpyDefault, NativeOf(stream)));
}

Result raw::CopyRowsAsync(void* to, const void* from, const RowsToCopy& rows,
                          const StreamHandle& stream) {
  // The largest pitch that the platform accepts. Few rows are so long.
  constexpr uint64_t kPitchMaxBytes = 0x7fffffff;
  if (rows.dst_pitch_bytes <= kPitchMaxBytes && rows.src_pitch_bytes <= kPitchMaxBytes) {
    return ResultOf(hipMemcpy2DAsync(to, rows.dst_pitch_bytes, from, rows.src_pitch_bytes,
                                     rows.row_bytes, rows.rows, hipMemcpyDefault,
                                     NativeOf(stream)));
  }
  for (uint64_t row = 0; row < rows.rows; ++row) {
    const Result result = CopyAsync(static_cast<char*>(to) + row * rows.dst_pitch_bytes,
                                    static_cast<const char*>(from) + row * rows.src_pitch_bytes,
                                    rows.row_bytes, stream);
    if (!result.ok()) return result;
  }
  return {};
}

Result raw::FillAsync(void* to, uint8_t value, uint64_t bytes, const StreamHandle& stream) {
  return ResultOf(hipMemsetAsync(to, value, bytes, NativeOf(stream)));
}

bool raw::IsCapturing(const StreamHandle& stream) {
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  Ignore(hipStreamIsCapturing(NativeOf(stream), &status));
  return status != hipStreamCaptureStatusNone;
}

Result raw::BeginCapture(const StreamHandle& stream) {
  // Thread-local, so that calls of other threads meanwhile neither fail nor invalidate the capture.
  return ResultOf(hipStreamBeginCapture(NativeOf(stream), hipStreamCaptureModeThreadLocal));
}

Result raw::EndCapture(const StreamHandle& stream, void** graph) {
  hipGraph_t captured = nullptr;
  if (Result result = ResultOf(hipStreamEndCapture(NativeOf(stream), &captured)); !result.ok()) {
    return result;
  }
  const Result result = MakeGraph(captured, stream, graph);
  Ignore(hipGraphDestroy(captured));
  return result;
}

Result raw::CreateEvent(void** out) {
  const OutsideCaptures outside;
  hipEvent_t native = nullptr;
  const hipError_t error = hipEventCreateWithFlags(&native, hipEventDefault);
  if (error == hipSuccess) *out = native;
  return ResultOf(error);
}

void raw::DestroyEvent(void* event) {
  const OutsideCaptures outside;
  Ignore(hipEventDestroy(EventOf(event)));
}

Result raw::RecordEvent(void* event, const StreamHandle& stream) {
  return ResultOf(hipEventRecord(EventOf(event), NativeOf(stream)));
}

Result raw::WaitForEvent(const StreamHandle& stream, void* event) {
  return ResultOf(hipStreamWaitEvent(NativeOf(stream), EventOf(event), 0));
}

Result raw::ElapsedNanoseconds(void* from, void* to, uint64_t* out) {
  const OutsideCaptures outside;
  hipError_t error = hipEventSynchronize(EventOf(from));
  if (error == hipSuccess) error = hipEventSynchronize(EventOf(to));
  float milliseconds = 0;
  if (error == hipSuccess) error = hipEventElapsedTime(&milliseconds, EventOf(from), EventOf(to));
  if (error == hipSuccess) *out = raw::NanosecondsOf(milliseconds);
  return ResultOf(error);
}

void* raw::MallocDevice(uint64_t bytes) {
  const OutsideCaptures outside;
  void* p = nullptr;
  return ResultOf(hipMalloc(&p, bytes)).ok() ? p : nullptr;
}

void raw::FreeDevice(void* p) {
  const OutsideCaptures outside;
  Ignore(hipFree(p));
}

// Coherent, because the host and kernels signal each other by words in this memory.
void* raw::MallocHost(uint64_t bytes) {
  const OutsideCaptures outside;
  void* p = nullptr;
  const unsigned flags = hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent;
  return ResultOf(hipHostMalloc(&p, bytes, flags)).ok() ? p : nullptr;
}

void raw::FreeHost(void* p) {
  const OutsideCaptures outside;
  Ignore(hipHostFree(p));
}

bool raw::KernelsReach(const void* p) {
  const OutsideCaptures outside;
  hipPointerAttribute_t attributes = {};
  return ResultOf(hipPointerGetAttributes(&attributes, p)).ok() && attributes.devicePointer == p;
}

}  // namespace iris::backend
