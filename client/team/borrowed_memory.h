// BorrowedMemory: registered memory that this rank has open, or has registered with others, mapped
// into the window where irisd has put it: above the owner's heap.
//
// irisd may give a place again before this rank has unmapped it, if a registration failed. So a
// mapping is known by its segments: one with other segments is stale, and is replaced.
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
  // The segments of one range of one owner.
  using Segments = std::vector<uint64_t>;

  // `holder`: this rank. `devices`: whose kernels use it, by this process's numbers.
  BorrowedMemory(uint32_t holder, std::vector<uint32_t> devices, Window* window)
      : holder_(holder), devices_(std::move(devices)), window_(window) {}

  // Maps what irisd has lent of `part`, all or nothing; what is mapped already counts once more.
  // *segments, if given: which they are. kAborted: its place has been given to others meanwhile.
  absl::Status Map(const HeapPart& part, std::vector<ControlPlane::Lent> lent,
                   Segments* segments = nullptr);
  // Unmaps what begins there, of all owners, if anything does, however often it was mapped.
  void Unmap(uint64_t offset_bytes);
  // Takes back one Map of what begins there, of this owner, if it is still these segments.
  void Unmap(uint32_t owner, uint64_t offset_bytes, const Segments& segments);
  // True if these segments of this owner begin there.
  bool Is(uint32_t owner, uint64_t offset_bytes, const Segments& segments) const;
  // True if the range lies in mapped memory of `owner`.
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
