#include "device/local/window.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "device/driver/gpu_driver.h"
#include "device/driver/open.h"

namespace iris::local {
namespace {

// Returns the driver of the process, which lives as long as the process, as devices do.
absl::StatusOr<driver::GpuDriver*> DriverOf(const std::string& backend) {
  static absl::StatusOr<driver::OpenedDriver>* const opened = [&backend] {
    driver::OpenOptions options;
    options.backend = backend;
    return new absl::StatusOr<driver::OpenedDriver>(driver::OpenDriver(options));
  }();
  if (!opened->ok()) return opened->status();
  return (*opened)->driver.get();
}

// Members are destroyed in reverse: mappings before the memory and the range that they connect.
struct Parts {
  std::unique_ptr<driver::Reservation> reservation;
  std::vector<std::unique_ptr<driver::PhysicalMemory>> memory;
  std::vector<std::unique_ptr<driver::Mapping>> mappings;
};

}  // namespace

absl::StatusOr<Window> MakeWindow(const std::string& backend, uint32_t n_ranks,
                                  uint64_t stride_bytes, uint32_t n_devices) {
  const absl::StatusOr<driver::GpuDriver*> driver = DriverOf(backend);
  if (!driver.ok()) return driver.status();
  std::vector<uint32_t> devices;
  for (uint32_t d = 0; d < n_devices; ++d) {
    const uint64_t granularity = (*driver)->devices()[d].granularity_bytes;
    stride_bytes = (stride_bytes + granularity - 1) / granularity * granularity;
    devices.push_back(d);
    if (absl::Status status = (*driver)->MakeCurrent(d); !status.ok()) return status;
  }
  const auto parts = std::make_shared<Parts>();
  auto range = (*driver)->Reserve(stride_bytes, n_ranks, 0);
  if (!range.ok()) return range.status();
  parts->reservation = *std::move(range);
  for (uint32_t r = 0; r < n_ranks; ++r) {
    auto piece = (*driver)->Create(r % n_devices, stride_bytes, false);
    if (!piece.ok()) return piece.status();
    parts->memory.push_back(*std::move(piece));
    auto mapping = (*driver)->Map(*parts->reservation, r * stride_bytes, *parts->memory.back(),
                                  driver::Access::kReadWrite, devices);
    if (!mapping.ok()) return mapping.status();
    parts->mappings.push_back(*std::move(mapping));
  }
  return Window{parts->reservation->base(), stride_bytes, parts};
}

}  // namespace iris::local
