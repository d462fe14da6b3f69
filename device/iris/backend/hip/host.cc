// The host half of the hip backend, on the HIP runtime. raw_host.h has the contracts.
#include <hip/hip_runtime_api.h>

#include <cstdlib>

#include "iris/backend/select.h"
#include "iris/backend/spec.h"

namespace iris::backend {
namespace {

StatusCode CodeOf(hipError_t error) {
  switch (error) {
    case hipSuccess:
      return StatusCode::kOk;
    case hipErrorInvalidValue:
    case hipErrorInvalidConfiguration:
    case hipErrorInvalidDevice:
    case hipErrorInvalidDeviceFunction:
    case hipErrorInvalidDevicePointer:
    case hipErrorInvalidHandle:
    case hipErrorCooperativeLaunchTooLarge:
      return StatusCode::kInvalidArgument;
    case hipErrorOutOfMemory:
    case hipErrorLaunchOutOfResources:
      return StatusCode::kResourceExhausted;
    case hipErrorNoDevice:
    case hipErrorNotInitialized:
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
    case hipErrorNotSupported:
      return StatusCode::kUnimplemented;
    default:
      return StatusCode::kInternal;
  }
}

// The runtime's own text, which is static. Clears its memory of the last error.
Result Translate(hipError_t error) {
  if (error == hipSuccess) return {};
  (void)hipGetLastError();
  return {CodeOf(error), hipGetErrorString(error)};
}

hipStream_t NativeOf(const raw::StreamHandle& stream) {
  return static_cast<hipStream_t>(stream.native);
}
hipEvent_t EventOf(void* event) { return static_cast<hipEvent_t>(event); }

// For what a caller cannot be told.
void Ignore(hipError_t error) { (void)Translate(error); }

bool GetDevice(int* device) { return hipGetDevice(device) == hipSuccess; }
bool UseDevice(int device) { return hipSetDevice(device) == hipSuccess; }
using DeviceScope = raw::CurrentDevice<&GetDevice, &UseDevice>;

// While a stream is being captured, the runtime refuses what could wait for it or change what it
// uses (waits, queries, allocations), and the capture fails: on the thread that captures, or on all
// threads, as its mode says. This library's own waits and allocations never touch what is captured,
// and say so while one of these lives.
class OutsideCaptures {
 public:
  OutsideCaptures() { Ignore(hipThreadExchangeStreamCaptureMode(&mode_)); }
  ~OutsideCaptures() { Ignore(hipThreadExchangeStreamCaptureMode(&mode_)); }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  hipStreamCaptureMode mode_ = hipStreamCaptureModeRelaxed;
};

// A graph, and an event behind its last launch.
struct LaunchableGraph {
  hipGraphExec_t executable = nullptr;
  hipEvent_t launched = nullptr;
};

}  // namespace

Result raw::CheckCaller() { return {}; }

uint32_t DeviceCount() {
  int count = 0;
  return Translate(hipGetDeviceCount(&count)).ok() ? static_cast<uint32_t>(count) : 0;
}

Result SetDevice(uint32_t index) { return Translate(hipSetDevice(static_cast<int>(index))); }

uint32_t CurrentDevice() {
  int device = 0;
  return Translate(hipGetDevice(&device)).ok() ? static_cast<uint32_t>(device) : 0;
}

uint32_t ResidentBlocks() { return MultiprocessorCount(); }

StreamQueues CountQueues() {
  static const uint32_t count = [] {
    constexpr int kUsual = 4;
    const char* const wanted = getenv("GPU_MAX_HW_QUEUES");
    const int n = wanted == nullptr ? kUsual : atoi(wanted);
    return static_cast<uint32_t>(n < 1 ? kUsual : n);
  }();
  return {count,
          "set GPU_MAX_HW_QUEUES to the number of streams in the environment before the program "
          "starts, and use fewer streams"};
}

uint32_t MultiprocessorCount() {
  int device = 0;
  int count = 0;
  if (!Translate(hipGetDevice(&device)).ok() ||
      !Translate(hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device))
           .ok()) {
    return 0;
  }
  return static_cast<uint32_t>(count);
}

// Streams and launches.

Result raw::CreateStream(StreamHandle* out) {
  const OutsideCaptures outside;
  int device = 0;
  if (Result result = Translate(hipGetDevice(&device)); !result.ok()) return result;
  hipStream_t native = nullptr;
  Result result = Translate(hipStreamCreateWithFlags(&native, hipStreamNonBlocking));
  if (result.ok()) *out = {native, device};
  return result;
}

void raw::DestroyStream(const StreamHandle& stream) {
  const OutsideCaptures outside;
  Ignore(hipStreamSynchronize(NativeOf(stream)));
  Ignore(hipStreamDestroy(NativeOf(stream)));
}

Result raw::SynchronizeStream(const StreamHandle& stream) {
  const OutsideCaptures outside;
  return Translate(hipStreamSynchronize(NativeOf(stream)));
}

Result raw::SynchronizeDevice() {
  const OutsideCaptures outside;
  return Translate(hipDeviceSynchronize());
}

bool raw::IsIdle(const StreamHandle& stream) {
  const OutsideCaptures outside;
  const hipError_t error = hipStreamQuery(NativeOf(stream));
  Ignore(error);
  return error != hipErrorNotReady;  // a stream that failed does nothing any more
}

