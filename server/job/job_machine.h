// JobMachine: who belongs to which job, and the outcome of every operation of a team. It is the
// whole of irisd's membership logic, without sockets, memory, threads or wall clock: every input
// returns the effects that the daemon must carry out, in order.
//
// Not thread-safe: the daemon holds one mutex around it. Borrows a Clock and the Ledger. Inputs
// never block and never fail: a refusal is a Reply effect with a status. Input is hostile until
// checked here (sizes, names, ranks, sequence numbers).
//
// Life of a job (docs/architecture.md):
//   kForming   Ranks call Join; each gets its first segment at once, or as soon as memory that is
//              being dropped is free. A rank whose time is up is removed and told who is missing;
//              the others wait on. A rank that dies fails every Join.
//   kMapping   All have joined and all segments exist: Join is answered, descriptors are sent.
//              Every rank maps and calls Mapped. One failure, death or timeout fails every rank,
//              and the job is gone; ranks that report later are told the same.
//   kReady     The epoch is committed: operations run. A rank that leaves breaks nothing, but
//              operations of teams that it is in fail with kAborted.
//   kBroken    A rank hung up or died while others were in the job. Every pending and later
//              operation fails with kAborted, naming rank and pid. The job ends when every rank
//              has left or is gone. (The last rank of a job breaks nothing by hanging up: nobody
//              was told, so it may Resume.)
// A job's segments are dropped when the job ends. Its name is free again at once.
//
// Gone means the pidfd says so: HangUp refuses calls and tells peers; only Gone (or Leave) lets go
// of the rank.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/heap/ledger.h"
#include "server/heap/offset_allocator.h"
#include "server/job/clock.h"
#include "server/job/ids.h"

