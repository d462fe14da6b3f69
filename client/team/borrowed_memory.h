// BorrowedMemory: registered memory that this rank has open, or has registered with others, mapped
// into the window at the place that irisd has chosen, above the owner's heap.
//
// If a registration failed, irisd may reuse its place before this rank has unmapped it. So segments
// identify a mapping: one with other segments is stale, and is replaced.
//
// Not thread-safe: its owner locks. Borrows the control plane and the window.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/membership/window.h"
#include "client/session/control_plane.h"

namespace iris::internal {

class BorrowedMemory {
 public:
  // The mapped segments of one range of an owner's heap.
  using Segments = std::vector<uint64_t>;

  // `holder` is this rank. Kernels of `devices`, numbered as in this process, use the memory.
  BorrowedMemory(uint32_t holder, std::vector<uint32_t> devices, Window* window)
      : holder_(holder), devices_(std::move(devices)), window_(window) {}

  // Maps the segments of `part` that irisd has lent, all or nothing. If they are mapped already,
  // only counts another Map. Sets `*segments`, if given. kAborted if other segments use their place
  // meanwhile.
  absl::Status Map(const HeapPart& part, std::vector<ControlPlane::Lent> lent,
                   Segments* segments = nullptr);
  // Unmaps the memory at the offset of every owner, if any, even if it was mapped several times.
  void Unmap(uint64_t offset_bytes);
  // Undoes one Map of this owner's memory at the offset, if it is still these segments.
  void Unmap(uint32_t owner, uint64_t offset_bytes, const Segments& segments);
  // Returns true if this owner's memory mapped at the offset is these segments.
  bool Is(uint32_t owner, uint64_t offset_bytes, const Segments& segments) const;
  // Returns true if the range lies in mapped memory of `owner`.
  bool Has(uint32_t owner, uint64_t offset_bytes, uint64_t bytes) const;

 private:
  struct Mapped {
    uint64_t bytes = 0;
    uint64_t begin_bytes = 0, end_bytes = 0;  // of its segments
    uint64_t count = 1;
    Segments segments;
  };
  using OfOwner = std::map<uint64_t, Mapped>;  // by offset

  OfOwner::iterator Erase(OfOwner* all, OfOwner::iterator which);

  const uint32_t holder_;
  const std::vector<uint32_t> devices_;
  Window* const window_;
  std::map<uint32_t, OfOwner> mapped_;
};

}  // namespace iris::internal