Result raw::PrepareKernel(const void* kernel, uint32_t shared_bytes) {
  const OutsideCaptures outside;
  hipFuncAttributes attributes;  // asking for them loads the code
  Result result = Translate(hipFuncGetAttributes(&attributes, kernel));
  if (!result.ok() || shared_bytes == 0) return result;
  return Translate(hipFuncSetAttribute(kernel, hipFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared_bytes)));
}

Result raw::LaunchKernel(const LaunchConfig& config, const StreamHandle& stream, const void* kernel,
                         void** arguments) {
  const DeviceScope device(stream.device);
  return Translate(hipLaunchKernel(kernel, dim3(config.grid), dim3(config.block), arguments,
                                   config.shared_bytes, NativeOf(stream)));
}

Result raw::CopyAsync(void* to, const void* from, uint64_t bytes, const StreamHandle& stream) {
  return Translate(hipMemcpyAsync(to, from, bytes, hipMemcpyDefault, NativeOf(stream)));
}

Result raw::CopyRowsAsync(void* to, const void* from, const RowsToCopy& rows,
                          const StreamHandle& stream) {
  // What the platform takes for a pitch. So long ones are few.
  constexpr uint64_t kPitchMaxBytes = 0x7fffffff;
  if (rows.dst_pitch_bytes <= kPitchMaxBytes && rows.src_pitch_bytes <= kPitchMaxBytes) {
    return Translate(hipMemcpy2DAsync(to, rows.dst_pitch_bytes, from, rows.src_pitch_bytes,
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
  return Translate(hipMemsetAsync(to, value, bytes, NativeOf(stream)));
}

// Graphs.

bool raw::IsCapturing(const StreamHandle& stream) {
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  Ignore(hipStreamIsCapturing(NativeOf(stream), &status));
  return status != hipStreamCaptureStatusNone;
}

Result raw::BeginCapture(const StreamHandle& stream) {
  // Thread-local: what other threads do meanwhile neither fails nor spoils the capture.
  return Translate(hipStreamBeginCapture(NativeOf(stream), hipStreamCaptureModeThreadLocal));
}

Result raw::EndCapture(const StreamHandle& stream, void** graph) {
  hipGraph_t captured = nullptr;
  if (Result result = Translate(hipStreamEndCapture(NativeOf(stream), &captured)); !result.ok()) {
    return result;
  }
  const DeviceScope device(stream.device);
  LaunchableGraph made;
  Result result = Translate(hipGraphInstantiate(&made.executable, captured, nullptr, nullptr, 0));
  Ignore(hipGraphDestroy(captured));
  if (!result.ok()) return result;
  result = Translate(hipEventCreateWithFlags(&made.launched, hipEventDisableTiming));
  if (result.ok()) {
    *graph = new LaunchableGraph(made);
  } else {
    Ignore(hipGraphExecDestroy(made.executable));
  }
  return result;
}

Result raw::LaunchGraph(void* graph, const StreamHandle& stream) {
  const LaunchableGraph& mine = *static_cast<LaunchableGraph*>(graph);
  Result result = Translate(hipGraphLaunch(mine.executable, NativeOf(stream)));
  if (!result.ok()) return result;
  return Translate(hipEventRecord(mine.launched, NativeOf(stream)));
}

void raw::DestroyGraph(void* graph) {
  const OutsideCaptures outside;
  LaunchableGraph* const mine = static_cast<LaunchableGraph*>(graph);
  Ignore(hipEventSynchronize(mine->launched));
  Ignore(hipEventDestroy(mine->launched));
  Ignore(hipGraphExecDestroy(mine->executable));
  delete mine;
}

// Events.

Result raw::CreateEvent(void** out) {
  const OutsideCaptures outside;
  hipEvent_t native = nullptr;
  Result result = Translate(hipEventCreateWithFlags(&native, hipEventDefault));
  if (result.ok()) *out = native;
  return result;
}

void raw::DestroyEvent(void* event) {
  const OutsideCaptures outside;
  Ignore(hipEventDestroy(EventOf(event)));
}

Result raw::RecordEvent(void* event, const StreamHandle& stream) {
  return Translate(hipEventRecord(EventOf(event), NativeOf(stream)));
}

Result raw::WaitForEvent(const StreamHandle& stream, void* event) {
  return Translate(hipStreamWaitEvent(NativeOf(stream), EventOf(event), 0));
}

Result raw::ElapsedNanoseconds(void* from, void* to, uint64_t* out) {
  const OutsideCaptures outside;
  hipError_t error = hipEventSynchronize(EventOf(from));
  if (error == hipSuccess) error = hipEventSynchronize(EventOf(to));
  float milliseconds = 0;
  if (error == hipSuccess) error = hipEventElapsedTime(&milliseconds, EventOf(from), EventOf(to));
  if (error == hipSuccess) *out = raw::NanosecondsOf(milliseconds);
  return Translate(error);
}

// Memory.

void* raw::MallocDevice(uint64_t bytes) {
  const OutsideCaptures outside;
  void* p = nullptr;
  return Translate(hipMalloc(&p, bytes)).ok() ? p : nullptr;
}

void raw::FreeDevice(void* p) {
  const OutsideCaptures outside;
  Ignore(hipFree(p));
}

// Coherent: words in it are signals between the host and kernels.
void* raw::MallocHost(uint64_t bytes) {
  const OutsideCaptures outside;
  void* p = nullptr;
  const unsigned flags = hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent;
  return Translate(hipHostMalloc(&p, bytes, flags)).ok() ? p : nullptr;
}

void raw::FreeHost(void* p) {
  const OutsideCaptures outside;
  Ignore(hipHostFree(p));
}

}  // namespace iris::backend
