// HostContext: what an iris::Context stands for: a process's membership in a job, its window onto
// every peer's heap, and the calls that ranks make together. client/iris/context.h says what each
// call does, and what its errors mean.
//
// Thread-safe. In a forked child every call fails with kFailedPrecondition, and the windows are not
// mapped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/base/options.h"
#include "client/membership/growth.h"
#include "client/membership/heap_size.h"
#include "client/membership/membership.h"
#include "client/team/team_calls.h"
#include "client/trace/trace_recorder.h"
#include "iris/types.h"
#include "proto/wire/pages.h"

namespace iris::internal {

class HostContext {
 public:
  // Leaves the job and unmaps in reverse order. In a forked child it touches nothing.
  struct Ender {
    void operator()(HostContext* context) const;
  };
  using Owned = std::unique_ptr<HostContext, Ender>;

  // Collective over the job's ranks. It makes the rank's device that of the calling thread. Errors
  // are those of HeapService.Join in docs/protocol.md; kUnavailable names the socket and says how
  // to start irisd.
  static absl::StatusOr<Owned> Create(const HostContextOptions& options);
  HostContext(const HostContext&) = delete;
  HostContext& operator=(const HostContext&) = delete;

  const Membership& membership() const { return *membership_; }
  uint32_t rank() const { return membership_->rank(); }
  uint32_t n_ranks() const { return membership_->n_ranks(); }
  uint32_t ranks_per_device() const { return membership_->ranks_per_device(); }
  const std::string& backend() const { return membership_->plane().backend(); }
  uint64_t heap_bytes() const { return heap_.bytes(); }
  uint64_t stride_bytes() const { return window_.stride_bytes(); }
  // Returns 0 if there is no such rank.
  int64_t peer_pid(uint32_t rank) const {
    return rank < n_ranks() ? membership_->job().peers[rank].pid : 0;
  }
  // "rank 2 (pid 4711, stopped)": for errors about a rank that did not come.
  std::string MissingName(uint32_t rank) const { return window_.status().MissingNames({rank}); }
  // Returns null if the job has no trace. Valid as long as the context.
  TraceRecorder* trace() const { return trace_.get(); }
  // This rank's own page; mapped as long as the context, in its process.
  wire::ControlPage* control_page() { return window_.control_page(rank()); }

  // The value that kernels take. Valid as long as the context, also under growth.
  DeviceContext device_context() const;
  const Team& world() const { return world_; }

  // The calls of teams, and of this rank alone.
  TeamCalls& teams() { return teams_; }
  const TeamCalls& teams() const { return teams_; }

  bool IsSymmetric(const void* address, uint64_t bytes) const;
  // Returns kInvalidArgument for an address of this rank's heap at whose offset not all these ranks
  // have memory: one of them has registered it alone, or together with others.
  absl::Status CheckShared(const char* role, const void* mine,
                           absl::Span<const uint32_t> ranks) const;
  // Returns true if the range lies in any rank's heap as mapped here, or in what that rank has
  // registered and this one has open.
  bool IsMapped(const void* address, uint64_t bytes) const;
  // Returns true if calls with this peer may take the range: it is in this rank's heap, or stands
  // for what the peer has registered and this rank has open.
  bool Reaches(uint32_t peer, const void* mine, uint64_t bytes) const;
  // Rank and offset of an address inside the window; kInvalidArgument outside.
  struct Location {
    uint32_t rank = 0;
    uint64_t offset_bytes = 0;
  };
  absl::StatusOr<Location> Locate(const void* address) const;

  // Returns the address of the peer's copy of an object in this rank's heap. It is address
  // arithmetic only: `mine` must be in this rank's heap.
  template <typename T>
  T* Translate(uint32_t to, T* mine) const {
    // Unsigned arithmetic wraps: right for peers below this rank.
    return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(mine) +
                                (static_cast<uint64_t>(to) - rank()) * stride_bytes());
  }

  // Returns OK while calls are allowed: kFailedPrecondition in a forked child, and after Leave.
  absl::Status Usable() const { return membership_->guard().Usable(); }
  // Returns false in a forked child.
  bool OwnProcess() const { return membership_->guard().OwnProcess(); }
  absl::Status Health() const { return membership_->Health(); }
  absl::Status Leave();

 private:
  explicit HostContext(std::unique_ptr<Membership> membership);
  ~HostContext() = default;

  // The watch thread calls it, from the end of the constructor until Leave.
  void OnEvent(const WatchEvent& event);

  // Makes the area of the rank's trace, if there is to be one. Collective.
  absl::Status MakeTrace();
  void CloseTrace();
  // Warns once for each device on which processes take turns.
  void WarnOfSharedDevice() const;
  bool InHeap(uint64_t offset_bytes, uint64_t bytes) const {
    return offset_bytes <= heap_bytes() && bytes <= heap_bytes() - offset_bytes;
  }
  // True if these bytes of the rank's heap, or of memory above it, are mapped here.
  bool Has(uint32_t owner, uint64_t offset_bytes, uint64_t bytes) const {
    return InHeap(offset_bytes, bytes) || teams_.Borrows(owner, offset_bytes, bytes);
  }

  const std::unique_ptr<Membership> membership_;
  Window& window_;
  HeapSize heap_;
  TeamCalls teams_;
  Growth growth_;
  const Team world_;
  std::unique_ptr<TraceRecorder> trace_;  // set by Create, then constant
};

}  // namespace iris::internal
