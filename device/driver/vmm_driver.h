// The driver of GPUs of both vendors, written in HIP (hip_api.h). Thread-safe. irisd has no context
// on a device, which would cost device memory; a client makes its device current.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"

namespace iris::driver {

struct VmmOptions {
  BackendKind kind = BackendKind::kCuda;  // or kHip
  std::string library_path;  // empty: where the system's loader finds the vendor's library
  bool fabric = false;       // memory is for other nodes of the fabric domain, too, if there is one
};

struct OpenedVmm {
  std::unique_ptr<GpuDriver> driver;
  std::string detail;  // "8 x NVIDIA H200, driver 13.0"
};

// kNotFound if there is no library. kFailedPrecondition if it is too old, or if there is no device.
// Other errors are the library's.
absl::StatusOr<OpenedVmm> OpenVmmDriver(const VmmOptions& options);

}  // namespace iris::driver
