// OwnMemory: memory that a program has allocated itself, by its platform's own calls, as
// GpuDriver::Share takes it: on emulated devices shared mappings of sealed memfds, on GPUs
// allocations of hipMemCreate or cuMemCreate with a shareable descriptor. For tests.
//
// It has several allocations, one after another. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver/backend_kind.h"
#include "device/driver/hip_api.h"

namespace iris::driver::testing {

class OwnMemory {
 public:
  // `library_path`: of the platform's library; empty: where it is looked for. `piece_bytes`: of
  // each allocation, a multiple of the granularity. On a GPU its device is current.
  static absl::StatusOr<std::unique_ptr<OwnMemory>> Create(BackendKind kind,
                                                           const std::string& library_path,
                                                           uint32_t device, uint32_t n_pieces,
                                                           uint64_t piece_bytes);
  ~OwnMemory();
  OwnMemory(const OwnMemory&) = delete;
  OwnMemory& operator=(const OwnMemory&) = delete;

  uint64_t base() const { return base_; }
  uint8_t* at(uint64_t offset_bytes) const {
    return reinterpret_cast<uint8_t*>(base_ + offset_bytes);
  }

 private:
  OwnMemory(uint32_t n_pieces, uint64_t piece_bytes)
      : n_pieces_(n_pieces), piece_bytes_(piece_bytes) {}
  absl::Status MapMemfds();
  absl::Status MapDevice(BackendKind kind, const std::string& library_path, uint32_t device);

  const uint32_t n_pieces_;
  const uint64_t piece_bytes_;
  uint64_t base_ = 0;
  std::vector<int> fds_;         // of emu
  std::unique_ptr<HipApi> api_;  // of a GPU
  std::vector<hipMemGenericAllocationHandle_t> handles_;
};

}  // namespace iris::driver::testing
