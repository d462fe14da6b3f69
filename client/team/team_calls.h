// TeamCalls: this rank's teams, the calls that all ranks of a team make together, and the calls
// that the rank makes alone, which irisd takes as calls of its own team.
//
// Operations go through irisd, which decides their one outcome; barriers go through shared pages.
// Every error says first what was attempted. Thread-safe: operations on one team run one after the
// other, and so do barriers. Borrows the arguments of its constructor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/base/context_guard.h"
#include "client/membership/heap_ranges.h"
#include "client/membership/heap_size.h"
#include "client/membership/window.h"
#include "client/port/host_port.h"
#include "client/session/control_plane.h"
#include "client/team/borrowed_memory.h"
#include "client/team/host_barrier.h"
#include "client/team/kernel_table.h"
#include "client/team/node_meeting.h"
#include "client/team/operation_sequence.h"
#include "client/team/timed_lock.h"
#include "client/trace/trace_recorder.h"
#include "iris/context_types.h"
#include "proto/wire/limits.h"

namespace iris::internal {

class TeamCalls {
 public:
  struct Options {
    uint64_t job_id = 0;
    uint32_t rank = 0;
    absl::Duration timeout;  // for calls without their own
    std::string job;
    std::vector<uint32_t> devices;  // their kernels use the heap, as numbered here
    std::vector<Node> nodes;        // of a job that spans several
    bool new_heaps = false;         // nobody has used them before this context
  };
  // The caller has mapped the window's pages. The port is null in a job of one node.
  TeamCalls(Options options, const ContextGuard* guard, ControlPlane* plane, Window* window,
            HeapSize* heap, HostPort* port = nullptr)
      : options_(std::move(options)),
        guard_(guard),
        plane_(plane),
        window_(window),
        heap_(heap),
        port_(port),
        own_{wire::kFirstOwnTeam + options_.rank, {options_.rank}, 0, {}},
        borrowed_(options_.rank, options_.devices, window),
        fresh_from_bytes_(options_.new_heaps ? 0 : ~uint64_t{0}) {
    ranges_->CountFrom(window->first_rank());
    ranges_->Follow(heap);
    MakeState(own_, HostBarrier(own_.ranks, 0, {}, nullptr, window->status()), nullptr);
  }
  ~TeamCalls() { ranges_->End(); }
  TeamCalls(const TeamCalls&) = delete;
  TeamCalls& operator=(const TeamCalls&) = delete;

  // Records calls in the trace of the rank from now on. No other thread may use this object
  // meanwhile. The recorder is borrowed; null: there is no trace.
  void TraceBy(TraceRecorder* recorder) { trace_ = recorder; }

  // Adds a team that irisd has made.
  Team AddTeam(const TeamInfo& info);

  // Implement the calls of Context with these names (client/iris/context.h). A timeout of 0 is that
  // of the options. Allocate sets *fresh to true if nobody has had this rank's memory before, so
  // that it is zero; false means that this is not known. Ranks may get different answers.
  absl::StatusOr<Allocation> Allocate(const AllocateOptions& wanted, const Team& team,
                                      std::optional<absl::Duration> timeout = std::nullopt,
                                      bool* fresh = nullptr);
  absl::StatusOr<Allocation> AllocateLocal(const AllocateOptions& wanted);
  // Uses the bytes, name, dtype and shape of `options`.
  absl::StatusOr<Allocation> Register(void* memory, const AllocateOptions& options);
  absl::StatusOr<Allocation> RegisterTogether(void* memory, const AllocateOptions& options,
                                              const Team& team);
  absl::Status Free(const Allocation& allocation);
  absl::Status Publish(const Allocation& allocation, const std::string& name);
  absl::StatusOr<Opened> Open(uint32_t rank, const std::string& name, absl::Duration timeout);
  absl::Status Close(const Opened& opened);
  absl::Status Grow(uint64_t bytes, const Team& world);
  absl::StatusOr<std::string> Broadcast(absl::string_view value, uint32_t root, const Team& team);
  absl::StatusOr<Team> CreateTeam(absl::Span<const uint32_t> ranks, const Team& parent);
  absl::StatusOr<Team> SplitTeam(int32_t color, int32_t key, const Team& parent);
  absl::Status DestroyTeam(const Team& team);
  absl::Status Barrier(const Team& team, absl::Duration timeout = absl::ZeroDuration());

  // Returns true if the range lies in memory that `owner` has registered and this rank has open.
  bool Borrows(uint32_t owner, uint64_t offset_bytes, uint64_t bytes) const;

  // Returns true if the range lies in memory that a team with all these ranks has registered.
  bool HaveTogether(absl::Span<const uint32_t> ranks, uint64_t offset_bytes, uint64_t bytes) const;

  std::optional<std::string> Refusal(uint32_t rank, uint64_t offset_bytes, uint64_t bytes) const {
    return ranges_->Refusal(rank, offset_bytes, bytes);
  }
  // Returns the allocations of these teams, for DeviceContext::heap_map.
  const backend::HeapMap* heap_map() const { return ranges_->map(); }

