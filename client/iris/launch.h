// Launch: starts a kernel of this program on a stream. The program is compiled for one backend;
// Context::Create returns an error if irisd has another.
//
//   IRIS_KERNEL void Scale(float* x, float factor) {
//     x[iris::backend::ThreadOfGrid()] *= factor;
//   }
//   iris::Status status = iris::Launch({4, 256}, stream, Scale, x, 2.0f);   // 4 blocks of 256
//
// Thread-safe. C++17.
#pragma once

#include <cstdint>
#include <utility>

#include "iris/backend/select.h"
#include "iris/status.h"
#include "iris/stream.h"

namespace iris {

namespace impl {

inline Status FromDevice(const Result& result) {
  return result.ok() ? Status() : Status(result.code, result.what);
}

}  // namespace impl

// Runs kernel(args...) on every thread of the grid. There are as many arguments as parameters, and
// they are converted to the parameters' types. kInvalidArgument if the device does not support this
// grid or block; see LaunchConfig.
template <typename... Params, typename... Args>
Status Launch(const LaunchConfig& config, const Stream& stream, void (*kernel)(Params...),
              Args&&... args) {
  backend::Stream native = backend::Stream::Borrow(stream.native(), stream.device());
  return impl::FromDevice(backend::Launch(config, native, kernel, std::forward<Args>(args)...));
}

// Loads the kernel's code onto the current device now, and lets launches use `shared_bytes` of
// shared memory. A first launch may wait for running kernels, so prepare a kernel that another,
// running kernel waits for.
template <typename... Params>
Status PrepareKernel(void (*kernel)(Params...), uint32_t shared_bytes = 0) {
  return impl::FromDevice(backend::PrepareKernel(kernel, shared_bytes));
}

}  // namespace iris