namespace iris::server {

// Same numbers as iris.v1.RankState and wire::PageRankState.
enum class RankState : uint32_t {
  kAbsent = 1,
  kJoined = 2,
  kMapped = 3,
  kReady = 4,
  kEnding = 5,
  kDead = 6,
  kLeft = 7,
};
enum class JobState : uint32_t { kForming = 1, kMapping = 2, kReady = 3, kBroken = 4 };

struct CallerInfo {
  int64_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint64_t process_start = 0;  // start time of the pid, so that a recycled pid is another process
};

struct TensorInfo {
  std::string dtype;
  std::vector<uint64_t> shape;
  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

// Inputs.

struct JoinSpec {
  std::string job;
  int32_t rank = 0;
  int32_t n_ranks = 0;
  uint64_t heap_bytes = 0;
  uint64_t max_heap_bytes = 0;  // 0: four times heap_bytes
  std::string device_uuid;      // empty: local_rank mod devices
  int32_t local_rank = 0;
  bool prealloc = false;
  absl::Duration timeout;  // zero: the default of JobLimits
  uint64_t team_sync_bytes = 0;
};

struct AllocateOp {
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 0;
  std::string name;
  TensorInfo tensor;
  friend bool operator==(const AllocateOp&, const AllocateOp&) = default;
};
struct FreeOp {
  uint64_t offset_bytes = 0;
  friend bool operator==(const FreeOp&, const FreeOp&) = default;
};
struct BroadcastOp {
  Rank root = 0;
  std::string value;  // root's only; not compared
};
struct CreateTeamOp {
  std::vector<Rank> ranks;
  friend bool operator==(const CreateTeamOp&, const CreateTeamOp&) = default;
};
struct DestroyTeamOp {
  uint32_t last_barrier_epoch = 0;  // not compared
};
struct GrowOp {
  uint64_t bytes = 0;
  friend bool operator==(const GrowOp&, const GrowOp&) = default;
};
using Operation =
    std::variant<AllocateOp, FreeOp, BroadcastOp, CreateTeamOp, DestroyTeamOp, GrowOp>;

struct OperationSpec {
  JobId job;
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  absl::Duration timeout;  // zero: the default
  Operation op;
};

// Results.

struct SegmentInfo {
  SegmentId id;
  Rank rank = 0;
  uint32_t index = 0;
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
};
struct PeerInfo {
  Rank rank = 0;
  int64_t pid = 0;
  uint32_t device_index = 0;
};
struct TeamInfo {
  TeamId id = kWorldTeam;
  std::vector<Rank> ranks;
  uint32_t barrier_slot = 0;
  uint32_t barrier_start_epoch = 0;
  uint64_t sync_offset_bytes = 0;
};
struct JoinResult {
  JobId job;
  uint64_t epoch = 0;
  uint64_t proposed_base = 0;
  uint64_t stride_bytes = 0;
  uint64_t granularity_bytes = 0;
  uint64_t heap_bytes = 0;
  std::vector<SegmentInfo> segments;
  std::vector<PeerInfo> peers;
  uint32_t device_index = 0;
  absl::Duration map_timeout;
};
struct MappedResult {
  bool same_address = false;
  TeamInfo world;
};
struct OperationResult {
  uint64_t offset_bytes = 0;
  std::string value;
  std::optional<TeamInfo> team;
  uint64_t heap_bytes = 0;
};
// What came of the k-th operation of a team. `result` is meaningful if `status` is ok.
struct Outcome {
  uint64_t k = 0;
  absl::Status status;
  OperationResult result;
};
struct ResumeResult {
  RankState state = RankState::kAbsent;
};
struct Done {};  // GrowMapped, Leave

// Effects.

// Answers a call. `status` not ok: the call is refused, and `result` means nothing. An operation
// that fails is no refusal: the call is answered with its Outcome.
struct Reply {
  CallId call;
  absl::Status status;
  std::variant<Done, JoinResult, MappedResult, Outcome, ResumeResult> result;
};
// Makes the status page of the job and a control page for each rank. Always precedes any use of
// them.
struct CreatePages {
  JobId job;
  uint32_t n_ranks = 0;
  uint64_t epoch = 0;
};
struct DropPages {
  JobId job;
};
// Creates physical memory on a worker thread, then calls SegmentCreated. Already accounted in the
// ledger.
struct CreateSegment {
  SegmentId id;
  JobId job;
  uint32_t device_index = 0;
  uint64_t bytes = 0;
  bool prealloc = false;
};
// Lets go of the memory on a worker thread, then calls SegmentDropped. May name a segment whose
// creation is still under way or failed: the daemon then drops it once that has ended.
struct DropSegment {
  SegmentId id;
};
// Sends descriptors of the segments, and, if `pages`, of all control pages and the status page, to
// one session.
struct SendDescriptors {
  SessionId session;
  JobId job;
  uint64_t epoch = 0;
  Rank receiver = 0;
  uint32_t n_ranks = 0;
  std::vector<SegmentInfo> segments;
  bool pages = false;
};
// Writes the status page: state and pid of the rank, the abort word, then `changes` + 1 and a wake.
struct SetRankState {
  JobId job;
  Rank rank = 0;
  RankState state = RankState::kAbsent;
  int64_t pid = 0;
  bool abort = false;
};
struct RankChanged {
  Rank rank = 0;
  RankState state = RankState::kAbsent;
  int64_t pid = 0;
  std::string reason;
};
struct SegmentsAdded {
  GrowId grow;
  std::vector<SegmentInfo> segments;
  uint64_t heap_bytes = 0;
  absl::Duration timeout;
};
struct GrowDone {
  GrowId grow;
  bool published = false;
  std::string reason;
};
// For the session's watch stream; dropped if it has none (WatchStarted repeats what still matters).
struct NotifyWatch {
  SessionId session;
  std::variant<RankChanged, SegmentsAdded, GrowDone> event;
};
// For logs and `iris-ctl events`. kind is one of the words of event_kinds.h.
struct EmitEvent {
  std::string kind;
  std::string job;
  int32_t rank = -1;
  int64_t pid = 0;
  uint32_t uid = 0;
  std::string text;
};
using Effect = std::variant<Reply, CreatePages, DropPages, CreateSegment, DropSegment,
                            SendDescriptors, SetRankState, NotifyWatch, EmitEvent>;
using Effects = std::vector<Effect>;

// The machine.

struct JobLimits {
  uint32_t max_jobs = 1024;
  uint32_t max_jobs_per_uid = 256;
  uint64_t max_descriptors = 0;         // of segments and pages, over all jobs; 0: no limit
  uint64_t max_heap_bytes_per_uid = 0;  // over all ranks of all its jobs; 0: no quota
  absl::Duration join_timeout_default = absl::Seconds(60);
  absl::Duration join_timeout_max = absl::Hours(1);
  absl::Duration map_timeout = absl::Seconds(60);
  absl::Duration operation_timeout_default = absl::Seconds(60);
  absl::Duration operation_timeout_max = absl::Hours(1);
  absl::Duration grow_timeout = absl::Seconds(30);
};

// Pairs of devices (from, to) of which kernels of the one cannot use memory of the other, and why.
// (d, d): the device itself is of no use.
using UnusablePairs = std::map<std::pair<uint32_t, uint32_t>, absl::Status>;

// What iris-ctl shows.
struct RankSnapshot {
  Rank rank = 0;
  RankState state = RankState::kAbsent;
  int64_t pid = 0;
  SessionId session;
  uint32_t device_index = 0;
  uint64_t base = 0;
  std::vector<SegmentInfo> segments;
};
struct AllocationSnapshot {
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 0;
  std::string name;
  TensorInfo tensor;
  TeamId team = kWorldTeam;
  uint64_t k = 0;
  absl::Time created;
};
struct JobSnapshot {
  JobId id;
  std::string name;
  uint32_t uid = 0;
  JobState state = JobState::kForming;
  uint64_t epoch = 0;
  uint32_t n_ranks = 0;
  uint64_t heap_bytes = 0;
  uint64_t stride_bytes = 0;
  bool same_address = false;
  uint32_t n_teams = 0;
  uint32_t n_allocations = 0;
  uint64_t allocated_bytes = 0;
  uint64_t largest_free_bytes = 0;
  absl::Time created;
  std::vector<RankSnapshot> ranks;
  std::vector<AllocationSnapshot> allocations;  // if JobQuery::allocations
};
// Which jobs, and how much of them. A job may have 65,536 allocations: they are copied for who
// asks.
struct JobQuery {
  std::optional<uint32_t> uid;  // whose; nobody: everybody's
  std::string name;             // empty: any
  bool allocations = false;
};
struct SessionSnapshot {
  SessionId id;
  CallerInfo caller;
  bool ending = false;
  std::string job;
  int32_t rank = -1;
  absl::Time created;
};

class JobMachine {
 public:
  // `ledger` knows the devices and what is created on each; borrowed, as is `clock`.
  JobMachine(const JobLimits& limits, Ledger* ledger, const Clock* clock,
             UnusablePairs unusable = {});
  ~JobMachine();
  JobMachine(const JobMachine&) = delete;
  JobMachine& operator=(const JobMachine&) = delete;

