// The host half of the hip backend, on the HIP runtime.
#include <hip/hip_runtime_api.h>

#include "iris/backend/gpu_host.h"

namespace iris::backend {
namespace {

StatusCode RareCodeOf(hipError_t error) {
  switch (error) {
    case hipErrorInvalidDeviceFunction:
    case hipErrorInvalidDevicePointer:
    case hipErrorInvalidHandle:
    case hipErrorCooperativeLaunchTooLarge:
      return StatusCode::kInvalidArgument;
    case hipErrorNotInitialized:
      return StatusCode::kFailedPrecondition;
    case hipErrorNotSupported:
      return StatusCode::kUnimplemented;
    default:
      return StatusCode::kInternal;
  }
}

// A graph, and an event that happens after the graph's last launch.
struct LaunchableGraph {
  hipGraphExec_t executable = nullptr;
  hipEvent_t launched = nullptr;
};

Result MakeGraph(hipGraph_t captured, const raw::StreamHandle& stream, void** graph) {
  const raw::CurrentDevice device(stream.device);
  LaunchableGraph made;
  Result result = ResultOf(hipGraphInstantiate(&made.executable, captured, nullptr, nullptr, 0));
  if (!result.ok()) return result;
  result = ResultOf(hipEventCreateWithFlags(&made.launched, hipEventDisableTiming));
  if (result.ok()) {
    *graph = new LaunchableGraph(made);
  } else {
    Ignore(hipGraphExecDestroy(made.executable));
  }
  return result;
}

Result AllowSharedBytes(const void* kernel, const hipFuncAttributes&, uint32_t bytes) {
  if (bytes == 0) return {};
  return ResultOf(hipFuncSetAttribute(kernel, hipFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(bytes)));
}

}  // namespace

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

Result raw::LaunchKernel(const LaunchConfig& config, const StreamHandle& stream, const void* kernel,
                         void** arguments) {
  const raw::CurrentDevice device(stream.device);
  return ResultOf(hipLaunchKernel(kernel, dim3(config.grid), dim3(config.block), arguments,
                                  config.shared_bytes, NativeOf(stream)));
}

Result raw::LaunchGraph(void* graph, const StreamHandle& stream) {
  const LaunchableGraph& mine = *static_cast<LaunchableGraph*>(graph);
  Result result = ResultOf(hipGraphLaunch(mine.executable, NativeOf(stream)));
  if (!result.ok()) return result;
  return ResultOf(hipEventRecord(mine.launched, NativeOf(stream)));
}

void raw::DestroyGraph(void* graph) {
  const OutsideCaptures outside;
  LaunchableGraph* const mine = static_cast<LaunchableGraph*>(graph);
  Ignore(hipEventSynchronize(mine->launched));
  Ignore(hipEventDestroy(mine->launched));
  Ignore(hipGraphExecDestroy(mine->executable));
  delete mine;
}

}  // namespace iris::backend
