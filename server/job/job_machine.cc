// Passes each input to the layer that handles it. Watches, deadlines, stop.
#include "server/job/job_machine.h"

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
    if (job->nodes.has_value()) job->nodes->outbox.ClearMarks();
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

void JobMachine::Impl::On(const CallCancelled& in) {
  const auto found = waiting_.find(in.call);
  if (found == waiting_.end()) return AnsweredJoinCancelled(in.call);
  const WaitingCall waiting = found->second;
  waiting_.erase(found);
  Unlist(in.call, waiting);
}

void JobMachine::Impl::On(const Tick& /*in*/) {
  while (const auto due = deadlines_.PopDue(now_.steady)) {
    Job* job = FindJob(due->job);
    IRIS_CHECK(job != nullptr, "a deadline has a job");
    Expire(*job, *due);
  }
}

void JobMachine::Impl::Expire(Job& job, const DeadlineKey& due) {
  switch (due.kind) {
    case Due::kJoin:
      return JoinTimedOut(job, due.index);
    case Due::kWithdraw:
      return WithdrawCancelled(job, due.index);
    case Due::kResume:
      return HangUp(*FindSession(job.ranks[due.index].lease.session));
    case Due::kMap:
      return MapTimedOut(job);
    case Due::kOperation:
      return OperationTimedOut(job, job.teams.at(due.index));
    case Due::kGrow:
      return GrowthTimedOut(job);
  }
}

void JobMachine::Impl::On(const DriverFree& in) {
  ledger_.SetDriverFree(in.device_index, in.free_bytes);
  driver_free_changed_ = true;
}

void JobMachine::Impl::On(const LimitsChanged& in) {
  const bool had_quota = limits_.max_heap_bytes_per_uid != 0;
  limits_ = in.limits;
  if (had_quota != (limits_.max_heap_bytes_per_uid != 0)) {
    if (had_quota) kept_.Change() = KeptMemory();
    for (const auto& [id, job] : jobs_) {
      if (job->state != JobState::kForming) RestoreAccount(*FindJob(id));
    }
  }
  ServeStarved();
}

void JobMachine::Impl::On(const StopRequested& in) {
  if (std::exchange(stopping_, true)) return;
  const absl::Status told = absl::UnavailableError("irisd is stopping");
  std::vector<CallId> calls;
  for (const auto& [call, waiting] : waiting_) calls.push_back(call);
  for (const CallId call : calls) {
    const WaitingCall waiting = waiting_.at(call);
    if (waiting.kind == WaitingCall::Kind::kJoin) {
      WithdrawJoin(*FindJob(waiting.job), waiting.rank, told);  // answers the call
    } else {
      Unlist(call, waiting);
      Answer(call, told);
    }
  }
  for (const auto& [id, session] : sessions_) {
    Emit(NotifyWatch{id, WatchStopping{in.reason}});
    Emit(EndWatch{id, Error(Code::kUnavailable, "irisd is stopping: ", in.reason)});
  }
}

void JobMachine::Impl::On(const SessionOpened& in) {
  const SessionId id = in.session;
  IRIS_CHECK(id.value != 0 && FindSession(id) == nullptr, "a session id is new");
  const Session session{.id = id,
                        .caller = in.caller,
                        .created = now_.wall,
                        .process_began = now_.steady - in.process_age};
  sessions_by_account_[in.caller.party.Account()].insert(id);
  NoteSession(sessions_.emplace(id, session).first->second, event::SessionOpened{id});
}

void JobMachine::Impl::On(const WatchOpened& in) {
  const auto& [id, call, job_id] = in;
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
    if (!over || rank == membership->rank) continue;
    const std::string reason = peer.state == RankState::kLeft     ? "left the job"
                               : peer.state == RankState::kEnding ? kHungUp
                               : job.IsLocal(rank)                ? "its process is gone"
                                                   : "died, hung up, or its node was lost";
    Emit(NotifyWatch{id, RankChanged{rank, peer.state, peer.lease.process.pid,
                                     absl::StrCat(job.Who(rank), " ", reason)}});
  }
  // Two growths are enough, however long the stream was broken: an earlier growth that is neither
  // of them was not published, since that requires every rank.
  if (job.last_published.value != 0 && job.last_published != job.last_growth.grow) {
    Emit(NotifyWatch{id, GrowDone{job.last_published, true, ""}});
  }
  if (job.last_growth.grow.value != 0) Emit(NotifyWatch{id, job.last_growth});
  if (job.growth.has_value() && job.growth->mapping) Emit(NotifyWatch{id, SegmentsAddedBy(job)});
}

JobMachine::JobMachine(const JobLimits& limits, Ledger ledger, UnusablePairs unusable)
    : impl_(std::make_unique<Impl>(limits, std::move(ledger), std::move(unusable))) {}
JobMachine::~JobMachine() = default;

Effects JobMachine::Apply(const Input& input, Time now) {
  impl_->ClearMarks();
  impl_->now_ = now;
  std::visit([this](const auto& in) { impl_->On(in); }, input);
  return std::exchange(impl_->out_, {});
}

absl::Time JobMachine::NextDeadline() const { return impl_->deadlines_.Next(); }

const Ledger& JobMachine::ledger() const { return impl_->ledger_; }

}  // namespace iris::server
