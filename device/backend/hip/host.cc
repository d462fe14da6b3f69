// The host part of the hip backend, on the HIP runtime.
#include <hip/hip_runtime_api.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "device/backend/select.h"

namespace iris::backend {
namespace {

constexpr Result kNoStream = {ErrorCode::kFailedPrecondition,
                              "use of a stream that was not created or was moved from"};
constexpr Result kNoEvent = {ErrorCode::kFailedPrecondition,
                             "use of an event that was not created or was moved from"};

ErrorCode CodeOf(hipError_t error) {
  switch (error) {
    case hipSuccess:
      return ErrorCode::kOk;
    case hipErrorInvalidValue:
    case hipErrorInvalidConfiguration:
    case hipErrorInvalidDevice:
    case hipErrorInvalidDeviceFunction:
    case hipErrorInvalidDevicePointer:
    case hipErrorInvalidHandle:
    case hipErrorCooperativeLaunchTooLarge:
      return ErrorCode::kInvalidArgument;
    case hipErrorOutOfMemory:
    case hipErrorLaunchOutOfResources:
      return ErrorCode::kResourceExhausted;
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
      return ErrorCode::kFailedPrecondition;
    case hipErrorNotSupported:
      return ErrorCode::kUnimplemented;
    default:
      return ErrorCode::kInternal;
  }
}

// The runtime's own text, which is static. Clears its memory of the last error.
Result Translate(hipError_t error) {
  if (error == hipSuccess) return {};
  (void)hipGetLastError();
  return {CodeOf(error), hipGetErrorString(error)};
}

hipStream_t NativeOf(const Stream& stream) { return static_cast<hipStream_t>(stream.native()); }

bool IsCapturing(const Stream& stream) {
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  (void)Translate(hipStreamIsCapturing(NativeOf(stream), &status));
  return status != hipStreamCaptureStatusNone;
}

// Makes a stream's device current on this thread while it lives. -1: leaves it as it is.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    if (device < 0 || hipGetDevice(&before_) != hipSuccess || before_ == device) return;
    changed_ = hipSetDevice(device) == hipSuccess;
  }
  ~CurrentDevice() {
    if (changed_) (void)hipSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

hipEvent_t EventOf(void* native) { return static_cast<hipEvent_t>(native); }

}  // namespace

uint32_t DeviceCount() {
  int count = 0;
  return Translate(hipGetDeviceCount(&count)).ok() ? static_cast<uint32_t>(count) : 0;
}

Result SetDevice(uint32_t index) { return Translate(hipSetDevice(static_cast<int>(index))); }

Stream::~Stream() {
  if (!owned_) return;
  (void)hipStreamSynchronize(NativeOf(*this));
  (void)hipStreamDestroy(NativeOf(*this));
}

Stream::Stream(Stream&& other) noexcept
    : native_(std::exchange(other.native_, nullptr)),
      device_(std::exchange(other.device_, -1)),
      owned_(std::exchange(other.owned_, false)),
      borrowed_(std::exchange(other.borrowed_, false)) {}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  Stream old(std::move(*this));
  std::swap(native_, other.native_);
  std::swap(device_, other.device_);
  std::swap(owned_, other.owned_);
  std::swap(borrowed_, other.borrowed_);
  return *this;
}

Result Stream::Create(Stream* out) {
  int device = 0;
  if (Result result = Translate(hipGetDevice(&device)); !result.ok()) return result;
  hipStream_t native = nullptr;
  if (Result result = Translate(hipStreamCreateWithFlags(&native, hipStreamNonBlocking));
      !result.ok()) {
    return result;
  }
  Stream stream;
  stream.native_ = native;
  stream.device_ = device;
  stream.owned_ = true;
  *out = std::move(stream);
  return {};
}

Stream Stream::Borrow(void* native) {
  Stream stream;
  stream.native_ = native;
  stream.borrowed_ = true;
  return stream;
}

