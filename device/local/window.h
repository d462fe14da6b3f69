// Window: heaps of n ranks on the devices of a machine, in one reservation, by the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace iris::local {

struct Window {
  uint64_t base = 0;
  uint64_t stride_bytes = 0;
  std::shared_ptr<void> memory;  // holds all of the window
};

// Puts rank r's heap on device r modulo n_devices. Rounds `stride_bytes` up for the devices.
absl::StatusOr<Window> MakeWindow(const std::string& backend, uint32_t n_ranks,
                                  uint64_t stride_bytes, uint32_t n_devices);

}  // namespace iris::local
