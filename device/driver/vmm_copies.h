// HostCopies of GPUs of both vendors, on a stream of their own.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"
#include "device/driver/hip_api.h"

namespace iris::driver {

// The device must have been made current once. `api` is borrowed.
absl::StatusOr<std::unique_ptr<HostCopies>> MakeVmmCopies(HipApi& api, int device);

}  // namespace iris::driver
