// The host half of the cuda backend, on the CUDA runtime. See spec.h for contracts.
//
// A failed call of the runtime becomes a Result at once, and is not left behind as the "last error"
// for the application to find.
#include <cuda_runtime_api.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>

#include "device/backend/select.h"

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
      result.code = ErrorCode::kInvalidArgument;
      break;
    case cudaErrorMemoryAllocation:
    case cudaErrorLaunchOutOfResources:
      result.code = ErrorCode::kResourceExhausted;
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
      result.code = ErrorCode::kFailedPrecondition;
      break;
    default:
      result.code = ErrorCode::kInternal;
  }
  return result;
}

cudaStream_t NativeOf(const Stream& stream) { return static_cast<cudaStream_t>(stream.native()); }

bool IsCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

// Makes `device` current on this thread while it lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(uint32_t device) {
    if (cudaGetDevice(&before_) != cudaSuccess || before_ == static_cast<int>(device)) return;
    changed_ = cudaSetDevice(static_cast<int>(device)) == cudaSuccess;
  }
  ~CurrentDevice() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

constexpr Result kNoStream = {ErrorCode::kFailedPrecondition,
                              "use of a stream that was not created or was moved from"};
// What a launch may ask for without having been prepared.
constexpr uint32_t kSharedBytesAlways = 48 * 1024;

}  // namespace

namespace cuda {

Result Prepare(const void* kernel, uint32_t shared_bytes) {
  if (kernel == nullptr) return {ErrorCode::kInvalidArgument, "preparation of a null kernel"};
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess || shared_bytes <= kSharedBytesAlways) return ResultOf(error);
  return ResultOf(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared_bytes)));
}

Result LaunchKernel(const LaunchConfig& config, Stream& stream, const void* kernel, void** args) {
  if (kernel == nullptr) return {ErrorCode::kInvalidArgument, "launch of a null kernel"};
  if (stream.kind_ == Stream::Kind::kNone) return kNoStream;
  if (config.grid == 0)
    return {ErrorCode::kInvalidArgument, "launch of 0 blocks: grid is 1 or more"};
  if (config.block == 0)
    return {ErrorCode::kInvalidArgument, "launch of 0 threads: block is 1 to 1,024"};
  if (config.block > kMaxBlockThreads) {
    return {ErrorCode::kInvalidArgument, "launch of too many threads: block is 1 to 1,024"};
  }
  int current = 0;
  if (stream.kind_ == Stream::Kind::kOwned &&
      (cudaGetDevice(&current) != cudaSuccess || current != static_cast<int>(stream.device_))) {
    const CurrentDevice device(stream.device_);
    if (config.shared_bytes > kSharedBytesAlways) {
      if (Result result = Prepare(kernel, config.shared_bytes); !result.ok()) return result;
    }
    return ResultOf(cudaLaunchKernel(kernel, dim3(config.grid), dim3(config.block), args,
                                     config.shared_bytes, NativeOf(stream)));
  }
  if (config.shared_bytes > kSharedBytesAlways) {
    if (Result result = Prepare(kernel, config.shared_bytes); !result.ok()) return result;
  }
  return ResultOf(cudaLaunchKernel(kernel, dim3(config.grid), dim3(config.block), args,
                                   config.shared_bytes, NativeOf(stream)));
}

uint64_t HostClockNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

void HostTrap(const char* literal) {
  fprintf(stderr, "iris: %s\n", literal);
  abort();
}

}  // namespace cuda

uint32_t DeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return static_cast<uint32_t>(count);
  (void)cudaGetLastError();
  return 0;
}

Result SetDevice(uint32_t index) { return ResultOf(cudaSetDevice(static_cast<int>(index))); }

// Streams

Stream::Stream(Stream&& other) noexcept
    : native_(std::exchange(other.native_, nullptr)),
      device_(other.device_),
      kind_(std::exchange(other.kind_, Kind::kNone)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  Stream old(std::move(*this));
  native_ = std::exchange(other.native_, nullptr);
  device_ = other.device_;
  kind_ = std::exchange(other.kind_, Kind::kNone);
  return *this;
}

Stream::~Stream() {
  if (kind_ != Kind::kOwned) return;
  (void)cudaStreamSynchronize(NativeOf(*this));
  (void)cudaStreamDestroy(NativeOf(*this));
  (void)cudaGetLastError();
}

Result Stream::Create(Stream* out) {
  *out = Stream();
  int device = 0;
  cudaStream_t native = nullptr;
  cudaError_t error = cudaGetDevice(&device);
  // Non-blocking: nothing of the application on the default stream holds it up.
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&native, cudaStreamNonBlocking);
  if (error != cudaSuccess) return ResultOf(error);
  out->native_ = native;
  out->device_ = static_cast<uint32_t>(device);
  out->kind_ = Kind::kOwned;
  return {};
}

Stream Stream::Borrow(void* native) {
  Stream stream;
  stream.native_ = native;
  stream.kind_ = Kind::kBorrowed;
  return stream;
}

Result Stream::Synchronize() {
  if (kind_ == Kind::kNone) return kNoStream;
  if (IsCapturing(NativeOf(*this))) {
    return {ErrorCode::kFailedPrecondition,
            "synchronize a stream that is capturing: end the capture first"};
  }
  return ResultOf(cudaStreamSynchronize(NativeOf(*this)));
}

