// DescriptorSource: makes descriptors for a session of the effect SendDescriptors: of the job's
// pages, of segments, and of the links between devices. Thread-safe; immutable after construction.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "device/driver/gpu_driver.h"
#include "server/events/log.h"
#include "server/host/job_pages.h"
#include "server/host/segment_store.h"
#include "server/job/effects.h"
#include "server/session/outbox.h"

namespace iris::server {

class DescriptorSource {
 public:
  // Makes a link of each device, if the driver wants links; without them joins are slower.
  DescriptorSource(driver::GpuDriver* driver, const SegmentStore* segments, const Logger* logger);

  // `pages` are the job's; their error is returned if they are wanted.
  absl::StatusOr<std::vector<OutgoingDescriptor>> Build(
      const SendDescriptors& wanted, const absl::StatusOr<JobPages*>& pages) const;
  // Returns descriptors of segments only, kReadWrite for ranks of the job. kNotFound if one of them
  // has no memory now.
  absl::StatusOr<std::vector<OutgoingDescriptor>> BuildSegments(const SendDescriptors& wanted,
                                                                driver::Access access) const;

  // Size of the piece of each device that a Join sends; 0: it sends none.
  uint64_t link_bytes() const { return links_.empty() ? 0 : driver_->link_bytes(); }

 private:
  driver::GpuDriver* const driver_;
  const SegmentStore* const segments_;
  // One per device, for as long as irisd runs; empty where the driver needs none.
  std::vector<std::shared_ptr<driver::PhysicalMemory>> links_;
};

}  // namespace iris::server