  // Sessions. OpenSession precedes every other use of the id; Gone ends it. HangUp may come first,
  // or not at all.
  Effects OpenSession(SessionId session, const CallerInfo& caller);
  Effects HangUp(SessionId session);
  Effects Gone(SessionId session);

  // Calls. Each is answered by exactly one Reply with this CallId, now or later.
  Effects Join(SessionId session, CallId call, const JoinSpec& spec);
  Effects Mapped(SessionId session, CallId call, JobId job, uint64_t epoch, uint64_t base,
                 const std::string& error);
  // Each (team, k) has exactly one Outcome, the same status and message for every member, repeated
  // on retry: success, malformed, mismatch, timeout and abort alike. A member's k is consumed
  // exactly when an Outcome answers it; a member that comes so late that the outcome is no longer
  // kept gets one that says so (kOutOfRange). A refusal of the call consumes nothing:
  // kPermissionDenied, kNotFound (no such team), kFailedPrecondition (the job is not ready; k is
  // ahead of the rank's own position), kResourceExhausted (too many retries wait; too many
  // broadcast values are held), kUnavailable (irisd stops).
  Effects Operate(SessionId session, CallId call, const OperationSpec& spec);
  // Answered at once; the growth itself ends with GrowDone.
  Effects GrowMapped(SessionId session, CallId call, JobId job, GrowId grow,
                     const std::string& error);
  Effects Leave(SessionId session, CallId call, JobId job);
  // Moves a rank to a new session of the same process (pid, uid, start time), once the old one has
  // hung up (kUnavailable before: retry). In a broken job the rank moves too, so that it can leave,
  // but the call answers kAborted: the peers were told.
  Effects Resume(SessionId session, CallId call, JobId job, const std::string& name, int32_t rank,
                 uint64_t epoch);
  // The caller of a call is gone (its RPC was cancelled): no Reply was or will be delivered. A
  // pending Join is withdrawn; one that was answered meanwhile fails the job, if its rank has not
  // mapped: it will not. A pending operation stays asked for.
  Effects Cancelled(CallId call);

  // A watch stream was opened: repeats, as NotifyWatch, what its reader may have missed.
  // kPermissionDenied if the session is not a member of the job.
  absl::StatusOr<Effects> WatchStarted(SessionId session, JobId job);

  // Reports of the workers. A creation that failed needs no DropSegment; one that was told to drop
  // meanwhile is released by SegmentDropped alone.
  Effects SegmentCreated(SegmentId segment, const absl::Status& status);
  Effects SegmentDropped(SegmentId segment);

  // Deadlines. Call Tick when NextDeadline (InfiniteFuture if none) has passed.
  absl::Time NextDeadline() const;
  Effects Tick();

  // irisd stops: every pending and later call is answered kUnavailable.
  Effects Stop();

  std::vector<JobSnapshot> Jobs(const JobQuery& query = {}) const;
  size_t n_jobs() const;
  std::vector<SessionSnapshot> Sessions() const;
  bool HasSession(SessionId session) const;
  // True if the session is a member of a job now: only then must it be kept from HangUp until Gone.
  bool HoldsRank(SessionId session) const;

  // For tests and debug builds: every internal invariant; a message naming the first that does not
  // hold.
  absl::Status CheckInvariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace iris::server
