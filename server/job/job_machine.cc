// The way of an input: to what it means, through the session to its job. Watches, deadlines, stop.
#include "server/job/job_machine.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/job_machine_impl.h"

namespace iris::server {
namespace {

// Heaps are a multiple of every device's granularity, so that offsets are the same whatever the
// device.
uint64_t CommonGranularity(const Ledger& ledger) {
  uint64_t common = wire::kMinAlignmentBytes;
  for (const auto& device : ledger.devices()) {
    common = std::lcm(common, std::max<uint64_t>(device.granularity_bytes, 1));
  }
  return common;
}

}  // namespace

JobMachine::Impl::Impl(const JobLimits& limits_in, Ledger ledger_in, UnusablePairs unusable_in)
    : limits_(limits_in),
      ledger_(std::move(ledger_in)),
      unusable_(std::move(unusable_in)),
      granularity_bytes_(CommonGranularity(ledger_)) {}

void JobMachine::Impl::ClearMarks() {
  for (const JobId id : jobs_.marks().All()) {
    Job* const job = FindJob(id);
    if (job == nullptr) continue;
    for (const TeamId team_id : job->teams.marks().All()) {
      Team* const team = job->teams.Find(team_id);
      if (team == nullptr) continue;
      team->history.ClearMarks();
      if (team->op.has_value()) team->op->op.ClearMarks();
    }
    job->teams.ClearMarks();
    job->ranks.ClearMarks();
    job->allocations.ClearMarks();
    job->past_teams.ClearMarks();
  }
  jobs_.ClearMarks();
  sessions_.ClearMarks();
  segments_.ClearMarks();
  deadlines_.ClearMarks();
  abandoned_.ClearMarks();
  refused_.ClearMarks();
  kept_.ClearMarks();
  driver_free_changed_ = false;
}

// Effects.

void JobMachine::Impl::Answer(CallId call, absl::Status status, Result result) {
  waiting_.erase(call);
  Emit(Reply{call, std::move(status), std::move(result)});
}

void JobMachine::Impl::Note(const Job& job, int32_t rank, EventDetail detail) {
  const int64_t pid = rank >= 0 ? job.ranks[rank].lease.process.pid : 0;
  Emit(EmitEvent{{job.name, rank, pid, job.party, std::move(detail)}});
}

void JobMachine::Impl::NoteSession(const Session& session, EventDetail detail) {
  const Job* job = JobOf(session);
  Emit(EmitEvent{{job == nullptr ? "" : job->name,
                  job == nullptr ? -1 : static_cast<int32_t>(session.lease->rank),
                  session.caller.pid, session.caller.party, std::move(detail)}});
}

void JobMachine::Impl::SetState(Job& job, Rank rank, RankState state, bool abort) {
  Member& member = job.ranks[rank];
  member.state = state;
  if (stopping_) return;  // the ranks live on: their barriers must not end
  Emit(SetRankState{job.id, rank, state, member.lease.process.pid, abort});
}

void JobMachine::Impl::NotifyPeers(const Job& job, Rank rank, const std::string& reason) {
  const Member& changed = job.ranks[rank];
  for (Rank peer = 0; peer < job.n_ranks(); ++peer) {
    if (peer == rank || !job.ranks[peer].lease.held) continue;
    Emit(NotifyWatch{job.ranks[peer].lease.session,
                     RankChanged{rank, changed.state, changed.lease.process.pid, reason}});
  }
}

// From a call to its job.

JobMachine::Impl::Session* JobMachine::Impl::FindSession(SessionId session) {
  return sessions_.Find(session);
}

Job* JobMachine::Impl::JobOf(const Session& session) {
  if (!session.lease.has_value()) return nullptr;
  Job* job = FindJob(session.lease->job);
  IRIS_CHECK(job != nullptr, "a lease is of a job that there is");
  return job;
}

const Job* JobMachine::Impl::JobOf(const Session& session) const {
  return session.lease.has_value() ? &*jobs_.at(session.lease->job) : nullptr;
}

Job* JobMachine::Impl::FindJob(JobId job) {
  Box<Job>* const found = jobs_.Find(job);
  return found == nullptr ? nullptr : &**found;
}

absl::StatusOr<const JobMachine::Impl::Session*> JobMachine::Impl::CallingSession(
    SessionId id) const {
  if (stopping_) return absl::UnavailableError("irisd is stopping");
  const Session* const session = sessions_.Find(id);
  if (session == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat("session ", id.value, " is not open: connect to irisd first"));
  }
  if (session->ending) {
    return absl::FailedPreconditionError(
        absl::StrCat("session ", id.value, " hung up: open a new session"));
  }
  return session;
}

