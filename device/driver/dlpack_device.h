// DLPack's numbers for kinds of devices: DLDeviceType of its header. C++17.
#pragma once

#include <cstdint>
#include <string_view>

namespace iris::driver {

inline constexpr int32_t kDlpackHost = 1;

// Returns 0 if there is no such backend.
constexpr int32_t DlpackDevice(std::string_view backend) {
  return backend == "emu" ? kDlpackHost : backend == "cuda" ? 2 : backend == "hip" ? 10 : 0;
}

}  // namespace iris::driver
