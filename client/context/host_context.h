// HostContext: the implementation of iris::Context: a rank's place in a job from the first
// connection until the rank leaves, its window onto every peer's heap, and the calls that ranks
// make together. client/iris/context.h has the contracts of the calls.
//
//   Create: connect ──► choose the device ──► join ──► map ──► mapped: the epoch is committed
//
// A failure at any step undoes the earlier steps. Thread-safe. In a forked child every call fails
// with kFailedPrecondition, and the windows are not mapped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/backend/local_devices.h"
#include "client/base/context_guard.h"
#include "client/base/options.h"
#include "client/membership/growth.h"
#include "client/membership/heap_size.h"
#include "client/membership/window.h"
#include "client/port/host_port.h"
#include "client/session/control_plane.h"
#include "client/team/team_calls.h"
#include "client/trace/trace_recorder.h"
#include "iris/types.h"
#include "proto/wire/pages.h"

namespace iris::internal {

// Returns "8 bytes at 0x7f0123" for errors about a range.
std::string RangeText(const void* at, uint64_t bytes);

class HostContext {
 public:
  // Leaves the job and unmaps in reverse order. In a forked child it touches nothing.
  struct Ender {
    void operator()(HostContext* context) const;
  };
  using Owned = std::unique_ptr<HostContext, Ender>;

  // Joins the job, and makes the rank's device the calling thread's current one. Collective over
  // the job's ranks. Errors are those of HeapService.Join in docs/protocol.md; kUnavailable names
  // the socket and says how to start irisd.
  static absl::StatusOr<Owned> Create(const HostContextOptions& options);
  // Joins over `plane`, which is already connected; the connection took `connect_time`. The caller
  // has filled the fields of `options` that may come from the environment.
  static absl::StatusOr<Owned> Create(HostContextOptions options,
                                      std::unique_ptr<ControlPlane> plane,
                                      absl::Duration connect_time);
  HostContext(const HostContext&) = delete;
  HostContext& operator=(const HostContext&) = delete;

  const HostContextOptions& options() const { return options_; }
  uint32_t rank() const { return static_cast<uint32_t>(options_.rank); }
  uint32_t n_ranks() const { return static_cast<uint32_t>(options_.n_ranks); }
  // The ranks of this node.
  uint32_t first_local() const { return job_.first_local; }
  uint32_t n_local() const { return static_cast<uint32_t>(job_.peers.size()); }
  bool IsLocal(uint32_t rank) const { return rank - first_local() < n_local(); }
  // The ranks whose heaps are mapped: those of this node, and of others that share its fabric.
  uint32_t first_mapped() const { return first_mapped_; }
  uint32_t n_mapped() const { return n_mapped_; }
  bool Maps(uint32_t rank) const { return rank - first_mapped_ < n_mapped_; }
  bool spans_nodes() const { return !job_.nodes.empty(); }
  // The way to ranks of other nodes. Null in a job of one node.
  HostPort* port() const { return port_.get(); }
  // The answers of irisd to the join.
  const JoinedJob& job() const { return job_; }
  const CommittedJob& committed() const { return committed_; }
  uint32_t ranks_per_device() const { return ranks_per_device_; }
  const CreateTimings& timings() const { return timings_; }
  const std::string& backend() const { return plane_->backend(); }
  uint64_t heap_bytes() const { return heap_.bytes(); }
  uint64_t stride_bytes() const { return window_->stride_bytes(); }
  // Returns the process id of a rank, or 0 if there is no such rank on this node.
  int64_t peer_pid(uint32_t rank) const {
    return IsLocal(rank) ? job_.peers[rank - first_local()].pid : 0;
  }
  // Returns "rank 2 (pid 4711, stopped)" for errors about a missing rank.
  std::string MissingName(uint32_t rank) const { return window_->status().MissingNames({rank}); }
  // Returns null if the job has no trace. Valid as long as the context.
  TraceRecorder* trace() const { return trace_.get(); }
  driver::GpuDriver& driver() const { return window_->driver(); }
  // This rank's own page; mapped as long as the context, in its process.
  wire::ControlPage* control_page() { return window_->control_page(rank()); }

  const Window& window() const { return *window_; }
  // Returns the value that kernels take, which is valid as long as the context, even if heaps grow.
  DeviceContext device_context() const;
  const Team& world() const { return world_; }

  // The calls of teams, and of this rank alone.
  TeamCalls& teams() { return *teams_; }
  const TeamCalls& teams() const { return *teams_; }

  bool IsSymmetric(const void* address, uint64_t bytes) const;
  // Returns kInvalidArgument for an address of this rank's heap if some of `ranks` have no memory
  // at its offset, because one of them has registered it alone, or together with others.
  absl::Status CheckShared(const char* role, const void* mine,
                           absl::Span<const uint32_t> ranks) const;
  // Return the team of this node's ranks, and that of the ranks with this one's place on their
  // nodes. The first call of each is collective over the world, but for the former in a job of one
  // node, where it is the world.
  absl::StatusOr<Team> LocalTeam();
  absl::StatusOr<Team> RailTeam();

