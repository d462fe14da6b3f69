// Window: heaps of n ranks on the devices of a machine, in one reservation, by the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace iris::local {

class Window {
 public:
  // Rank r's heap lies on device r modulo n_devices. Rounds `stride_bytes` up for the devices.
  Window(const std::string& backend, uint32_t n_ranks, uint64_t stride_bytes, uint32_t n_devices);
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window();

  // Empty, or what failed: then there is no memory at base().
  const std::string& error() const { return error_; }
  uint64_t base() const { return base_; }
  uint64_t stride_bytes() const { return stride_bytes_; }

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
  std::string error_;
  uint64_t base_ = 0;
  uint64_t stride_bytes_ = 0;
};

}  // namespace iris::local
