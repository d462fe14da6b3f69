// The host half of the cuda backend, on the CUDA runtime.
#include <atomic>

#include "iris/backend/cuda/hip_on_cuda.h"
#include "iris/backend/gpu_host.h"

namespace iris::backend {
namespace {

StatusCode RareCodeOf(hipError_t error) {
  const bool misused = error == cudaErrorInvalidResourceHandle || error == cudaErrorIllegalState;
  return misused ? StatusCode::kFailedPrecondition : StatusCode::kInternal;
}

Result MakeGraph(hipGraph_t captured, const raw::StreamHandle&, void** graph) {
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, captured, 0);
  if (error == cudaSuccess) *graph = executable;
  return ResultOf(error);
}

// Shared memory that needs no preparation: the first number, declared and dynamic together; so the
// second for the dynamic part alone, if the declared one is at most the difference.
constexpr uint32_t kSharedBytesAlways = 48 * 1024;
constexpr uint32_t kSharedBytesUnprepared = 32 * 1024;

// Records for each device if all prepared kernels can begin early. Code for older GPUs cannot wait.
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

Result AllowSharedBytes(const void* kernel, const hipFuncAttributes& attributes, uint32_t bytes) {
  NoteVersion(attributes.ptxVersion);
  if (attributes.sharedSizeBytes + bytes <= kSharedBytesAlways) return {};
  return ResultOf(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(bytes)));
}

}  // namespace

StreamQueues CountQueues() {
  // Cached, because the driver reads the variable only when the process first uses a device.
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

Result raw::LaunchKernel(const LaunchConfig& config, const StreamHandle& stream, const void* kernel,
                         void** arguments) {
  const raw::CurrentDevice device(stream.device);
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

Result raw::LaunchGraph(void* graph, const StreamHandle& stream) {
  return ResultOf(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), NativeOf(stream)));
}

void raw::DestroyGraph(void* graph) {
  const OutsideCaptures outside;
  Ignore(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

}  // namespace iris::backend