  // Returns true if the range lies in any rank's heap as mapped here, or in memory that the rank
  // has registered and this one has open.
  bool IsMapped(const void* address, uint64_t bytes) const;
  // Return why a call cannot take a range, after its `name`, or nothing if it can. The peer's side
  // has to be in this rank's heap, or to stand for memory that the peer, a rank of this node, has
  // registered and this rank has open. The other side is memory of any kind, but no hole of the
  // window.
  std::optional<std::string> RefusalOfPeerSide(absl::string_view name, uint32_t peer,
                                               const void* mine, uint64_t bytes) const;
  std::optional<std::string> RefusalOfOwnSide(absl::string_view name, const void* at,
                                              uint64_t bytes) const;
  // Finds rank and offset of an address. kInvalidArgument if it is outside the window.
  struct Location {
    uint32_t rank = 0;
    uint64_t offset_bytes = 0;
  };
  absl::StatusOr<Location> Locate(const void* address) const;
  // The same, without a text for what is outside, which most memory of the host is.
  std::optional<Location> Find(const void* address) const;

  // Returns the address of the peer's copy of an object in this rank's heap. It is address
  // arithmetic only: `mine` must be in this rank's heap.
  template <typename T>
  T* Translate(uint32_t to, T* mine) const {
    // Unsigned arithmetic wraps: right for peers below this rank.
    return reinterpret_cast<T*>(reinterpret_cast<uint64_t>(mine) +
                                (static_cast<uint64_t>(to) - rank()) * stride_bytes());
  }

  // Returns OK while calls are allowed: kFailedPrecondition in a forked child, and after Leave.
  absl::Status Usable() const { return guard_.Usable(); }
  // Returns false in a forked child.
  bool OwnProcess() const { return guard_.OwnProcess(); }
  // Returns OK while every rank is alive and none has left; else kAborted, which names the rank and
  // the reason. Does not call irisd.
  absl::Status Health() const;
  // Leaves the job: no more calls are made, and everything is unmapped except the pages of
  // barriers, for threads that are in a barrier.
  absl::Status Leave();

  // Handles an event of irisd. The watch thread calls it, from the end of Create until Leave.
  void OnEvent(const WatchEvent& event);

 private:
  HostContext(HostContextOptions options, std::unique_ptr<ControlPlane> plane)
      : options_(std::move(options)), plane_(std::move(plane)) {}
  // If the rank has not left, irisd reports that it hung up.
  ~HostContext();

  // The steps of Create.
  absl::Status ChooseDevice();
  absl::Status JoinJob();
  absl::Status MapAll();
  // kInternal if irisd's answer to the join is not about this job's ranks and nodes.
  absl::Status CheckJoined();
  // Returns the keys of a join's descriptors: segments, control pages, the status page, the port,
  // links.
  std::vector<DescriptorKey> KeysOfJoin() const;
  // Keeps a link to each device of the job. `fds` has one per device in irisd's order, or none.
  void KeepLinks(absl::Span<wire::UniqueFd> fds);
  absl::Status ReportMapped(const absl::Status& mapped);
  void Begin();

  void OnRankChange(const RankChange& change);
  absl::Status LeaveOnce();

  // Makes the area of the rank's trace, if the options want one. Collective.
  absl::Status MakeTrace();
  void CloseTrace();
  // Warns once for each device that time-slices between processes.
  void WarnOfSharedDevice() const;
  bool InHeap(uint64_t offset_bytes, uint64_t bytes) const {
    return offset_bytes <= heap_bytes() && bytes <= heap_bytes() - offset_bytes;
  }
  // Returns why teams keep the range from being used, after its `name`, or nothing.
  std::optional<std::string> RefusalOfTeams(absl::string_view name, const Location& place,
                                            uint64_t bytes) const;
  // Returns true if these bytes of the rank's heap, or of memory above it, are mapped here.
  bool Has(uint32_t owner, uint64_t offset_bytes, uint64_t bytes) const {
    return InHeap(offset_bytes, bytes) || teams_->Borrows(owner, offset_bytes, bytes);
  }

  // Set by Create, then constant.
  HostContextOptions options_;
  ContextGuard guard_;
  std::unique_ptr<ControlPlane> plane_;
  std::shared_ptr<Window> window_;
  std::unique_ptr<HostPort> port_;  // borrows the window's driver
  LocalDevice local_device_;
  JoinedJob job_;
  uint32_t first_mapped_ = 0;  // of job_, like the next
  uint32_t n_mapped_ = 0;
  CommittedJob committed_;
  uint32_t ranks_per_device_ = 1;
  CreateTimings timings_;
  HeapSize heap_;
  std::optional<TeamCalls> teams_;
  std::optional<Growth> growth_;
  Team world_;
  std::unique_ptr<TraceRecorder> trace_;  // null: none

  absl::Mutex teams_mu_;  // held while one of these is made
  std::optional<Team> local_team_ ABSL_GUARDED_BY(teams_mu_);
  std::optional<Team> rail_team_ ABSL_GUARDED_BY(teams_mu_);

  mutable absl::Mutex mu_;
  bool left_ ABSL_GUARDED_BY(mu_) = false;
  // Ranks that are gone, with irisd's reason.
  std::map<uint32_t, RankChange> gone_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::internal
