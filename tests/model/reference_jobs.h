// ReferenceJobs: what JobMachine must answer, written as plainly as possible. It keeps every
// outcome for ever, finds deadlines by looking at everything, and re-derives after each input what
// follows from it. It predicts for each input which calls are answered, with which code, offset and
// team; and the state of every rank, heap and allocation.
//
// It does not know of limits, quotas or lack of device memory: the chaos test covers those without
// a reference.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/wire/limits.h"
#include "server/job/clock.h"
#include "server/job/job_machine.h"
#include "tests/model/naive_heap.h"

namespace iris::model {

using server::AllocateOp;
using server::BroadcastOp;
using server::CallId;
using server::ConfirmOp;
using server::CreateTeamOp;
using server::DestroyTeamOp;
using server::FreeOp;
using server::GrowOp;
using server::IsOwnTeam;
using server::JobId;
using server::JobState;
using server::OpenOp;
using server::Operation;
using server::OperationSpec;
using server::OwnerOf;
using server::OwnTeam;
using server::PublishOp;
using server::Rank;
using server::RankState;
using server::RegisterOp;
using server::SegmentId;
using server::SessionId;
using server::SplitOp;
using server::TeamId;
using Code = absl::StatusCode;

// What the reference says of one call.
struct Expected {
  Code code = Code::kOk;
  std::optional<uint64_t> offset;      // of an allocate
  std::optional<std::string> value;    // of a broadcast
  std::optional<TeamId> team;          // of a create_team or split, for members
  std::vector<Rank> team_ranks;        // of that team
  std::optional<uint64_t> opened;      // of an open that found something: its offset
  std::optional<uint64_t> heap_bytes;  // of any operation that succeeds
  std::optional<bool> cannot_end;      // of a host barrier
  bool is_outcome = false;             // of a (team, k): the same for every rank
};

struct RefOutcome {
  Expected expected;
  std::map<TeamId, std::vector<Rank>> teams;  // that were made
};

struct RefOp {
  Operation op;
  std::map<Rank, std::vector<CallId>> calls;  // every rank that asked
  std::string value;
  std::vector<RegisterOp> given;         // of a register, as each member asked
  std::map<Rank, SplitOp::Wish> wishes;  // of a split
  absl::Time deadline = absl::InfiniteFuture();
  bool growth_done = false;
  std::map<Rank, uint64_t> asked_alone;  // the job's moment, for ranks with one thread
};

struct RefBarrier {
  CallId call;
  TeamId team;
  std::vector<Rank> missing;
  bool only_thread = false;
  uint64_t entered = 0;
  uint64_t looked = 0;
};

struct RefTeam {
  std::vector<Rank> ranks;
  std::map<Rank, uint64_t> position;
  std::vector<RefOutcome> log;  // by k
  std::optional<RefOp> op;
  uint64_t forgotten_below = 0;
  std::optional<uint64_t> sync_offset;
  std::set<uint64_t> allocations;
  bool destroyed = false;
};

struct RefMember {
  RankState state = RankState::kAbsent;
  SessionId session;
  int64_t pid = 0;
  std::optional<CallId> join_call;
  std::optional<CallId> answered_join;
  absl::Time join_deadline;
  std::optional<absl::Time> withdraw_deadline;  // of a Join that was cancelled
  std::vector<CallId> mapped_calls;
  std::optional<SegmentId> first_segment;
  std::vector<RefBarrier> barriers;
  bool keeps = false;  // its process was sent the job's memory, and lives
  bool attached() const { return session.value != 0; }
};

struct RefGrowth {
  uint64_t id = 0;
  TeamId team = 0;
  uint64_t bytes = 0;
  bool mapping = false;
  std::vector<SegmentId> segments;
  std::set<SegmentId> created;
  std::set<Rank> mapped;
  absl::Time deadline;
};

struct RefJob {
  JobId id;
  std::string name;
  uint32_t uid = 0;
  JobState state = JobState::kForming;
  uint64_t heap_initial = 0;
  uint64_t stride = 0;
  uint64_t sync_bytes = 0;
  std::vector<RefMember> ranks;
  absl::Time map_deadline;
  NaiveHeap heap{0, 1024};
  std::map<uint64_t, std::string> name_of;  // what is not freed
  // What single ranks allocated: whose it is, and by offset every open that was not closed.
  std::map<uint64_t, Rank> owner_of;
  std::multimap<uint64_t, Rank> opens;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> registered;  // by offset: from where, to where
  std::map<TeamId, RefTeam> teams;                               // destroyed ones too
  std::deque<TeamId> past;                                       // destroyed, in order
  std::optional<RefGrowth> growth;
  std::deque<TeamId> growth_queue;
  std::optional<std::pair<uint64_t, bool>> last_growth;  // id, published
  uint64_t last_published = 0;
  uint64_t moment = 0;
  size_t n_attached() const {
    return std::count_if(ranks.begin(), ranks.end(),
                         [](const RefMember& m) { return m.attached(); });
  }
};

struct RefSession {
  int64_t pid = 0;
  uint32_t uid = 0;
  bool ending = false;
  JobId job;
  Rank rank = 0;
  JobId past_job;
  Code past_code = Code::kOk;
  uint64_t join_number = 0;  // of the last Join that was taken and not withdrawn
  absl::Time began;          // of its process
};

// A rank was refused while its job formed. Ranks that come later are told, each once.
struct RefRefused {
  Code code = Code::kOk;
  Rank rank = 0;
  absl::Time when;
  absl::Time until;
  std::set<Rank> untold;
};

// Memory that is given back, and the processes that may have it mapped.
struct RefKept {
  uint32_t uid = 0;
  std::set<int64_t> pids;
  uint64_t bytes = 0;
};

struct RefSegment {
  uint64_t bytes = 0;
  JobId job;
  bool created = false;
  bool dropping = false;
};

class ReferenceJobs {
 public:
  // follows_memory: users have a quota, too large to refuse anything.
  ReferenceJobs(uint64_t granularity, const server::Clock* clock, bool follows_memory)
      : granularity_(granularity), clock_(clock), follows_memory_(follows_memory) {}

