// AMD's HIP runtime as Iris links it: each function finds that of the machine's libamdhip64.so when
// it is first called. So what is built here runs with every version of ROCm that has the functions,
// loads on machines without it, and then says what is missing. NVIDIA's runtime does the same with
// its driver.
//
// Thread-safe. The library stays open.
#include <dlfcn.h>
#include <hip/hip_runtime_api.h>

#include <cstddef>

namespace {

// As device/driver/hip_native.cc looks for it.
constexpr const char* kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6",
                                  "/opt/rocm/lib/libamdhip64.so", "libamdhip64.so.5"};
constexpr char kMissing[] =
    "the HIP runtime is not on this machine, or lacks a function: install ROCm (libamdhip64.so)";

void* OpenLibrary() {
  for (const int flags : {RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* name : kNames) {
      if (void* const library = dlopen(name, flags)) return library;
    }
  }
  return nullptr;
}

// Null: there is none.
template <typename F>
F Find(const char* name) {
  static void* const library = OpenLibrary();
  return library == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library, name));
}

}  // namespace

// `declared` are the parameters, and `given` their names, both in parentheses.
#define IRIS_FORWARD(name, declared, given)                           \
  hipError_t name declared {                                          \
    static const auto real = Find<hipError_t(*) declared>(#name);     \
    return real == nullptr ? hipErrorInsufficientDriver : real given; \
  }

IRIS_FORWARD(hipDeviceGetAttribute, (int* value, hipDeviceAttribute_t attribute, int device),
             (value, attribute, device))
IRIS_FORWARD(hipEventCreateWithFlags, (hipEvent_t * event, unsigned flags), (event, flags))
IRIS_FORWARD(hipEventDestroy, (hipEvent_t event), (event))
IRIS_FORWARD(hipEventElapsedTime, (float* ms, hipEvent_t start, hipEvent_t stop), (ms, start, stop))
IRIS_FORWARD(hipEventRecord, (hipEvent_t event, hipStream_t stream), (event, stream))
IRIS_FORWARD(hipEventSynchronize, (hipEvent_t event), (event))
IRIS_FORWARD(hipFree, (void* p), (p))
IRIS_FORWARD(hipFuncGetAttributes, (hipFuncAttributes * attributes, const void* function),
             (attributes, function))
IRIS_FORWARD(hipFuncSetAttribute, (const void* function, hipFuncAttribute attribute, int value),
             (function, attribute, value))
IRIS_FORWARD(hipGetDevice, (int* device), (device))
IRIS_FORWARD(hipGetDeviceCount, (int* count), (count))
IRIS_FORWARD(hipGetLastError, (), ())
IRIS_FORWARD(hipGraphDestroy, (hipGraph_t graph), (graph))
IRIS_FORWARD(hipGraphExecDestroy, (hipGraphExec_t graph), (graph))
IRIS_FORWARD(hipGraphInstantiate,
             (hipGraphExec_t * made, hipGraph_t graph, hipGraphNode_t* node, char* log,
              size_t bytes),
             (made, graph, node, log, bytes))
IRIS_FORWARD(hipGraphLaunch, (hipGraphExec_t graph, hipStream_t stream), (graph, stream))
IRIS_FORWARD(hipHostFree, (void* p), (p))
IRIS_FORWARD(hipHostMalloc, (void** p, size_t bytes, unsigned flags), (p, bytes, flags))
IRIS_FORWARD(hipLaunchKernel,
             (const void* function, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
              hipStream_t stream),
             (function, grid, block, arguments, shared_bytes, stream))
IRIS_FORWARD(hipMalloc, (void** p, size_t bytes), (p, bytes))
IRIS_FORWARD(hipMemcpy2DAsync,
             (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
              size_t height, hipMemcpyKind kind, hipStream_t stream),
             (to, to_pitch, from, from_pitch, width, height, kind, stream))
IRIS_FORWARD(hipMemcpyAsync,
             (void* to, const void* from, size_t bytes, hipMemcpyKind kind, hipStream_t stream),
             (to, from, bytes, kind, stream))
IRIS_FORWARD(hipMemsetAsync, (void* to, int value, size_t bytes, hipStream_t stream),
             (to, value, bytes, stream))
IRIS_FORWARD(hipSetDevice, (int device), (device))
IRIS_FORWARD(hipStreamBeginCapture, (hipStream_t stream, hipStreamCaptureMode mode), (stream, mode))
IRIS_FORWARD(hipStreamCreateWithFlags, (hipStream_t * stream, unsigned flags), (stream, flags))
IRIS_FORWARD(hipStreamDestroy, (hipStream_t stream), (stream))
IRIS_FORWARD(hipStreamEndCapture, (hipStream_t stream, hipGraph_t* graph), (stream, graph))
IRIS_FORWARD(hipStreamIsCapturing, (hipStream_t stream, hipStreamCaptureStatus* status),
             (stream, status))
IRIS_FORWARD(hipStreamQuery, (hipStream_t stream), (stream))
IRIS_FORWARD(hipStreamSynchronize, (hipStream_t stream), (stream))
IRIS_FORWARD(hipStreamWaitEvent, (hipStream_t stream, hipEvent_t event, unsigned flags),
             (stream, event, flags))
IRIS_FORWARD(hipThreadExchangeStreamCaptureMode, (hipStreamCaptureMode * mode), (mode))

const char* hipGetErrorString(hipError_t error) {
  static const auto real = Find<const char* (*)(hipError_t)>("hipGetErrorString");
  return real == nullptr ? kMissing : real(error);
}

// What the compiler calls beside the kernels of a source: its code is registered when it is loaded,
// its kernels by the addresses of their stubs on the host.

extern "C" {

void** __hipRegisterFatBinary(const void* code);
void __hipRegisterFunction(void** modules, const void* stub, char* device_name, const char* name,
                           unsigned thread_limit, void* thread, void* block, void* block_size,
                           void* grid_size, int* warp_size);
void __hipUnregisterFatBinary(void** modules);
hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                     hipStream_t* stream);

void** __hipRegisterFatBinary(const void* code) {
  static const auto real = Find<decltype(&__hipRegisterFatBinary)>("__hipRegisterFatBinary");
  return real == nullptr ? nullptr : real(code);
}

void __hipRegisterFunction(void** modules, const void* stub, char* device_name, const char* name,
                           unsigned thread_limit, void* thread, void* block, void* block_size,
                           void* grid_size, int* warp_size) {
  static const auto real = Find<decltype(&__hipRegisterFunction)>("__hipRegisterFunction");
  if (real == nullptr) return;
  real(modules, stub, device_name, name, thread_limit, thread, block, block_size, grid_size,
       warp_size);
}

void __hipUnregisterFatBinary(void** modules) {
  static const auto real = Find<decltype(&__hipUnregisterFatBinary)>("__hipUnregisterFatBinary");
  if (real != nullptr) real(modules);
}

IRIS_FORWARD(__hipPopCallConfiguration,
             (dim3 * grid, dim3* block, size_t* shared_bytes, hipStream_t* stream),
             (grid, block, shared_bytes, stream))

}  // extern "C"
