// The driver of this process, and which of the devices that it sees a rank uses. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"

namespace iris::internal {

// Returns the driver of irisd's backend. A process makes it when it first asks, and keeps it,
// because its setup of a device is slow and all ranks of the process share it. kUnimplemented if
// this library knows no such backend. kFailedPrecondition if it finds no device of it; the message
// says why.
absl::StatusOr<std::shared_ptr<driver::GpuDriver>> ProcessDriver(const std::string& backend);

// A rank's device. `indices` is its number in this process: one, or none where irisd alone knows
// the devices (emu), which then chooses by `uuid`, or by the local rank if that is empty.
struct LocalDevice {
  std::string uuid;
  std::vector<uint32_t> indices;
};

// Returns the device of that UUID, or without one, number `local_rank` modulo the number of devices
// that this process sees. These may be fewer than irisd's, in another order. kInvalidArgument if it
// does not see that device.
absl::StatusOr<LocalDevice> ChooseDevice(const driver::GpuDriver& driver,
                                         const std::string& wanted_uuid, int local_rank);

}  // namespace iris::internal
