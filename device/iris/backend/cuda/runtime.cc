// The host half of the cuda backend, on the CUDA runtime. raw_host.h has the contracts.
//
// A failed call of the runtime becomes a Result at once, and is not left behind as the "last error"
// for the application to find.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdlib>

#include "iris/backend/select.h"
#include "iris/backend/spec.h"

namespace iris::backend {
namespace {

Result ResultOf(cudaError_t error) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();
  Result result;
  result.what = cudaGetErrorString(error);
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDevice:
      result.code = StatusCode::kInvalidArgument;
      break;
    case cudaErrorMemoryAllocation:
    case cudaErrorLaunchOutOfResources:
      result.code = StatusCode::kResourceExhausted;
      break;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorIllegalState:
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
      result.code = StatusCode::kFailedPrecondition;
      break;
    default:
      result.code = StatusCode::kInternal;
  }
  return result;
}

cudaStream_t NativeOf(const raw::StreamHandle& stream) {
  return static_cast<cudaStream_t>(stream.native);
}
cudaEvent_t EventOf(void* event) { return static_cast<cudaEvent_t>(event); }
cudaGraphExec_t GraphOf(void* graph) { return static_cast<cudaGraphExec_t>(graph); }

// For what a caller cannot be told.
void Ignore(cudaError_t error) { (void)ResultOf(error); }

bool GetDevice(int* device) { return cudaGetDevice(device) == cudaSuccess; }
bool UseDevice(int device) { return cudaSetDevice(device) == cudaSuccess; }
using DeviceScope = raw::CurrentDevice<&GetDevice, &UseDevice>;

// While a stream is being captured, the runtime refuses what could wait for it or change what it
// uses (waits, queries, allocations), and the capture fails: on the thread that captures, or on all
// threads, as its mode says. This library's own waits and allocations never touch what is captured,
// and say so while one of these lives.
class OutsideCaptures {
 public:
  OutsideCaptures() { Ignore(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~OutsideCaptures() { Ignore(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  OutsideCaptures(const OutsideCaptures&) = delete;
  OutsideCaptures& operator=(const OutsideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Shared memory that every kernel may have without asking, what it declares and what a launch adds
// together; and what a launch may add without having been prepared, beside a kernel's declarations
// of up to the difference.
constexpr uint32_t kSharedBytesAlways = 48 * 1024;
constexpr uint32_t kSharedBytesUnprepared = 32 * 1024;

// Devices whose kernels can begin early: all that were prepared there know how to wait. Code for
// older GPUs does not, and runs on newer ones, too.
constexpr int kMaxDevices = 64;
constexpr int kEarlyVersion = 90;
enum Early : uint8_t { kNotKnown, kCan, kCannot };
std::atomic<uint8_t> g_early[kMaxDevices];

void NoteVersion(int version) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMaxDevices) return;
  if (version < kEarlyVersion) {
    g_early[device].store(kCannot, std::memory_order_relaxed);
    return;
  }
  uint8_t before = kNotKnown;
  (void)g_early[device].compare_exchange_strong(before, kCan, std::memory_order_relaxed);
}

bool CanBeginEarly() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && device < kMaxDevices &&
         g_early[device].load(std::memory_order_relaxed) == kCan;
}

}  // namespace

Result raw::CheckCaller() { return {}; }

uint32_t DeviceCount() {
  int count = 0;
  return ResultOf(cudaGetDeviceCount(&count)).ok() ? static_cast<uint32_t>(count) : 0;
}

Result SetDevice(uint32_t index) { return ResultOf(cudaSetDevice(static_cast<int>(index))); }

uint32_t CurrentDevice() {
  int device = 0;
  return ResultOf(cudaGetDevice(&device)).ok() ? static_cast<uint32_t>(device) : 0;
}

uint32_t ResidentBlocks() { return MultiprocessorCount(); }

StreamQueues CountQueues() {
  // The driver reads it when the process first uses a device.
  static const uint32_t count = [] {
    constexpr int kUsual = 8;
    constexpr int kMost = 32;
    const char* const wanted = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    const int n = wanted == nullptr ? kUsual : atoi(wanted);
    return static_cast<uint32_t>(n < 1 ? kUsual : n < kMost ? n : kMost);
  }();
  return {
      count,
      "set CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment before the program starts, and use "
      "fewer streams"};
}

uint32_t MultiprocessorCount() {
  int device = 0;
  int count = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  }
  return ResultOf(error).ok() ? static_cast<uint32_t>(count) : 0;
}

// Streams and launches.

Result raw::CreateStream(StreamHandle* out) {
  const OutsideCaptures outside;
  int device = 0;
  cudaStream_t native = nullptr;
  cudaError_t error = cudaGetDevice(&device);
  // Non-blocking: nothing of the application on the default stream holds it up.
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking);
  if (error == cudaSuccess) *out = {native, device};
  return ResultOf(error);
}

void raw::DestroyStream(const StreamHandle& stream) {
  const OutsideCaptures outside;
  Ignore(cudaStreamSynchronize(NativeOf(stream)));
  Ignore(cudaStreamDestroy(NativeOf(stream)));
}

Result raw::SynchronizeStream(const StreamHandle& stream) {
  const OutsideCaptures outside;
  return ResultOf(cudaStreamSynchronize(NativeOf(stream)));
}

Result raw::SynchronizeDevice() {
  const OutsideCaptures outside;
  return ResultOf(cudaDeviceSynchronize());
}

bool raw::IsIdle(const StreamHandle& stream) {
  const OutsideCaptures outside;
  const cudaError_t error = cudaStreamQuery(NativeOf(stream));
  Ignore(error);
  return error != cudaErrorNotReady;  // a stream that failed does nothing any more
}

