// KeepLink: keeps one small mapping of every device that has peers, until the process ends. While
// the mapping exists, mapping more memory of its device is fast
// (docs/decisions/010-links-between-devices.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "device/driver/gpu_driver.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

// Maps `bytes` of the device `uuid`, read-only, for kernels of the local `devices`, unless this
// process has done so before. Takes the descriptor. Thread-safe.
absl::Status KeepLink(std::shared_ptr<driver::GpuDriver> driver, const std::string& uuid,
                      uint64_t bytes, wire::UniqueFd fd, absl::Span<const uint32_t> devices);

// Returns the number of devices to which this process is linked.
size_t LinkCount();

}  // namespace iris::internal