absl::StatusOr<JobMachine::Impl::Membership> JobMachine::Impl::FindMembership(SessionId id,
                                                                              JobId job_id) {
  const auto session = CallingSession(id);
  if (!session.ok()) return session.status();
  const bool valid = job_id.value != 0;
  if (const auto& lease = (*session)->lease; valid && lease.has_value() && lease->job == job_id) {
    Job* job = FindJob(job_id);
    IRIS_CHECK(job != nullptr, "a member's job exists");
    return Membership{job, &job->ranks[lease->rank], lease->rank};
  }
  if (valid && (*session)->past_job == job_id) return (*session)->past_status;
  return absl::PermissionDeniedError(
      absl::StrCat("session ", id.value, " is not a member of job id ", job_id.value));
}

void JobMachine::Impl::Unlist(CallId call, const WaitingCall& waiting) {
  Job& job = *FindJob(waiting.job);
  Member& member = job.ranks[waiting.rank];
  switch (waiting.kind) {
    case WaitingCall::Kind::kJoin:
      return CancelJoin(job, waiting.rank);
    case WaitingCall::Kind::kMapped:
      std::erase(member.mapped_calls, call);
      return;
    case WaitingCall::Kind::kBarrier:
      std::erase_if(member.barriers, [&](const AwaitedBarrier& each) { return each.call == call; });
      return;
    case WaitingCall::Kind::kOperation:
      Team& team = job.teams.at(waiting.team);
      std::erase(team.op->calls[team.IndexOf(waiting.rank)], call);
      return;
  }
}

void JobMachine::Impl::Cancelled(CallId call) {
  const auto found = waiting_.find(call);
  if (found == waiting_.end()) return AnsweredJoinCancelled(call);
  const WaitingCall waiting = found->second;
  waiting_.erase(found);
  Unlist(call, waiting);
}

void JobMachine::Impl::Tick() {
  while (const auto due = deadlines_.PopDue(now_.steady)) {
    Job* job = FindJob(due->job);
    IRIS_CHECK(job != nullptr, "a deadline has a job");
    switch (due->kind) {
      case DeadlineKey::Kind::kJoin:
        JoinTimedOut(*job, due->index);
        break;
      case DeadlineKey::Kind::kWithdraw:
        WithdrawCancelled(*job, due->index);
        break;
      case DeadlineKey::Kind::kResume:
        ResumeTimedOut(*job, due->index);
        break;
      case DeadlineKey::Kind::kMap:
        MapTimedOut(*job);
        break;
      case DeadlineKey::Kind::kOperation:
        OperationTimedOut(*job, job->teams.at(due->index));
        break;
      case DeadlineKey::Kind::kGrow:
        GrowthTimedOut(*job);
        break;
    }
  }
}

void JobMachine::Impl::ChangeLimits(const JobLimits& limits) {
  const bool had_quota = limits_.max_heap_bytes_per_uid != 0;
  const bool has_quota = limits.max_heap_bytes_per_uid != 0;
  limits_ = limits;
  if (has_quota != had_quota) {
    if (!has_quota) kept_.Change() = KeptMemory();
    for (const auto& [id, each] : jobs_) {
      if (each->state == JobState::kForming) continue;  // nobody was sent memory
      Job& job = *FindJob(id);
      for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
        job.ranks[rank].keeps_memory = has_quota && job.ranks[rank].lease.held;
      }
    }
  }
  ServeStarved();
}

void JobMachine::Impl::Stop(const std::string& reason) {
  if (std::exchange(stopping_, true)) return;
  const absl::Status told = absl::UnavailableError("irisd is stopping");
  std::vector<CallId> calls;
  for (const auto& [call, waiting] : waiting_) calls.push_back(call);
  std::sort(calls.begin(), calls.end());
  for (const CallId call : calls) {
    const WaitingCall waiting = waiting_.at(call);
    if (waiting.kind == WaitingCall::Kind::kJoin) {
      WithdrawJoin(*FindJob(waiting.job), waiting.rank, told);  // answers it
    } else {
      Unlist(call, waiting);
      Answer(call, told);
    }
  }
  for (const auto& [id, session] : sessions_) {
    Emit(NotifyWatch{id, WatchStopping{reason}});
    Emit(EndWatch{id, absl::UnavailableError(absl::StrCat("irisd is stopping: ", reason))});
  }
}

// Sessions and watches.

void JobMachine::Impl::OpenSession(SessionId id, const CallerInfo& caller,
                                   absl::Duration process_age) {
  IRIS_CHECK(id.value != 0 && FindSession(id) == nullptr, "a session id is new");
  Session session;
  session.id = id;
  session.caller = caller;
  session.created = now_.wall;
  session.process_began = now_.steady - process_age;
  sessions_by_account_[caller.party.Account()].insert(id);
  NoteSession(sessions_.emplace(id, session).first->second, event::SessionOpened{id});
}

void JobMachine::Impl::CloseSession(SessionId id, const std::string& reason) {
  Session* session = FindSession(id);
  if (session == nullptr || session->ending) return;
  Emit(EndWatch{id, absl::AbortedError(absl::StrCat("the session ended: ", reason))});
  HangUp(*session);
  // Otherwise nothing is left that its process could be asked about.
  if (!session->lease.has_value() && !WatchesKeeper(*session)) Gone(id);
}