  // Inputs; each adds to expected().

  void OpenSession(SessionId id, int64_t pid, uint32_t uid, absl::Duration age) {
    sessions_[id] = {.pid = pid, .uid = uid, .began = clock_->Now() - age};
  }
  void HangUp(SessionId id);
  void Gone(SessionId id);
  void Join(SessionId id, CallId call, const server::JoinSpec& spec);
  void Mapped(SessionId id, CallId call, JobId job, bool error);
  void Operate(SessionId id, CallId call, const OperationSpec& spec);
  void AwaitBarrier(SessionId id, CallId call, const server::AwaitBarrierSpec& spec);
  void GrowMapped(SessionId id, CallId call, JobId job, uint64_t grow, bool error);
  void Leave(SessionId id, CallId call, JobId job);
  void Resume(SessionId id, CallId call, JobId job, const std::string& name, int32_t rank,
              uint64_t epoch);
  void Cancelled(CallId call);
  void Watch(SessionId id, CallId call, JobId job);
  void SegmentCreated(SegmentId id, bool ok);
  void SegmentDropped(SegmentId id);
  void Tick();

  // The machine names new segments and jobs: it tells, and the reference says where they belong.
  void LearnJob(JobId id) {
    new_job_->id = id;
    jobs_[id] = std::move(new_job_);
  }
  bool WantsJob() const { return new_job_ != nullptr; }
  void LearnSegment(JobId job, SegmentId id, uint64_t bytes);

  // Predictions.

  std::map<CallId, Expected> TakeExpected() { return std::exchange(expected_, {}); }
  absl::Time NextDeadline() const;
  uint64_t BookedBytes() const;
  uint64_t KeptBytes() const;
  const std::map<JobId, std::unique_ptr<RefJob>>& jobs() const { return jobs_; }
  const std::map<SessionId, RefSession>& sessions() const { return sessions_; }
  const std::map<SegmentId, RefSegment>& segments() const { return segments_; }
  RefJob* Find(JobId id) {
    const auto found = jobs_.find(id);
    return found == jobs_.end() ? nullptr : found->second.get();
  }