Result Stream::Synchronize() {
  if (!valid()) return kNoStream;
  if (IsCapturing(*this)) {
    return {ErrorCode::kFailedPrecondition,
            "synchronize a stream that is capturing: end the capture first"};
  }
  return Translate(hipStreamSynchronize(NativeOf(*this)));
}

bool Stream::Idle() {
  if (!valid() || IsCapturing(*this)) return true;
  const hipError_t error = hipStreamQuery(NativeOf(*this));
  if (error != hipSuccess) (void)hipGetLastError();
  return error != hipErrorNotReady;  // a stream that failed does nothing any more
}

namespace hip {

uint64_t HostClockNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 * 1000 * 1000 +
         static_cast<uint64_t>(now.tv_nsec);
}

void HostTrap(const char* literal) {
  fprintf(stderr, "iris: %s\n", literal);
  abort();
}

Result LaunchKernel(const LaunchConfig& config, Stream& stream, const void* kernel,
                    void** arguments) {
  if (!stream.valid()) return kNoStream;
  if (config.grid == 0) {
    return {ErrorCode::kInvalidArgument, "launch of 0 blocks: grid is 1 or more"};
  }
  if (config.block == 0 || config.block > kMaxBlockThreads) {
    return {ErrorCode::kInvalidArgument, "launch of 0 or too many threads: block is 1 to 1,024"};
  }
  const CurrentDevice device(stream.device());
  return Translate(hipLaunchKernel(kernel, dim3(config.grid), dim3(config.block), arguments,
                                   config.shared_bytes, NativeOf(stream)));
}

Result PrepareKernel(const void* kernel, uint32_t shared_bytes) {
  hipFuncAttributes attributes;  // asking for them loads the code
  if (Result result = Translate(hipFuncGetAttributes(&attributes, kernel)); !result.ok()) {
    return result;
  }
  if (shared_bytes == 0) return {};
  return Translate(hipFuncSetAttribute(kernel, hipFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared_bytes)));
}

}  // namespace hip

Result CopyAsync(void* to, const void* from, uint64_t bytes, Stream& stream) {
  if (!stream.valid()) return kNoStream;
  if (bytes == 0) return {};
  if (to == nullptr || from == nullptr) {
    return {ErrorCode::kInvalidArgument, "copy from or to a null pointer"};
  }
  return Translate(hipMemcpyAsync(to, from, bytes, hipMemcpyDefault, NativeOf(stream)));
}

Result FillAsync(void* to, uint8_t value, uint64_t bytes, Stream& stream) {
  if (!stream.valid()) return kNoStream;
  if (bytes == 0) return {};
  if (to == nullptr) return {ErrorCode::kInvalidArgument, "fill of a null pointer"};
  return Translate(hipMemsetAsync(to, value, bytes, NativeOf(stream)));
}

Event::~Event() {
  if (native_ != nullptr) (void)hipEventDestroy(EventOf(native_));
}

Event::Event(Event&& other) noexcept
    : native_(std::exchange(other.native_, nullptr)),
      recorded_(std::exchange(other.recorded_, false)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(native_, other.native_);
  std::swap(recorded_, other.recorded_);
  return *this;
}

Result Event::Create(Event* out) {
  hipEvent_t native = nullptr;
  if (Result result = Translate(hipEventCreateWithFlags(&native, hipEventDefault)); !result.ok()) {
    return result;
  }
  Event event;
  event.native_ = native;
  *out = std::move(event);
  return {};
}

Result Record(Event& event, Stream& stream) {
  if (event.native_ == nullptr) return kNoEvent;
  if (!stream.valid()) return kNoStream;
  const Result result = Translate(hipEventRecord(EventOf(event.native_), NativeOf(stream)));
  if (result.ok()) event.recorded_ = true;
  return result;
}

Result WaitEvent(Stream& stream, const Event& event) {
  if (event.native_ == nullptr) return kNoEvent;
  if (!stream.valid()) return kNoStream;
  if (!event.recorded_) return {};
  return Translate(hipStreamWaitEvent(NativeOf(stream), EventOf(event.native_), 0));
}