void JobMachine::Impl::EndProcess(SessionId id) {
  if (FindSession(id) == nullptr) return;
  Emit(EndWatch{id, absl::AbortedError("the session's process is gone")});
  ForgetKeeper(FindSession(id)->caller);
  Gone(id);
}

void JobMachine::Impl::OpenWatch(SessionId id, CallId call, JobId job_id) {
  const auto membership = FindMembership(id, job_id);
  if (!membership.ok()) return Answer(call, membership.status());
  Emit(EndWatch{id, absl::CancelledError("a newer watch stream took this one's place")});
  Answer(call, absl::OkStatus());
  Emit(NotifyWatch{id, WatchEstablished{}});
  const Job& job = *membership->job;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const Member& peer = job.ranks[rank];
    const bool over = peer.state == RankState::kEnding || peer.state == RankState::kDead ||
                      peer.state == RankState::kLeft;
    if (!over) continue;
    const std::string reason = peer.state == RankState::kLeft   ? "left the job"
                               : peer.state == RankState::kDead ? "its process is gone"
                                                                : kHungUp;
    Emit(NotifyWatch{id, RankChanged{rank, peer.state, peer.lease.process.pid,
                                     absl::StrCat(job.Who(rank), " ", reason)}});
  }
  // However long the stream was away, two growths tell all: one before the last of these that is
  // neither was not published, for that takes every rank.
  if (job.last_published.value != 0 && job.last_published != job.last_growth.grow) {
    Emit(NotifyWatch{id, GrowDone{job.last_published, true, ""}});
  }
  if (job.last_growth.grow.value != 0) Emit(NotifyWatch{id, job.last_growth});
  if (job.growth.has_value() && job.growth->mapping) Emit(NotifyWatch{id, SegmentsAddedBy(job)});
}

// The public face.

namespace {

// What each input means. The only place that knows them all.
template <typename Impl>
struct Meaning {
  Impl& machine;

  void operator()(const SessionOpened& in) {
    machine.OpenSession(in.session, in.caller, in.process_age);
  }
  void operator()(const SessionHungUp& in) { machine.CloseSession(in.session, in.reason); }
  void operator()(const ProcessGone& in) { machine.EndProcess(in.session); }
  void operator()(const JoinCall& in) { machine.Join(in.session, in.call, in.spec); }
  void operator()(const MappedCall& in) {
    machine.Mapped(in.session, in.call, in.job, in.epoch, in.base, in.error);
  }
  void operator()(const OperateCall& in) { machine.Operate(in.session, in.call, in.spec); }
  void operator()(const GrowMappedCall& in) {
    machine.GrowMapped(in.session, in.call, in.job, in.grow, in.error);
  }
  void operator()(const AwaitBarrierCall& in) {
    machine.AwaitBarrier(in.session, in.call, in.spec);
  }
  void operator()(const LeaveCall& in) { machine.Leave(in.session, in.call, in.job); }
  void operator()(const ResumeCall& in) {
    machine.Resume(in.session, in.call, in.job, in.name, in.rank, in.epoch);
  }
  void operator()(const CallCancelled& in) { machine.Cancelled(in.call); }
  void operator()(const WatchOpened& in) { machine.OpenWatch(in.session, in.call, in.job); }
  void operator()(const SegmentCreated& in) { machine.SegmentCreated(in.segment, in.status); }
  void operator()(const SegmentDropped& in) { machine.SegmentDropped(in.segment); }
  void operator()(const DriverFree& in) {
    machine.ledger_.SetDriverFree(in.device_index, in.free_bytes);
    machine.driver_free_changed_ = true;
  }
  void operator()(const LimitsChanged& in) { machine.ChangeLimits(in.limits); }
  void operator()(const Noted& in) { machine.Emit(EmitEvent{in.event}); }
  void operator()(const Recovered& in) { machine.Recover(in); }
  void operator()(const Tick&) { machine.Tick(); }
  void operator()(const StopRequested& in) { machine.Stop(in.reason); }
};

}  // namespace

JobMachine::JobMachine(const JobLimits& limits, Ledger ledger, UnusablePairs unusable)
    : impl_(std::make_unique<Impl>(limits, std::move(ledger), std::move(unusable))) {}
JobMachine::~JobMachine() = default;

Effects JobMachine::Apply(const Input& input, Time now) {
  impl_->ClearMarks();
  impl_->now_ = now;
  std::visit(Meaning<Impl>{*impl_}, input);
  return impl_->TakeEffects();
}

absl::Time JobMachine::NextDeadline() const { return impl_->deadlines_.Next(); }

const Ledger& JobMachine::ledger() const { return impl_->ledger_; }

absl::Status JobMachine::CheckInvariants() const { return impl_->CheckInvariants(); }

}  // namespace iris::server
