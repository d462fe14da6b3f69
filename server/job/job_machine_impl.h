// JobMachine's inside. Every method leaves the effects that it causes in out_, in order. Not
// thread-safe.
//
// Inputs, sessions, watches and deadlines: job_machine.cc. Joining, mapping, leaving, death:
// membership.cc; the same once more: join_again.cc. What another irisd does first: recovered.cc.
// Memory: segments.cc. Operations of teams: team_calls.cc; calls that cannot end:
// awaited_barriers.cc. Growth: growth.cc. What iris-ctl sees: snapshots.cc. What always holds:
// invariants.cc.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/job/deadlines.h"
#include "server/job/job.h"
#include "server/job/job_machine.h"
#include "server/job/kept_memory.h"
#include "server/job/operations/operation.h"
#include "server/job/tracked.h"

namespace iris::server {

struct NeedsGrowth;

struct JobMachine::Impl {
  struct Session {
    SessionId id;
    CallerInfo caller;
    bool ending = false;
    std::optional<LeaseRef> lease;  // for which it speaks
    absl::Time created;
    absl::Time process_began;  // on the steady clock
    // The job that it was last a member of, and what calls that still name it are told.
    JobId past_job;
    absl::Status past_status;
    // Of the Join that made it a member of its job, or of its past one. 0: none, or withdrawn.
    uint64_t join_number = 0;
  };

  // Physical memory that is booked in the ledger.
  struct Segment {
    SegmentInfo info;
    JobId job;
    uint32_t device_index = 0;
    Ledger::Holder holder;
    bool created = false;
    bool dropping = false;
    // A rank has registered it: irisd keeps a descriptor and has no memory of its own behind it, so
    // it is on nobody's account.
    bool registered = false;
  };

  // A call that waits for its Reply.
  struct WaitingCall {
    enum class Kind { kJoin, kMapped, kOperation, kBarrier };
    Kind kind = Kind::kJoin;
    JobId job;
    Rank rank = 0;
    TeamId team = kWorldTeam;
  };

  struct Membership {
    Job* job = nullptr;
    Member* member = nullptr;
    Rank rank = 0;
  };

  Impl(const JobLimits& limits_in, Ledger ledger_in, UnusablePairs unusable_in);

  // Effects.
  template <typename T>
  void Emit(T effect) {
    out_.push_back(std::move(effect));
  }
  Effects TakeEffects() { return std::exchange(out_, {}); }
  void Answer(CallId call, absl::Status status, Result result = Done{});
  // Tells of something that happened to a job, to one of its ranks, or to a session.
  void Note(const Job& job, EventDetail detail) { Note(job, -1, std::move(detail)); }
  void Note(const Job& job, int32_t rank, EventDetail detail);
  void NoteSession(const Session& session, EventDetail detail);
  // Also changes the member's state.
  void SetState(Job& job, Rank rank, RankState state, bool abort);
  void NotifyPeers(const Job& job, Rank rank, const std::string& reason);

  // job_machine.cc.
  // Before an input: what it changes is marked (tracked.h).
  void ClearMarks();
  void OpenSession(SessionId session, const CallerInfo& caller, absl::Duration process_age);
  void OpenWatch(SessionId session, CallId call, JobId job);
  Session* FindSession(SessionId session);
  Job* FindJob(JobId job);
  // Of the lease that the session speaks for; null: it speaks for none.
  Job* JobOf(const Session& session);
  const Job* JobOf(const Session& session) const;
  // Whether the session may call at all now.
  absl::StatusOr<const Session*> CallingSession(SessionId session) const;
  absl::StatusOr<Membership> FindMembership(SessionId session, JobId job);
  void AddWaiting(CallId call, const WaitingCall& waiting) { waiting_[call] = waiting; }
  // Takes a waiting call out of whatever waits with it.
  void Unlist(CallId call, const WaitingCall& waiting);
  void Cancelled(CallId call);
  void Tick();
  void ChangeLimits(const JobLimits& limits);
  void Stop(const std::string& reason);