 private:
  struct Due {
    absl::Time when = absl::InfiniteFuture();
    JobId job;
    int kind = 0;  // 0 join, 1 map, 2 operation, 3 growth, 4 withdrawal
    uint32_t index = 0;
    auto Key() const { return std::tuple(when, job.value, kind, index); }
  };
  std::vector<Due> Deadlines() const;
  void Expect(CallId call, Code code) { expected_[call] = {.code = code}; }
  // Returns null after it has refused the call, unless the session is a member of the job.
  RefJob* Member(SessionId id, CallId call, JobId job);
  void Detach(RefJob& job, Rank rank, Code told);
  // Returns true if the Join repeats the session's last one.
  bool JoinAgain(RefSession& who, CallId call, const server::JoinSpec& spec);
  void Withdraw(RefJob& job, Rank rank, Code code);
  // Answers a Join with an error; fails that of its job, if it is of one of its ranks. Null: there
  // is no job.
  void Refuse(const RefSession& who, CallId call, const server::JoinSpec& spec, RefJob* job,
              Code code);
  void RememberRefused(uint32_t uid, const std::string& name, const RefJob* job, size_t n_ranks,
                       RefRefused refused);
  // The Join was cancelled, and its session has not hung up.
  void WithdrawCancelled(RefJob& job, Rank rank);
  void FailJob(RefJob& job, Code code);
  void EndJob(RefJob& job);
  void Keep(const RefJob& job, uint64_t bytes);
  // Whether a session that hung up stays, for the sake of what its process may have mapped.
  bool Stays(SessionId id) const;
  void Drop(SegmentId id) { segments_.at(id).dropping = true; }
  void FinishForming(RefJob& job);
  bool Alive(const RefJob& job, const RefTeam& team) const;
  void AbortDeadTeams(RefJob& job);
  // Ends calls that wait for each other: those from which what ranks need leads back to where it
  // was.
  void EndStuckCalls(RefJob& job);
  void Conclude(RefJob& job, TeamId id, Expected expected,
                std::map<TeamId, std::vector<Rank>> teams = {});
  void Fail(RefJob& job, TeamId id, Code code) { Conclude(job, id, {.code = code}); }
  void Execute(RefJob& job, TeamId id);
  // The offset of what has the name among those of a rank alone, or of several ranks.
  static std::optional<uint64_t> Named(const RefJob& job, const std::string& name,
                                       std::optional<Rank> owner);
  // Whether the team may not give the name.
  static bool Taken(const RefJob& job, TeamId id, const std::string& name);
  void Register(RefJob& job, TeamId id, const RegisterOp& op);
  // Memory whose registration is not confirmed is nobody's any more.
  void Unconfirmed(RefJob& job, TeamId id, const Operation& op);
  void FreeOrClose(RefJob& job, TeamId id, uint64_t offset);
  static void Close(RefJob& job, std::multimap<uint64_t, Rank>::iterator open);
  static void Release(RefJob& job, uint64_t offset);
  void NeedGrowth(RefJob& job, TeamId id, uint64_t needed, uint64_t wanted);
  void FailGrowth(RefJob& job, Code code);
  void RunQueue(RefJob& job);
  void Forget(RefTeam& team);
  std::optional<uint64_t> MakeTeam(RefJob& job, const std::vector<Rank>& ranks, TeamId id);
  // All of them, or none.
  void MakeTeams(RefJob& job, TeamId id, const std::vector<std::vector<Rank>>& lists);
  static Expected ForRank(const RefOutcome& outcome, Rank rank);

  const uint64_t granularity_;
  const server::Clock* const clock_;
  const bool follows_memory_;
  std::map<SessionId, RefSession> sessions_;
  std::map<JobId, std::unique_ptr<RefJob>> jobs_;
  std::map<SegmentId, RefSegment> segments_;
  std::vector<RefKept> kept_;
  std::map<CallId, Expected> expected_;
  std::unique_ptr<RefJob> new_job_;
  std::map<std::pair<uint32_t, std::string>, RefRefused> refused_;  // uid, name
  uint64_t next_grow_ = 1;
};

}  // namespace iris::model
