// The way of an input to the layer that acts on it. Watches, deadlines, stop.
#include "server/job/job_machine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/heap/check.h"
#include "server/job/job_machine_impl.h"

namespace iris::server {

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
      case Due::kJoin:
        JoinTimedOut(*job, due->index);
        break;
      case Due::kWithdraw:
        WithdrawCancelled(*job, due->index);
        break;
      case Due::kResume:
        HangUp(*FindSession(job->ranks[due->index].lease.session));
        break;
      case Due::kMap:
        MapTimedOut(*job);
        break;
      case Due::kOperation:
        OperationTimedOut(*job, job->teams.at(due->index));
        break;
      case Due::kGrow:
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

JobMachine::JobMachine(const JobLimits& limits, Ledger ledger, UnusablePairs unusable)
    : impl_(std::make_unique<Impl>(limits, std::move(ledger), std::move(unusable))) {}
JobMachine::~JobMachine() = default;

namespace {

// A function made of several.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

}  // namespace

Effects JobMachine::Apply(const Input& input, Time now) {
  Impl& impl = *impl_;
  impl.ClearMarks();
  impl.now_ = now;
  // The only place that knows every input.
  std::visit(
      Overloaded{
          [&](const SessionOpened& in) { impl.OpenSession(in.session, in.caller, in.process_age); },
          [&](const SessionHungUp& in) { impl.CloseSession(in.session, in.reason); },
          [&](const ProcessGone& in) { impl.EndProcess(in.session); },
          [&](const JoinCall& in) { impl.Join(in); },
          [&](const MappedCall& in) { impl.Mapped(in); },
          [&](const OperateCall& in) { impl.Operate(in.session, in.call, in.spec); },
          [&](const GrowMappedCall& in) {
            impl.GrowMapped(in.session, in.call, in.job, in.grow, in.error);
          },
          [&](const AwaitBarrierCall& in) { impl.AwaitBarrier(in.session, in.call, in.spec); },
          [&](const LeaveCall& in) { impl.Leave(in.session, in.call, in.job); },
          [&](const ResumeCall& in) { impl.Resume(in); },
          [&](const CallCancelled& in) { impl.Cancelled(in.call); },
          [&](const WatchOpened& in) { impl.OpenWatch(in.session, in.call, in.job); },
          [&](const SegmentCreated& in) { impl.SegmentCreated(in.segment, in.status); },
          [&](const SegmentDropped& in) { impl.SegmentDropped(in.segment); },
          [&](const DriverFree& in) {
            impl.ledger_.SetDriverFree(in.device_index, in.free_bytes);
            impl.driver_free_changed_ = true;
          },
          [&](const LimitsChanged& in) { impl.ChangeLimits(in.limits); },
          [&](const Noted& in) { impl.Emit(EmitEvent{in.event}); },
          [&](const Recovered& in) { impl.Recover(in); },
          [&](const Tick&) { impl.Tick(); },
          [&](const StopRequested& in) { impl.Stop(in.reason); },
      },
      input);
  return std::exchange(impl.out_, {});
}

absl::Time JobMachine::NextDeadline() const { return impl_->deadlines_.Next(); }

const Ledger& JobMachine::ledger() const { return impl_->ledger_; }

}  // namespace iris::server
