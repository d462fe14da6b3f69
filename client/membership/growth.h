// Growth: this rank's part in making the heap larger. irisd announces segments, every rank maps
// them and reports it, and then irisd publishes the larger heap, or withdraws it for all ranks.
//
// Not thread-safe: only the watch thread uses it. Borrows the control plane, the window and the
// heap's size.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/membership/heap_size.h"
#include "client/membership/window.h"
#include "client/session/control_plane.h"
#include "client/wire/job.h"

namespace iris::internal {

class Growth {
 public:
  struct Options {
    uint64_t job_id = 0;
    uint64_t epoch = 0;
    uint32_t rank = 0;
    std::vector<uint32_t> devices;  // whose kernels use the heap, by this process's numbers
  };
  Growth(Options options, ControlPlane* plane, Window* window, HeapSize* heap)
      : options_(std::move(options)), plane_(plane), window_(window), heap_(heap) {}

  // Maps the segments, all or none, and reports the result to irisd. irisd repeats events that an
  // earlier stream may have missed, and descriptors without a report, so segments that are mapped
  // already are only acknowledged again.
  //
  // Growths come one after the other, in the order of their ids, and irisd reports each published
  // one before a later one. So an earlier growth without a report, because the stream was broken,
  // has failed, and is unmapped.
  void OnSegmentsAdded(const SegmentsAdded& added);
  // Publishes the heap's new size, or unmaps the segments again.
  void OnGrowDone(const GrowDone& done);

 private:
  absl::Status Map(const SegmentsAdded& added, const std::vector<DescriptorKey>& keys,
                   absl::Time deadline);
  void Unmap(absl::Span<const DescriptorKey> keys);
  void UnmapEarlier(uint64_t grow_id);

  struct Mapped {
    std::vector<DescriptorKey> keys;
    uint64_t heap_bytes = 0;  // once published
  };

  const Options options_;
  ControlPlane* const plane_;
  Window* const window_;
  HeapSize* const heap_;
  std::map<uint64_t, Mapped> growths_;  // under way, by grow id
  uint64_t published_ = 0;              // the last published grow id of those mapped here
};

}  // namespace iris::internal
