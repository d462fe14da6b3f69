// GpuDriver::Share on GPUs. It keeps nothing between calls, and is thread-safe if the library is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "device/driver/backend_kind.h"
#include "device/driver/gpu_driver.h"
#include "device/driver/hip_api.h"
#include "device/driver/quirks.h"

namespace iris::driver {

struct SharePlatform {
  HipApi& api;
  const Quirks& quirks;
  BackendKind kind = BackendKind::kCuda;
  int device = 0;  // the calling thread's device, which must have the memory
  uint64_t granularity_bytes = 0;
};

// Returns kResourceExhausted, with the limit, if so few descriptors are left that a vendor's
// library could run out of them. `any_fd` is an open descriptor, or -1.
absl::Status CheckDescriptors(int any_fd, absl::string_view what);

// Implements GpuDriver::Share.
absl::StatusOr<std::vector<SharedPiece>> ShareMappedMemory(const SharePlatform& platform,
                                                           uint64_t address, uint64_t bytes,
                                                           size_t max_pieces);

}  // namespace iris::driver
