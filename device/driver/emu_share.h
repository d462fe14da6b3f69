// Descriptors of host memory that a program has created as a memfd and mapped: what
// GpuDriver::Share does on the emulated platform. Reads /proc/self; keeps nothing between calls.
// Thread-safe, but what the program maps or closes meanwhile is found or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"

namespace iris::driver {

// As GpuDriver::Share. The whole file of a mapping is a piece.
absl::StatusOr<std::vector<SharedPiece>> ShareMemfds(uint64_t address, uint64_t bytes,
                                                     size_t max_pieces);

}  // namespace iris::driver
