// Launches and the current device, as the headers of GPU backends need them. C++17.
#pragma once

#include <cstdint>
#include <tuple>

#include "iris/backend/raw_host.h"
#include "iris/backend/types.h"

namespace iris::backend::raw {

// Launches a kernel. `arguments` has a pointer to each argument of the kernel, and a null pointer.
Result LaunchKernel(const LaunchConfig& config, const StreamHandle& stream, const void* kernel,
                    void** arguments);

template <typename... Params, typename... Values>
Result Launch(const LaunchConfig& config, const StreamHandle& stream, void (*kernel)(Params...),
              std::tuple<Values...>& values) {
  return std::apply(
      [&](Values&... value) {
        void* arguments[] = {static_cast<void*>(&value)..., nullptr};
        return LaunchKernel(config, stream, reinterpret_cast<const void*>(kernel), arguments);
      },
      values);
}

// Converts a time of the runtimes, which measure in milliseconds. Negative times become 0.
inline uint64_t NanosecondsOf(float milliseconds) {
  return milliseconds > 0 ? static_cast<uint64_t>(static_cast<double>(milliseconds) * 1e6) : 0;
}

// Makes a device current on this thread while the object lives. -1 does not change the device.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace iris::backend::raw
