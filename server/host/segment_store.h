// SegmentStore: the physical memory of the jobs' segments, and of the links between devices. It
// creates and frees memory of segments on worker threads, since both take the kernel long, and
// makes descriptors for sessions. The kernel charges reserved pages of emulated devices to this
// process, so the store asks HostMemory first.
//
// Thread-safe. Borrows the driver, the host's memory, the worker pools and the logger. Reports come
// from worker threads, with no lock held. A drop lasts until the last holder releases the memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "device/driver/gpu_driver.h"
#include "server/events/log.h"
#include "server/host/job_pages.h"
#include "server/host/limits.h"
#include "server/host/threads.h"
#include "server/job/effects.h"
#include "server/job/inputs.h"
#include "server/keep/descriptor_keeper.h"
#include "server/session/outbox.h"

namespace iris::server {

class SegmentStore {
 public:
  // Memory of one segment. The last holder passes it to the workers, which free it.
  class Held {
   public:
    // `device_index` is of this node; none for imported memory.
    Held(SegmentStore* store, SegmentId segment, std::optional<uint32_t> device_index,
         std::unique_ptr<driver::PhysicalMemory> memory);
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

    std::optional<uint32_t> device_index() const { return device_index_; }
    driver::PhysicalMemory& memory() const { return *memory_; }

   private:
    SegmentStore* const store_;
    const SegmentId segment_;
    const std::optional<uint32_t> device_index_;
    std::unique_ptr<driver::PhysicalMemory> memory_;
  };

  // Receives SegmentCreated, SegmentDropped and DriverFree.
  using Report = std::function<void(const Input&)>;

  // Makes `keeper` (null: none) keep each segment's memory for a later irisd, from before
  // SegmentCreated until the segment is dropped.
  void SetKeeper(DescriptorKeeper* keeper) ABSL_LOCKS_EXCLUDED(mu_);

  // `quick` creates memory without reserving pages, and must not wait for slow work. `slow`
  // reserves pages and frees memory. Stop both pools before the store is destroyed. Makes a
  // link of each device, if the driver wants links; without them joins are slower.
  SegmentStore(driver::GpuDriver* driver, HostMemory* host_memory, WorkerPool* quick,
               WorkerPool* slow, Report report, const Logger* logger);
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;

  // Starts to create a segment. Reports SegmentCreated.
  void Create(const CreateSegment& wanted) ABSL_LOCKS_EXCLUDED(mu_);

  // Adds memory of another node, of which this one has the fabric handle. If that fails, the
  // segment has no memory.
  void Import(const ImportSegment& wanted) ABSL_LOCKS_EXCLUDED(mu_);

  // Adds existing memory as a segment.
  void Adopt(const AdoptSegment& wanted, std::unique_ptr<driver::PhysicalMemory> memory)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Restores a segment whose memory an earlier irisd has kept.
  void Restore(const AdoptSegment& wanted, std::unique_ptr<driver::PhysicalMemory> memory)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Drops the segment after its creation has ended. Reports SegmentDropped once it is freed.
  void Drop(SegmentId segment) ABSL_LOCKS_EXCLUDED(mu_);

  // Returns null if the segment does not exist, is not created yet, or is dropped.
  std::shared_ptr<Held> Find(SegmentId segment) const ABSL_LOCKS_EXCLUDED(mu_);

  // Copies bytes of a segment into `out`. Returns kNotFound if there is no such segment.
  absl::Status Read(SegmentId segment, uint64_t offset_bytes, absl::Span<uint8_t> out) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Makes the descriptors of the effect: of the job's pages if they are wanted (an error in `pages`
  // is then returned), of the segments, and of links between their devices.
  absl::StatusOr<std::vector<OutgoingDescriptor>> Export(
      const SendDescriptors& wanted, const absl::StatusOr<JobPages*>& pages) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Makes descriptors of the segments only. `access` is kReadWrite for ranks of the job. Returns
  // kNotFound if a segment has no memory now.
  absl::StatusOr<std::vector<OutgoingDescriptor>> ExportSegments(const SendDescriptors& wanted,
                                                                 driver::Access access) const
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the size of each device's piece that a Join sends, or 0 if a Join sends none.
  uint64_t link_bytes() const { return links_.empty() ? 0 : driver_->link_bytes(); }

  // Returns zeros if the segment does not exist.
  driver::CreateTimes TimesOf(SegmentId segment) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Segment {
    bool creating = true;
    bool drop = false;  // requested during the creation
    std::shared_ptr<Held> held;
  };

  absl::StatusOr<std::unique_ptr<driver::PhysicalMemory>> Make(const CreateSegment& wanted);
  void Keep(SegmentId segment, driver::PhysicalMemory& memory) ABSL_LOCKS_EXCLUDED(mu_);
  DescriptorKeeper* keeper() const ABSL_LOCKS_EXCLUDED(mu_);
  void Add(SegmentId segment, std::optional<uint32_t> device_index,
           std::unique_ptr<driver::PhysicalMemory> memory) ABSL_LOCKS_EXCLUDED(mu_);
  void CreateOnWorker(const CreateSegment& wanted) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the handle for other nodes, or "" with a warning.
  std::string ExportToFabric(SegmentId segment, driver::PhysicalMemory& memory) const;
  void Retire(SegmentId segment, std::unique_ptr<driver::PhysicalMemory> memory);
  // Reports the driver's count of a device's free memory. Not for threads that serve sessions.
  void AskDriverForFree(uint32_t device_index);

  driver::GpuDriver* const driver_;
  HostMemory* const host_memory_;
  WorkerPool* const quick_;
  WorkerPool* const slow_;
  const Report report_;
  const Logger* const logger_;
  // One per device while irisd runs; empty if the driver needs none.
  std::vector<std::shared_ptr<driver::PhysicalMemory>> links_;

  mutable absl::Mutex mu_;
  DescriptorKeeper* keeper_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::map<SegmentId, Segment> segments_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::server