bool Stream::Idle() {
  if (kind_ == Kind::kNone || IsCapturing(NativeOf(*this))) return true;
  const cudaError_t error = cudaStreamQuery(NativeOf(*this));
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error != cudaErrorNotReady;
}

Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream) {
  if (stream.kind_ == Stream::Kind::kNone) return kNoStream;
  if (bytes == 0) return {};
  if (to == nullptr || from == nullptr) {
    return {ErrorCode::kInvalidArgument, "copy from or to a null pointer"};
  }
  return ResultOf(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, NativeOf(stream)));
}

Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream) {
  if (stream.kind_ == Stream::Kind::kNone) return kNoStream;
  if (bytes == 0) return {};
  if (to == nullptr) return {ErrorCode::kInvalidArgument, "fill of a null pointer"};
  return ResultOf(cudaMemsetAsync(to, value, bytes, NativeOf(stream)));
}

// Graphs

Graph::~Graph() {
  if (executable_ == nullptr) return;
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable_));
  (void)cudaGetLastError();
}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(executable_, other.executable_);
  return *this;
}

Result BeginCapture(Stream& stream) {
  if (stream.kind_ == Stream::Kind::kNone) return kNoStream;
  if (IsCapturing(NativeOf(stream))) {
    return {ErrorCode::kFailedPrecondition, "begin of a capture on a stream that is capturing"};
  }
  // Thread-local: what other threads do meanwhile neither fails nor spoils the capture.
  return ResultOf(cudaStreamBeginCapture(NativeOf(stream), cudaStreamCaptureModeThreadLocal));
}

Result EndCapture(Stream& stream, Graph* out) {
  if (stream.kind_ == Stream::Kind::kNone) return kNoStream;
  if (!IsCapturing(NativeOf(stream))) {
    return {ErrorCode::kFailedPrecondition, "end of a capture that did not begin on this stream"};
  }
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamEndCapture(NativeOf(stream), &graph);
  if (error != cudaSuccess) return ResultOf(error);
  cudaGraphExec_t executable = nullptr;
  error = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  if (error != cudaSuccess) return ResultOf(error);
  Graph made;
  made.executable_ = executable;
  *out = std::move(made);
  return {};
}

Result LaunchGraph(Graph& graph, Stream& stream) {
  if (stream.kind_ == Stream::Kind::kNone) return kNoStream;
  if (graph.executable_ == nullptr) {
    return {ErrorCode::kFailedPrecondition, "launch of a graph that was not captured"};
  }
  if (IsCapturing(NativeOf(stream))) {
    return {ErrorCode::kFailedPrecondition, "launch of a graph on a stream that is capturing"};
  }
  return ResultOf(
      cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.executable_), NativeOf(stream)));
}

// Events

Event::~Event() {
  if (native_ == nullptr) return;
  (void)cudaEventDestroy(static_cast<cudaEvent_t>(native_));
  (void)cudaGetLastError();
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(native_, other.native_);
  std::swap(recorded_, other.recorded_);
  return *this;
}

Result Event::Create(Event* out) {
  cudaEvent_t native = nullptr;
  const cudaError_t error = cudaEventCreate(&native);
  if (error != cudaSuccess) return ResultOf(error);
  Event made;
  made.native_ = native;
  *out = std::move(made);
  return {};
}

Result Record(Event& event, Stream& stream) {
  if (event.native_ == nullptr) {
    return {ErrorCode::kFailedPrecondition, "record of an event that was not created"};
  }
  if (stream.kind_ == Stream::Kind::kNone) return kNoStream;
  const Result result =
      ResultOf(cudaEventRecord(static_cast<cudaEvent_t>(event.native_), NativeOf(stream)));
  if (result.ok()) event.recorded_ = true;
  return result;
}

Result WaitEvent(Stream& stream, const Event& event) {
  if (event.native_ == nullptr || stream.kind_ == Stream::Kind::kNone) {
    return {ErrorCode::kFailedPrecondition, "wait of or for what was not created"};
  }
  return ResultOf(
      cudaStreamWaitEvent(NativeOf(stream), static_cast<cudaEvent_t>(event.native_), 0));
}

Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out) {
  if (!from.recorded_ || !to.recorded_) {
    return {ErrorCode::kFailedPrecondition, "time between events that were not recorded"};
  }
  const cudaEvent_t begin = static_cast<cudaEvent_t>(from.native_);
  const cudaEvent_t end = static_cast<cudaEvent_t>(to.native_);
  cudaError_t error = cudaEventSynchronize(begin);
  if (error == cudaSuccess) error = cudaEventSynchronize(end);
  float milliseconds = 0;
  if (error == cudaSuccess) error = cudaEventElapsedTime(&milliseconds, begin, end);
  if (error != cudaSuccess) return ResultOf(error);
  *out = milliseconds > 0 ? static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6) : 0;
  return {};
}

// Memory

void* MallocDevice(uint64_t bytes) {
  void* p = nullptr;
  if (cudaMalloc(&p, bytes > 0 ? bytes : 1) == cudaSuccess) return p;
  (void)cudaGetLastError();
  return nullptr;
}

void FreeDevice(void* p) {
  if (cudaFree(p) != cudaSuccess) (void)cudaGetLastError();
}

void* MallocHost(uint64_t bytes) {
  void* p = nullptr;
  const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
  if (cudaHostAlloc(&p, bytes > 0 ? bytes : 1, flags) == cudaSuccess) return p;
  (void)cudaGetLastError();
  return nullptr;
}

void FreeHost(void* p) {
  if (cudaFreeHost(p) != cudaSuccess) (void)cudaGetLastError();
}

uint32_t MultiprocessorCount() {
  int device = 0;
  int count = 0;
  if (cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess) {
    return static_cast<uint32_t>(count);
  }
  (void)cudaGetLastError();
  return 0;
}

}  // namespace iris::backend