  // membership.cc.
  void Join(SessionId session, CallId call, const JoinSpec& spec);
  absl::Status TryJoin(Session& session, CallId call, const JoinSpec& spec);
  // Fails the join of a whole job because one of its ranks was refused.
  void Refuse(const Session& session, const JoinSpec& spec, const absl::Status& why);
  void RefuseRank(const CallerInfo& caller, const JoinSpec& spec, const absl::Status& why);
  // Null: there is no job of the name. Ranks that it holds are told otherwise.
  void RememberRefused(const std::pair<Party, std::string>& name, const Job* job, uint32_t n_ranks,
                       RefusedJoin refused);
  // The rank has joined a job of the name.
  void ForgetRefused(const Job& job, Rank joined);
  // What Refuse has left for a rank that comes after the refused one. Ok: it may join.
  absl::Status RefusedBefore(const Session& session, const JoinSpec& spec);
  // join_again.cc. True: the call repeats the session's last Join, and is answered or waits.
  bool JoinAgain(Session& session, CallId call, const JoinSpec& spec);
  // What a rank of a job that is being mapped is told.
  JoinResult JoinResultOf(const Job& job, Rank rank) const;
  // The spec with every default filled in and every size rounded, if nothing is wrong with it that
  // needs no job to see: max_heap_bytes is the stride, device_uuid names the device.
  absl::StatusOr<JoinSpec> CheckJoin(JoinSpec spec) const;
  absl::Status CheckSizes(JoinSpec& spec) const;
  absl::StatusOr<uint32_t> ChooseDevice(const JoinSpec& spec) const;
  // Of a spec that CheckJoin has passed.
  absl::Status CheckMayJoin(const Job& job, const JoinSpec& spec) const;
  absl::Status CheckAgreement(const Job& job, const std::string& what, const JoinSpec& spec) const;
  absl::Status CheckJobLimits(const Party& party) const;
  // The error of the first pair of devices, of this rank and of those that have joined, that cannot
  // use each other's memory. Null: no other has joined.
  absl::Status CheckPeers(const Job* job, const JoinSpec& spec, uint32_t device_index) const;
  void ReportSharedDevices(const Job& job);
  Job& NewJob(const std::string& name, const Party& party, const JoinSpec& spec);
  // Remembers who gave up, for a rank that comes after all of them; and gives them to a new job of
  // the name.
  void RememberAbandoned(const Job& job);
  void RecallAbandoned(Job& job);
  // Removes a rank that waits in Join.
  void WithdrawJoin(Job& job, Rank rank, const absl::Status& status);
  void StartMappingIfComplete(Job& job);
  void Mapped(SessionId session, CallId call, JobId job, uint64_t epoch, uint64_t base,
              const std::string& error);
  void CommitEpoch(Job& job);
  MappedResult MappedResultOf(const Job& job) const;
  void Leave(SessionId session, CallId call, JobId job);
  void Resume(SessionId session, CallId call, JobId job, const std::string& name, int32_t rank,
              uint64_t epoch);
  void CloseSession(SessionId session, const std::string& reason);
  void EndProcess(SessionId session);
  void HangUp(Session& session);
  void Gone(SessionId session);
  void Break(Job& job, std::string reason);
  // Ends a job that is not ready yet: every rank is told.
  void FailJob(Job& job, const absl::Status& status);
  void EndJob(Job& job);
  // The rank is the session's process's, and the session speaks for it.
  void GrantLease(Job& job, Rank rank, Session& session);
  // The rank is nobody's. Calls of the session that still name the job get `told`.
  void EndLease(Job& job, Rank rank, const absl::Status& told);
  // Another session of the same process speaks for the rank from now on.
  void MoveLease(Job& job, Rank rank, Session& to, const absl::Status& told);
  void JoinTimedOut(Job& job, Rank rank);
  void MapTimedOut(Job& job);
  // The caller of a Join is gone. Withdraws it a moment later.
  void CancelJoin(Job& job, Rank rank);
  void WithdrawCancelled(Job& job, Rank rank);
  // Nobody got the answer of that rank's Join: it will not map.
  void JoinUndelivered(Job& job, Rank rank);
  void AnsweredJoinCancelled(CallId call);
  // recovered.cc.
  void Recover(const Recovered& in);
  void ForgetCalls();
  // Pages that nobody has yet are made again if they were not kept; else the job has lost them.
  void RestorePages(Job& job, bool kept);
  // KeptMemory follows the quota that there is now.
  void RestoreAccount(Job& job);
  // Breaks the job, or fails it if it is not ready yet.
  void LoseMemory(Job& job, Rank rank, const std::string& what);
  void LoseSession(SessionId session);
  void ResumeTimedOut(const Job& job, Rank rank);
  void SendDescriptorsAgain(const Job& job);
  // To a rank that has not said that it has mapped the growth that is being mapped, if there is
  // one.
  void SendGrowthAgain(const Job& job, Rank rank);
  std::vector<SegmentId> SortedSegments() const;
  // segments.cc.
  // Accounts for a segment in the ledger and the quota. kResourceExhausted: nothing is booked.
  absl::Status Book(uint32_t device_index, uint64_t bytes, const Ledger::Holder& holder);
  void Unbook(uint32_t device_index, uint64_t bytes, const Ledger::Holder& holder);
  // True if Book will succeed once every segment that is being dropped has been, unless others are
  // faster.
  bool RoomAfterDrops(uint32_t device_index, uint64_t bytes, const Party& party) const;
  // Starts to create a segment that is booked.
  SegmentId CreateBooked(Job& job, Rank rank, uint32_t index, uint64_t offset_bytes,
                         uint64_t bytes);
  // kResourceExhausted unless there is room, or will be after drops.
  absl::Status CheckMemory(uint32_t device_index, uint64_t bytes, const Ledger::Holder& holder);
  // kResourceExhausted if `n` more descriptors of segments and pages would be too many.
  // Whether irisd may hold `n` more for the user; their number changes.
  absl::Status CheckDescriptors(uint64_t n, const Party& party) const;
  void CountDescriptors(const Party& party, int64_t change);
  // For a rank in Join, after CheckMemory: now, or as soon as memory is free.
  void CreateFirstSegment(Job& job, Rank rank);
  void Drop(SegmentId segment);
  // Those that there are.
  void DropAll(const std::vector<SegmentId>& segments);
  void SegmentCreated(SegmentId segment, const absl::Status& status);
  void SegmentDropped(SegmentId segment);
  void ServeStarved();
  // The segments of `job` that were sent to its ranks, `bytes` together, are about to be dropped:
  // they stay on the user's account while a process of the job lives.
  void KeepAccountOf(const Job& job, uint64_t bytes);
  // Whether the session must be kept, although it speaks for nothing, because nothing else would
  // tell when its process ends, which may have memory.
  bool WatchesKeeper(const Session& session) const;
  // The process has ended, and with it what it had mapped.
  void ForgetKeeper(const CallerInfo& process);
  std::vector<SegmentInfo> SegmentsOf(const Job& job) const;

