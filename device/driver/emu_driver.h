// The emulated platform: physical memory is a sealed memfd, an export a duplicate, a mapping
// MAP_FIXED into a reservation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"

namespace iris::driver {

struct EmuOptions {
  uint32_t n_devices = 0;  // 0 in clients
  uint64_t memory_bytes_per_device = 0;
  uint64_t link_bytes = 0;
  // Name of a fabric domain; empty: none. Its "nodes" are processes of one machine and one user, in
  // any network namespace, that see each other in /proc.
  std::string fabric_domain;
  // For tests: pairs (from, to) that CanAccessPeer refuses. Kernels are not affected.
  std::vector<std::pair<uint32_t, uint32_t>> denied;
};

inline constexpr uint64_t kEmuGranularityBytes = 2 << 20;

// UUIDs are "EMU-00000000-0000-0000-0000-%012x" of the index. The driver does not limit memory.
std::unique_ptr<GpuDriver> CreateEmuDriver(const EmuOptions& options);

}  // namespace iris::driver
