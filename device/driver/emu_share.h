// GpuDriver::Share on the emulated platform. It reads /proc/self, and keeps nothing between calls.
// Thread-safe, but it may or may not see what the program maps or closes meanwhile.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"

namespace iris::driver {

// Seals against truncation of a file, which would kill users of the file's mappings by SIGBUS.
inline constexpr int kResizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
inline constexpr int kWriteSeals = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

// Implements GpuDriver::Share. Each piece is the complete file of a mapping.
absl::StatusOr<std::vector<SharedPiece>> ShareMemfds(uint64_t address, uint64_t bytes,
                                                     size_t max_pieces);

}  // namespace iris::driver