  // team_calls.cc.
  void Operate(SessionId session, CallId call, const OperationSpec& spec);
  void Ask(Job& job, Team& team, size_t index, CallId call, const OperationSpec& spec);
  // Whether irisd can hold so many bytes of a value more for this job and for its user.
  absl::Status CheckRoomForValue(const Job& job, uint64_t bytes) const;
  void WaitFor(Job& job, Team& team, size_t index, CallId call);
  void Execute(Job& job, Team& team);
  void Conclude(Job& job, Team& team, absl::Status status, OperationResult result = {});
  void NoteFailure(const Job& job, const absl::Status& status);
  void ReplyWith(const Team& team, size_t index, CallId call, const Outcome& outcome);
  void OperationTimedOut(Job& job, Team& team);
  // Concludes every operation of the job that can no longer succeed, and answers the questions
  // about barriers that cannot.
  void ConcludeDeadTeams(Job& job);

  // awaited_barriers.cc.
  void AwaitBarrier(SessionId session, CallId call, const AwaitBarrierSpec& spec);
  void AnswerBarrier(Job& job, Rank rank, CallId call, BarrierAnswer answer);
  // Called after the loss of a rank. The status page says what happened to these barriers, and the
  // answer says that no earlier one is on its way (client/internal/host_barrier.h).
  void AnswerBarriersOfDeadTeams(Job& job);
  // Answers the calls of a session that no longer speaks for the rank.
  void RefuseBarriers(Job& job, Rank rank, const absl::Status& why);
  // In which calls the ranks are, as far as irisd knows; for errors.
  std::string WhereAre(const Job& job, const std::vector<Rank>& ranks) const;
  // Fails calls that wait for each other without end.
  void LookForStuck(Job& job);
  // registered.cc.
  // Carries out what a register came to, and concludes it.
  void Adopt(Job& job, Team& team, Adopts adopts);
  // Keeps the descriptors that come with the call that is being applied. They have no place yet.
  absl::StatusOr<GivenMemory> TakePieces(Job& job, Rank rank, const RegisterOp& op);
  // The same of a register that several ranks make together; nothing of all else.
  absl::Status TakeGiven(Job& job, Team& team, size_t index, const Operation& op);
  std::vector<Given> GivenBy(const Team& team) const;
  void ReturnGiven(Job& job, const PendingOp& op);
  // Of an operation that fails: gives back what must not outlast that.
  void FreeFailed(Job& job, Team& team, const Operation& op);

