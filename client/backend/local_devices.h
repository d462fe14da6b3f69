// The driver of this process, and the choice of a rank's device. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"

namespace iris::internal {

// Returns the driver of irisd's backend. The first call makes the driver and the process keeps it,
// because the setup of a device is slow and all ranks of the process share it. kUnimplemented if
// this library does not know the backend. kFailedPrecondition if the driver finds no device; the
// message says why.
absl::StatusOr<std::shared_ptr<driver::GpuDriver>> ProcessDriver(const std::string& backend);

// A rank's device. `indices` has the number of the device in this process, or is empty if only
// irisd knows the devices (emu). irisd then chooses by `uuid`, or by the local rank if it is empty.
struct LocalDevice {
  std::string uuid;
  std::vector<uint32_t> indices;
};

// Returns the device of `wanted_uuid`, or if that is empty, number `local_rank` modulo the number
// of devices that this process sees. irisd may see more devices, in another order. kInvalidArgument
// if this process does not see the wanted device.
absl::StatusOr<LocalDevice> ChooseDevice(const driver::GpuDriver& driver,
                                         const std::string& wanted_uuid, int local_rank);

}  // namespace iris::internal
