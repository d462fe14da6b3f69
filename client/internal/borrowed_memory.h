// BorrowedMemory: what ranks have registered and this rank has open, or has registered with them,
// mapped into the window where irisd has put it: above the owner's heap.
//
// Not thread-safe: its owner locks. Borrows the control plane and the window.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/internal/control_plane.h"
#include "client/internal/window.h"

namespace iris::internal {

class BorrowedMemory {
 public:
  // `holder`: this rank. `devices`: whose kernels use it, by this process's numbers.
  BorrowedMemory(uint32_t holder, std::vector<uint32_t> devices, Window* window)
      : holder_(holder), devices_(std::move(devices)), window_(window) {}

  // Maps what irisd has lent of `part`, all or nothing. Idempotent.
  absl::Status Map(const HeapPart& part, std::vector<ControlPlane::Lent> lent);
  // Unmaps what begins there, of all owners, if anything does.
  void Unmap(uint64_t offset_bytes);
  // Whether the range lies in memory of `owner` that is mapped.
  bool Has(uint32_t owner, uint64_t offset_bytes, uint64_t bytes) const;

 private:
  struct Mapped {
    uint64_t bytes = 0;
    std::vector<uint64_t> segment_ids;
  };

  const uint32_t holder_;
  const std::vector<uint32_t> devices_;
  Window* const window_;
  std::map<uint32_t, std::map<uint64_t, Mapped>> mapped_;  // by owner and offset
};

}  // namespace iris::internal