  // growth.cc.
  // The team's operation needs more heap: starts a growth, or queues, or concludes the operation
  // because growth is impossible.
  void RequestGrowth(Job& job, Team& team, const NeedsGrowth& needs);
  absl::Status StartGrowth(Job& job, Team& team, uint64_t needed_bytes, uint64_t wanted_bytes);
  // Books `bytes` for every rank, or for none.
  absl::Status BookGrowth(const Job& job, uint64_t bytes);
  void GrowthSegmentCreated(Job& job, SegmentId segment, const absl::Status& status);
  void AnnounceGrowth(Job& job);
  SegmentsAdded SegmentsAddedBy(const Job& job) const;
  void GrowMapped(SessionId session, CallId call, JobId job, GrowId grow, const std::string& error);
  void PublishGrowth(Job& job);
  void FailGrowth(Job& job, const absl::Status& status);
  void GrowthTimedOut(Job& job);
  void RunGrowthQueue(Job& job);

  // snapshots.cc.
  // The jobs that the query asks for, from `from` on, in order; bool visit(const Job&).
  template <typename Visit>
  void ForJobs(const JobQuery& query, JobId from, Visit visit) const;
  SessionSnapshot SnapshotOf(const Session& session) const;
  RankSnapshot SnapshotOf(const Member& member, Rank rank) const;  // without its segments
  std::vector<SegmentInfo> SegmentsOf(const Member& member) const;

  // invariants.cc.
  absl::Status CheckInvariants() const;
  absl::Status CheckSessions() const;
  absl::Status CheckJob(const Job& job) const;
  absl::Status CheckMember(const Job& job, Rank rank) const;
  absl::Status CheckTeam(const Job& job, const Team& team) const;
  absl::Status CheckHeap(const Job& job) const;
  absl::Status CheckRegistered(const Job& job, uint64_t offset_bytes,
                               const HeapAllocation& allocation) const;
  absl::Status CheckGrowth(const Job& job) const;
  absl::Status CheckSegments() const;
  absl::Status CheckWaitingCalls() const;
  absl::Status CheckDeadlines() const;

  JobLimits limits_;
  Ledger ledger_;
  bool driver_free_changed_ = false;  // of a device of the ledger, by this input
  const UnusablePairs unusable_;
  uint64_t n_descriptors_ = 0;                        // of segments and pages, of every job
  std::map<Party, uint64_t> descriptors_by_account_;  // no zeros
  uint64_t granularity_bytes_ = 0;                    // of every device's memory
  bool stopping_ = false;
  Time now_;  // of the input that is being applied

  Tracked<std::map<SessionId, Session>> sessions_;
  Tracked<std::map<JobId, Box<Job>>> jobs_;
  std::map<std::pair<Party, std::string>, JobId> jobs_by_name_;  // whose, name
  std::map<Party, std::set<JobId>> jobs_by_account_;
  Tracked<std::map<std::pair<Party, std::string>, AbandonedJob>> abandoned_;  // whose, name
  Tracked<std::map<std::pair<Party, std::string>, RefusedJoin>> refused_;     // whose, name
  std::map<Party, std::set<SessionId>> sessions_by_account_;
  std::map<Party, uint64_t> booked_bytes_by_account_;
  std::map<Party, uint64_t> dropping_bytes_by_account_;
  std::map<uint32_t, uint64_t> dropping_bytes_by_device_;
  Watched<KeptMemory> kept_;                  // empty unless users have a quota
  std::set<std::pair<JobId, Rank>> starved_;  // in Join, waiting for memory that is being dropped
  Tracked<absl::flat_hash_map<SegmentId, Segment>> segments_;
  absl::flat_hash_map<CallId, WaitingCall> waiting_;
  DeadlineQueue deadlines_;
  uint64_t next_job_ = 1;
  uint64_t next_segment_ = 1;
  uint64_t next_grow_ = 1;
  Effects out_;
};

}  // namespace iris::server
