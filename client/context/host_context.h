// HostContext: what is behind an iris::Context: a process's membership in a job and its window onto
// every peer's heap.
//
// The plain types (ContextOptions, AllocateOptions, Allocation, Team, CreateTimings) are in
// client/base/types.h.
//
// Needs irisd on this node. Every call that waits has a
// deadline and, when it expires or a peer is gone, says which ranks are missing or which rank (and
// pid) left, hung up or died: a rank that hung up has lost its session with irisd, and its process
// may still run.
//
// Thread-safe, but calls that are collective (marked so) must be made by all ranks of the team in
// the same order. In a forked child every call fails with kFailedPrecondition, and the windows are
// not mapped. After irisd has gone, mapped memory, barriers and kernels go on; calls that need
// irisd retry with back-off until their deadline, then fail with kUnavailable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/base/types.h"
#include "client/trace/trace_recorder.h"
#include "iris/types.h"
#include "proto/wire/pages.h"

namespace iris::internal {

class HostContext {
 public:
  // Collective over the job's ranks. Connects, joins, maps every peer's heap, and makes the rank's
  // device the calling thread's, for the kernels that it starts. Errors: see
  // HeapService.Join in docs/protocol.md; kUnavailable names the socket and says how to start
  // irisd.
  static absl::StatusOr<std::unique_ptr<HostContext>> Create(const ContextOptions& options);

  // Leaves the job and unmaps in reverse order. Not collective: peers that still wait for this rank
  // get kAborted.
  ~HostContext();
  HostContext(const HostContext&) = delete;
  HostContext& operator=(const HostContext&) = delete;

  uint32_t rank() const;
  uint32_t n_ranks() const;
  const std::string& job() const;
  uint64_t job_id() const;
  uint64_t epoch() const;
  const std::string& device_uuid() const;
  uint32_t device_index() const;       // irisd's number of it; another one in this process
  uint32_t ranks_per_device() const;   // of the device that most ranks of the job share
  const std::string& backend() const;  // of the heap's memory: "emu", or the name of a GPU driver
  uint64_t heap_bytes() const;         // grows
  uint64_t stride_bytes() const;
  bool same_address() const;              // raw pointers mean the same on every rank
  std::vector<void*> heap_bases() const;  // one per rank
  int64_t peer_pid(uint32_t rank) const;
  // "rank 2 (pid 4711, stopped)": for errors about a rank that did not come.
  std::string MissingName(uint32_t rank) const;
  const CreateTimings& create_timings() const;
  // Of this rank; null where the job has no trace. As long as the context.
  TraceRecorder* trace() const;
  wire::ControlPage*
  control_page();  // this rank's own; mapped as long as the context, in its process

  // For kernels. Valid as long as the context, also under growth.
  DeviceContext device_context() const;
  const Team& world() const;

  // Collective over the team. Memory is not cleared: fresh heaps are zero, reused ranges hold what
  // was there. kInvalidArgument: the ranks asked for different things (who asked for what).
  // kResourceExhausted: no room, also after growth. kDeadlineExceeded: names the ranks that did not
  // ask. kAborted: a rank died, hung up or left. Each consumes the call on every rank, so ranks
  // stay in step.
  absl::StatusOr<Allocation> Allocate(const AllocateOptions& options);
  absl::StatusOr<Allocation> Allocate(const AllocateOptions& options, const Team& team);

  // Collective over the team that allocated. The range is reused after every rank has freed it.
  absl::Status Free(const Allocation& allocation);

  // Not collective: a range of this rank's heap alone, which Free gives back. With a name, which no
  // other allocation of this rank has, it is cleared and others can open it; without one, it is
  // what was there, until Publish.
  absl::StatusOr<Allocation> AllocateLocal(const AllocateOptions& options);
  // Not collective: `options.bytes` bytes of this process's own memory, which others can open by
  // `options.name` as what AllocateLocal gave, and which this rank uses where it is: that is the
  // address of the result. Free ends it; the memory must stay until then. kInvalidArgument: memory
  // that cannot be shared, and what to do. kResourceExhausted: no room above the heap.
  absl::StatusOr<Allocation> Register(void* memory, const AllocateOptions& options);
  // Collective over the team: `options.bytes` bytes of every member's own memory lie at one offset
  // above the heap, as if Allocate had given them. The result's address is where they are mapped
  // there, also the caller's own. Free ends it, collectively; the memory must stay until then.
  // Errors are the same on all members. kInvalidArgument: the members differ, or the memory of one
  // cannot be shared: who, why and what to do. kResourceExhausted: no room above the heap, or a
  // member that could not map it.
  absl::StatusOr<Allocation> RegisterTogether(void* memory, const AllocateOptions& options,
                                              const Team& team);
  // Not collective: what AllocateLocal gave without a name has one from now on.
  absl::Status Publish(const Allocation& allocation, const std::string& name);
  // Not collective: what `rank` has allocated so under this name. Waits until it has, at most for
  // `timeout`: kDeadlineExceeded. kAborted: the job is broken, or the rank has left. It stays where
  // it is until Close, also when its owner frees it, whose own access to it ends then.
  absl::StatusOr<Opened> Open(uint32_t rank, const std::string& name, absl::Duration timeout);
  absl::StatusOr<Opened> Open(uint32_t rank, const std::string& name);
  // Not collective. Once for each Open.
  absl::Status Close(const Opened& opened);