Result ElapsedNanoseconds(const Event& from, const Event& to, uint64_t* out) {
  if (from.native_ == nullptr || to.native_ == nullptr) return kNoEvent;
  if (!from.recorded_ || !to.recorded_) {
    return {ErrorCode::kFailedPrecondition, "time between events that were not recorded"};
  }
  for (void* native : {from.native_, to.native_}) {
    if (Result result = Translate(hipEventSynchronize(EventOf(native))); !result.ok()) {
      return result;
    }
  }
  float milliseconds = 0;
  if (Result result =
          Translate(hipEventElapsedTime(&milliseconds, EventOf(from.native_), EventOf(to.native_)));
      !result.ok()) {
    return result;
  }
  *out = milliseconds > 0 ? static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6) : 0;
  return {};
}

Graph::~Graph() {
  if (launched_ != nullptr) {
    (void)hipEventSynchronize(EventOf(launched_));
    (void)hipEventDestroy(EventOf(launched_));
  }
  if (executable_ != nullptr) (void)hipGraphExecDestroy(static_cast<hipGraphExec_t>(executable_));
}

Graph::Graph(Graph&& other) noexcept
    : executable_(std::exchange(other.executable_, nullptr)),
      launched_(std::exchange(other.launched_, nullptr)) {}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(executable_, other.executable_);
  std::swap(launched_, other.launched_);
  return *this;
}

Result BeginCapture(Stream& stream) {
  if (!stream.valid()) return kNoStream;
  if (IsCapturing(stream)) {
    return {ErrorCode::kFailedPrecondition, "begin of a capture on a stream that is capturing"};
  }
  // Thread-local: what other threads do meanwhile neither fails nor spoils the capture.
  return Translate(hipStreamBeginCapture(NativeOf(stream), hipStreamCaptureModeThreadLocal));
}

Result EndCapture(Stream& stream, Graph* out) {
  if (!stream.valid()) return kNoStream;
  if (!IsCapturing(stream)) {
    return {ErrorCode::kFailedPrecondition, "end of a capture that did not begin on this stream"};
  }
  hipGraph_t graph = nullptr;
  if (Result result = Translate(hipStreamEndCapture(NativeOf(stream), &graph)); !result.ok()) {
    return result;
  }
  const CurrentDevice device(stream.device());
  hipGraphExec_t executable = nullptr;
  Result result = Translate(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
  (void)hipGraphDestroy(graph);
  if (!result.ok()) return result;
  Graph made;
  made.executable_ = executable;
  hipEvent_t launched = nullptr;
  result = Translate(hipEventCreateWithFlags(&launched, hipEventDisableTiming));
  if (!result.ok()) return result;
  made.launched_ = launched;
  *out = std::move(made);
  return {};
}

Result LaunchGraph(Graph& graph, Stream& stream) {
  if (graph.executable_ == nullptr) {
    return {ErrorCode::kFailedPrecondition, "launch of a graph that was not captured"};
  }
  if (!stream.valid()) return kNoStream;
  if (Result result = Translate(
          hipGraphLaunch(static_cast<hipGraphExec_t>(graph.executable_), NativeOf(stream)));
      !result.ok()) {
    return result;
  }
  return Translate(hipEventRecord(EventOf(graph.launched_), NativeOf(stream)));
}

void* MallocDevice(uint64_t bytes) {
  void* p = nullptr;
  return Translate(hipMalloc(&p, bytes == 0 ? 1 : bytes)).ok() ? p : nullptr;
}

void FreeDevice(void* p) {
  if (p != nullptr) (void)hipFree(p);
}

// Coherent: words in it are signals between the host and kernels.
void* MallocHost(uint64_t bytes) {
  void* p = nullptr;
  const unsigned flags = hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent;
  return Translate(hipHostMalloc(&p, bytes == 0 ? 1 : bytes, flags)).ok() ? p : nullptr;
}

void FreeHost(void* p) {
  if (p != nullptr) (void)hipHostFree(p);
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

}  // namespace iris::backend
