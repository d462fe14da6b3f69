// Window: the address range of one job in this process, and everything mapped into it: peer r's
// heap at base + r * stride_bytes, of ranks of this node and of others that share its fabric; the
// control pages of this node's ranks, and its status page. Ranks that are threads of one process
// share one window (memory mapped twice would cost twice the page tables and hide races from
// tools).
//
// A rank enters with Acquire and holds the segments that it maps. The window unmaps a segment when
// its last holder has released it, and everything in reverse order at its own end. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/membership/job_status.h"
#include "client/wire/job.h"
#include "device/driver/gpu_driver.h"
#include "iris/context_types.h"
#include "proto/wire/pages.h"
#include "proto/wire/unique_fd.h"

namespace iris::internal {

// Ranks of one process with the same key share a window.
struct WindowKey {
  uint64_t daemon_id = 0;
  uint64_t job_id = 0;
  uint64_t epoch = 0;
  friend bool operator<(const WindowKey& a, const WindowKey& b) {
    return std::tie(a.daemon_id, a.job_id, a.epoch) < std::tie(b.daemon_id, b.job_id, b.epoch);
  }
};

struct WindowSpec {
  WindowKey key;
  std::string backend;   // of irisd's devices
  uint32_t n_ranks = 0;  // whose heaps are mapped
  uint64_t stride_bytes = 0;
  uint64_t wanted_base = 0;  // of rank 0's heap, also if that is not mapped
  uint32_t first_rank = 0;   // whose heap is mapped
  // The ranks of this node, whose pages are mapped. n_local 0: all whose heaps are.
  uint32_t first_local = 0;
  uint32_t n_local = 0;
};

class Window {
 public:
  // Returns the window of `spec.key` in this process: that of another rank, or a new one. Makes
  // reservations only. kUnimplemented if this process has no driver for the backend.
  // kResourceExhausted if the address space has no room.
  static absl::StatusOr<std::shared_ptr<Window>> Acquire(const WindowSpec& spec);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // The address at which the heap of rank 0 is, or would be if it were mapped. Calculations
  // with it may wrap around.
  uint64_t base() const { return reservation_->base() - spec_.first_rank * spec_.stride_bytes; }
  uint64_t stride_bytes() const { return spec_.stride_bytes; }
  // The ranks whose heaps are mapped.
  uint32_t first_rank() const { return spec_.first_rank; }
  uint32_t n_ranks() const { return spec_.n_ranks; }
  bool Has(uint32_t rank) const { return rank - spec_.first_rank < spec_.n_ranks; }
  // Returns true for the ranks of this node, which have pages.
  bool IsLocal(uint32_t rank) const { return rank - spec_.first_local < spec_.n_local; }
  uint64_t address(uint32_t rank, uint64_t offset_bytes) const {
    return base() + rank * spec_.stride_bytes + offset_bytes;
  }
  driver::GpuDriver& driver() { return *driver_; }
  const std::shared_ptr<driver::GpuDriver>& shared_driver() const { return driver_; }

  // Maps a segment for `holder` (a rank of this process), unless it is mapped already: idempotent.
  // Kernels of `devices`, numbered as in this process, use it. Takes the descriptor. Adds its times
  // to `times`, if given.
  //
  // irisd gives a place to one segment at a time, and newer segments have larger ids. So an older
  // segment at this place is stale, even if a rank still holds it, and is unmapped. kAborted if a
  // newer one is at this place.
  absl::Status MapSegment(uint32_t holder, const Segment& segment, wire::UniqueFd fd,
                          absl::Span<const uint32_t> devices = {}, CreateTimings* times = nullptr);
  // Release a segment, or all, for `holder`. Segments without a holder are unmapped.
  void UnmapSegment(uint32_t holder, uint64_t segment_id);
  void UnmapAll(uint32_t holder);

  // Maps the page of `rank`; writable, also by kernels, if it is the caller's own. A page that a
  // peer of the same process has mapped read-only becomes writable in place.
  absl::Status MapControlPage(uint32_t rank, wire::UniqueFd fd, bool writable);
  // Maps the status page and makes it readable by kernels.
  absl::Status MapStatusPage(wire::UniqueFd fd);

  // Return mapped pages, which are valid as long as the window, of ranks of this node.
  wire::ControlPage* control_page(uint32_t rank) const;
  JobStatus status() const;
  // Returns the abort word of the status page, at the address for kernels.
  const uint32_t* abort_word() const;
  // Returns the kernel_waits of the control page of `rank`, as kernels address them, or null if
  // kernels cannot write them.
  wire::KernelWait* kernel_waits(uint32_t rank) const;

  size_t n_segments() const;

 private:
  struct MappedSegment {
    Segment where;
    std::unique_ptr<driver::PhysicalMemory> memory;
    std::unique_ptr<driver::Mapping> mapping;  // destroyed before the memory
    std::set<uint32_t> holders;
    MappedSegment() = default;
    MappedSegment(MappedSegment&&) = default;
    MappedSegment& operator=(MappedSegment&&) = default;
    ~MappedSegment() { mapping.reset(); }
  };

  explicit Window(const WindowSpec& spec) : spec_(spec) {}
  // Unmaps older segments in the range of this one.
  absl::Status MakeWay(const Segment& segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void* page(uint32_t index) const;
  absl::Status MapPage(uint32_t index, const wire::UniqueFd& fd, bool writable, const char* what);

  const WindowSpec spec_;
  std::shared_ptr<driver::GpuDriver> driver_;
  std::unique_ptr<driver::Reservation> reservation_;
  // One page for each rank of this node, then the status page: reserved together, mapped one by
  // one.
  void* pages_ = nullptr;

  mutable absl::Mutex mu_;
  std::map<uint64_t, MappedSegment> segments_ ABSL_GUARDED_BY(mu_);  // by segment id
  struct Page {
    bool mapped = false;
    bool writable = false;
    wire::KernelWait* kernel_waits = nullptr;  // as kernels address them
  };
  std::vector<Page> mapped_ ABSL_GUARDED_BY(mu_);  // as pages_
  const uint32_t* abort_word_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace iris::internal