 private:
  // One team: its two kinds of calls, each with its own sequence.
  struct State {
    State(const Team& of, ControlPlane* plane, HeapSize* heap, uint64_t job_id,
          const OnlyThread* threads, HostBarrier team_barrier, std::unique_ptr<NodeMeeting> meeting)
        : team(of),
          operations(plane, heap, job_id, of.id, threads),
          barrier(std::move(team_barrier)),
          nodes(std::move(meeting)) {}
    const Team team;
    OperationSequence operations;
    TimedMutex barrier_mutex;
    // Used by the thread that holds the lock.
    HostBarrier barrier;                       // of the ranks of this node
    const std::unique_ptr<NodeMeeting> nodes;  // null if the team has no ranks on other nodes
  };

  void MakeState(const Team& team, HostBarrier barrier, std::unique_ptr<NodeMeeting> nodes)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Returns kFailedPrecondition if this rank is not in the team, or if the team is gone or the
  // context may not be used.
  absl::StatusOr<std::shared_ptr<State>> Find(const Team& team) const;
  // Runs the team's next operation; `what` is put in front of errors.
  absl::StatusOr<OperationResult> Operate(const Team& team, absl::string_view what, Operation op,
                                          std::optional<absl::Duration> timeout = std::nullopt);
  // Runs an operation of `parent` that makes teams. A rank that is in none gets `if_in_none`.
  absl::StatusOr<Team> NewTeam(absl::string_view what, Operation op, const Team& parent,
                               const Team& if_in_none);
  absl::Status PublishAs(absl::string_view what, uint64_t offset_bytes, uint64_t bytes,
                         const std::string& name);
  absl::StatusOr<Allocation> Allocated(const AllocateOptions& wanted, uint32_t team_id,
                                       absl::Span<const uint32_t> ranks,
                                       absl::StatusOr<OperationResult> result);
  // Counts a range of this rank's heap as used. Returns true if nobody has had it before.
  bool UseFirst(uint64_t offset_bytes, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Opened> OpenedAs(absl::string_view what, uint32_t rank, const std::string& name,
                                  const OpenedRange& range);
  // Counts an opened range, and maps it if it is registered memory.
  absl::Status TakeOpened(uint32_t rank, const OpenedRange& range);
  // Memory that a team has registered together.
  struct Together {
    uint64_t bytes = 0;
    std::vector<uint32_t> ranks;
    std::vector<uint32_t> here;  // those of this node, whose memory is mapped
    // The segments of each rank of this node, once they are mapped. They distinguish it from memory
    // that another team registers at the same place after this one is undone.
    std::vector<BorrowedMemory::Segments> segments;
  };
  // Returns the operation that registers `memory`. kInvalidArgument, with the reason, if it cannot
  // be shared.
  absl::StatusOr<RegisterOp> Shared(void* memory, const AllocateOptions& options) const;
  // Maps the parts of all ranks, this rank's included, all or nothing. If `together` has segments,
  // maps only these; kAborted if others are at their place by now.
  absl::Status MapTogether(uint64_t offset_bytes, Together* together);
  // Waits until the port process has registered memory of this rank, if the job has one.
  absl::Status InPort(uint64_t offset_bytes, uint64_t bytes);
  // Unmaps the memory that MapTogether mapped at the offset, if it is still the same.
  void UnmapTogether(uint64_t offset_bytes, const Together& together) ABSL_LOCKS_EXCLUDED(mu_);
  // Unmaps and returns the memory that MapTogether mapped at the offset; nullopt if there is none.
  std::optional<Together> UnmapTogether(uint64_t offset_bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void UnmapParts(uint64_t offset_bytes, const Together& together)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees a range that begins at the offset, by the call `ask`.
  template <typename Ask>
  absl::Status GiveBack(uint64_t offset_bytes, Ask ask);
  absl::Status Meet(State& state, absl::Duration timeout);
  // The part of Meet for a team with ranks on several nodes.
  absl::Status MeetNodes(State& state, absl::Time deadline, BarrierHelp* help);
  // Returns those of the ranks that are on this node.
  std::vector<uint32_t> Here(absl::Span<const uint32_t> ranks) const;
  absl::Duration TimeOr(absl::Duration timeout) const {
    return timeout == absl::ZeroDuration() ? options_.timeout : timeout;
  }

  const Options options_;
  TraceRecorder* trace_ = nullptr;
  const ContextGuard* const guard_;
  ControlPlane* const plane_;
  Window* const window_;
  HeapSize* const heap_;
  HostPort* const port_;
  HeapRanges* const ranges_ = HeapRanges::Make();
  mutable OnlyThread threads_;  // that have made calls here
  const Team own_;              // of this rank alone; it has no barriers

  mutable absl::Mutex mu_;
  std::map<uint32_t, std::shared_ptr<State>> teams_ ABSL_GUARDED_BY(mu_);
  // How often this context has opened the memory of other ranks, by offset, which is unique.
  struct Opens {
    uint64_t n = 0;
    // If it is registered memory of a rank of another node, which is not mapped here.
    uint32_t owner = 0;
    uint64_t bytes = 0;
  };
  std::map<uint64_t, Opens> opened_ ABSL_GUARDED_BY(mu_);
  BorrowedMemory borrowed_ ABSL_GUARDED_BY(mu_);
  // From this offset on, nobody has had the memory of this rank's heap.
  uint64_t fresh_from_bytes_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Together> together_ ABSL_GUARDED_BY(mu_);  // by offset
  // For kernels, which may have copies of teams until the context ends.
  std::vector<std::unique_ptr<KernelTable>> tables_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::internal