Result raw::PrepareKernel(const void* kernel, uint32_t shared_bytes) {
  const OutsideCaptures outside;
  cudaFuncAttributes attributes;  // asking for them loads the code
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) NoteVersion(attributes.ptxVersion);
  if (error != cudaSuccess || attributes.sharedSizeBytes + shared_bytes <= kSharedBytesAlways) {
    return ResultOf(error);
  }
  return ResultOf(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared_bytes)));
}

Result raw::LaunchKernel(const LaunchConfig& config, const StreamHandle& stream, const void* kernel,
                         void** arguments) {
  const DeviceScope device(stream.device);
  if (config.shared_bytes > kSharedBytesUnprepared) {
    if (Result result = PrepareKernel(kernel, config.shared_bytes); !result.ok()) return result;
  }
  if (config.early && CanBeginEarly()) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(config.grid);
    launch.blockDim = dim3(config.block);
    launch.dynamicSmemBytes = config.shared_bytes;
    launch.stream = NativeOf(stream);
    launch.attrs = &early;
    launch.numAttrs = 1;
    return ResultOf(cudaLaunchKernelExC(&launch, kernel, arguments));
  }
  return ResultOf(cudaLaunchKernel(kernel, dim3(config.grid), dim3(config.block), arguments,
                                   config.shared_bytes, NativeOf(stream)));
}

Result raw::CopyAsync(void* to, const void* from, uint64_t bytes, const StreamHandle& stream) {
  return ResultOf(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, NativeOf(stream)));
}

Result raw::CopyRowsAsync(void* to, const void* from, const RowsToCopy& rows,
                          const StreamHandle& stream) {
  // What the platform takes for a pitch. So long ones are few.
  constexpr uint64_t kPitchMaxBytes = 0x7fffffff;
  if (rows.dst_pitch_bytes <= kPitchMaxBytes && rows.src_pitch_bytes <= kPitchMaxBytes) {
    return ResultOf(cudaMemcpy2DAsync(to, rows.dst_pitch_bytes, from, rows.src_pitch_bytes,
                                      rows.row_bytes, rows.rows, cudaMemcpyDefault,
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
  return ResultOf(cudaMemsetAsync(to, value, bytes, NativeOf(stream)));
}

// Graphs.

bool raw::IsCapturing(const StreamHandle& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Ignore(cudaStreamIsCapturing(NativeOf(stream), &status));
  return status != cudaStreamCaptureStatusNone;
}

Result raw::BeginCapture(const StreamHandle& stream) {
  // Thread-local: what other threads do meanwhile neither fails nor spoils the capture.
  return ResultOf(cudaStreamBeginCapture(NativeOf(stream), cudaStreamCaptureModeThreadLocal));
}

Result raw::EndCapture(const StreamHandle& stream, void** graph) {
  cudaGraph_t captured = nullptr;
  cudaError_t error = cudaStreamEndCapture(NativeOf(stream), &captured);
  if (error != cudaSuccess) return ResultOf(error);
  cudaGraphExec_t executable = nullptr;
  error = cudaGraphInstantiate(&executable, captured, 0);
  (void)cudaGraphDestroy(captured);
  if (error == cudaSuccess) *graph = executable;
  return ResultOf(error);
}

Result raw::LaunchGraph(void* graph, const StreamHandle& stream) {
  return ResultOf(cudaGraphLaunch(GraphOf(graph), NativeOf(stream)));
}

void raw::DestroyGraph(void* graph) {
  const OutsideCaptures outside;
  Ignore(cudaGraphExecDestroy(GraphOf(graph)));
}

// Events.

Result raw::CreateEvent(void** out) {
  const OutsideCaptures outside;
  cudaEvent_t native = nullptr;
  const cudaError_t error = cudaEventCreate(&native);
  if (error == cudaSuccess) *out = native;
  return ResultOf(error);
}

void raw::DestroyEvent(void* event) {
  const OutsideCaptures outside;
  Ignore(cudaEventDestroy(EventOf(event)));
}

Result raw::RecordEvent(void* event, const StreamHandle& stream) {
  return ResultOf(cudaEventRecord(EventOf(event), NativeOf(stream)));
}

Result raw::WaitForEvent(const StreamHandle& stream, void* event) {
  return ResultOf(cudaStreamWaitEvent(NativeOf(stream), EventOf(event), 0));
}

Result raw::ElapsedNanoseconds(void* from, void* to, uint64_t* out) {
  const OutsideCaptures outside;
  cudaError_t error = cudaEventSynchronize(EventOf(from));
  if (error == cudaSuccess) error = cudaEventSynchronize(EventOf(to));
  float milliseconds = 0;
  if (error == cudaSuccess) error = cudaEventElapsedTime(&milliseconds, EventOf(from), EventOf(to));
  if (error == cudaSuccess) *out = raw::NanosecondsOf(milliseconds);
  return ResultOf(error);
}

// Memory.

void* raw::MallocDevice(uint64_t bytes) {
  const OutsideCaptures outside;
  void* p = nullptr;
  return ResultOf(cudaMalloc(&p, bytes)).ok() ? p : nullptr;
}

void raw::FreeDevice(void* p) {
  const OutsideCaptures outside;
  Ignore(cudaFree(p));
}

void* raw::MallocHost(uint64_t bytes) {
  const OutsideCaptures outside;
  void* p = nullptr;
  const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
  return ResultOf(cudaHostAlloc(&p, bytes, flags)).ok() ? p : nullptr;
}

void raw::FreeHost(void* p) {
  const OutsideCaptures outside;
  Ignore(cudaFreeHost(p));
}

}  // namespace iris::backend
