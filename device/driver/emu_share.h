// GpuDriver::Share on the emulated platform. Reads /proc/self; keeps nothing between calls.
// Thread-safe, but what the program maps or closes meanwhile is found or not.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"

namespace iris::driver {

// A file with these cannot be truncated, which would kill those who map it with SIGBUS.
inline constexpr int kResizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
inline constexpr int kWriteSeals = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

// Implements GpuDriver::Share. The whole file of a mapping is a piece.
absl::StatusOr<std::vector<SharedPiece>> ShareMemfds(uint64_t address, uint64_t bytes,
                                                     size_t max_pieces);

}  // namespace iris::driver