  // Collective over all ranks: at least so many more bytes in every heap. Nothing that is mapped
  // moves.
  absl::Status Grow(uint64_t bytes);

  // True if the range lies in any rank's heap as mapped here, or in what that rank has registered
  // together with this one.
  bool IsSymmetric(const void* address, uint64_t bytes = 1) const;
  // kInvalidArgument: an address of this rank's heap that stands for nothing there which all these
  // ranks have: what one has registered alone, or together with others.
  absl::Status CheckShared(const char* role, const void* mine,
                           absl::Span<const uint32_t> ranks) const;
  // The same, or it lies in what that rank has registered and this one has open.
  bool IsMapped(const void* address, uint64_t bytes) const;
  // True if calls with this peer may take the range: it is in this rank's heap, or stands for what
  // the peer has registered and this rank has open.
  bool Reaches(uint32_t peer, const void* mine, uint64_t bytes) const;
  // Rank and offset of an address inside the window; kInvalidArgument outside.
  struct Location {
    uint32_t rank = 0;
    uint64_t offset_bytes = 0;
  };
  absl::StatusOr<Location> Locate(const void* address) const;
  // Why a copy may not touch these bytes of the heap of `rank`, as IRIS_CHECK_ACCESS has it: "x has
  // 256 bytes, the call 400". Nothing if it may.
  std::optional<std::string> Refusal(uint32_t rank, uint64_t offset_bytes, uint64_t bytes) const;

  // The peer's copy of something in this rank's heap. Address arithmetic alone: `mine` must be in
  // this rank's heap.
  template <typename T>
  T* Translate(uint32_t to, T* mine) const {
    return const_cast<T*>(static_cast<const T*>(TranslateAddress(mine, to)));
  }

  // Collective over the team. Through shared memory: no call to irisd. Host work alone: synchronize
  // streams first.
  absl::Status Barrier();
  absl::Status Barrier(const Team& team);
  absl::Status Barrier(const Team& team, absl::Duration timeout);

  // Collective over the team: root's value on every rank. At most 1 MiB. `root` is a world rank.
  absl::StatusOr<std::string> Broadcast(absl::string_view value, uint32_t root);
  absl::StatusOr<std::string> Broadcast(absl::string_view value, uint32_t root, const Team& team);

  // Collective over the parent: every member of the parent calls, with the same list of world ranks
  // (a subset of the parent, in the order wanted). Ranks that are not listed get a Team that is not
  // member().
  absl::StatusOr<Team> CreateTeam(absl::Span<const uint32_t> ranks);
  absl::StatusOr<Team> CreateTeam(absl::Span<const uint32_t> ranks, const Team& parent);
  // Collective over the parent: members of one color become a team, in the order of their keys,
  // then of their places in the parent. A negative color gets a Team that is not member(). At most
  // kMaxTeamRanks colors, as there are members.
  absl::StatusOr<Team> SplitTeam(int32_t color, int32_t key, const Team& parent);
  // Collective over the team.
  absl::Status DestroyTeam(const Team& team);

  // OK while calls are allowed: kFailedPrecondition in a forked child, and after Leave.
  absl::Status Usable() const;
  // False in a forked child.
  bool OwnProcess() const;
  // OK while every rank is alive and none has left; else kAborted naming who and why. No call to
  // irisd.
  absl::Status Health() const;

  // Ends membership now rather than in the destructor. Every later call fails with
  // kFailedPrecondition.
  absl::Status Leave();

 private:
  struct Impl;
  // The area of the rank's trace, if there is to be one. Collective.
  absl::Status MakeTrace();
  // Warns once for each device on which processes have to take turns.
  void WarnOfTurns() const;
  void CloseTrace();
  explicit HostContext(std::unique_ptr<Impl> impl);
  const void* TranslateAddress(const void* mine, uint32_t to) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace iris::internal
