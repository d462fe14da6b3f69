// Sessions, the way from a call to its job, deadlines, stop and snapshots.
#include "server/job/job_machine.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/heap/check.h"
#include "server/job/event_kinds.h"
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

JobMachine::Impl::Impl(const JobLimits& limits_in, Ledger* ledger_in, const Clock* clock_in,
                       UnusablePairs unusable_in)
    : limits_(limits_in),
      ledger_(ledger_in),
      clock_(clock_in),
      unusable_(std::move(unusable_in)),
      granularity_bytes_(CommonGranularity(*ledger_in)) {}

// Effects.

void JobMachine::Impl::Answer(CallId call, absl::Status status, decltype(Reply::result) result) {
  waiting_.erase(call);
  Emit(Reply{call, std::move(status), std::move(result)});
}

void JobMachine::Impl::Event(absl::string_view kind, const Job& job, int32_t rank,
                             std::string text) {
  const int64_t pid = rank >= 0 ? job.ranks[rank].caller.pid : 0;
  Emit(EmitEvent{std::string(kind), job.name, rank, pid, job.uid, std::move(text)});
}

void JobMachine::Impl::SessionEvent(absl::string_view kind, const Session& session) {
  const Job* job = FindJob(session.job);
  Emit(EmitEvent{std::string(kind), job == nullptr ? "" : job->name,
                 job == nullptr ? -1 : static_cast<int32_t>(session.rank), session.caller.pid,
                 session.caller.uid, absl::StrCat("session=", session.id.value)});
}

void JobMachine::Impl::SetState(Job& job, Rank rank, RankState state, bool abort) {
  Member& member = job.ranks[rank];
  member.state = state;
  Emit(SetRankState{job.id, rank, state, member.caller.pid, abort});
}

void JobMachine::Impl::NotifyPeers(Job& job, Rank rank, const std::string& reason) {
  const Member& changed = job.ranks[rank];
  for (Rank peer = 0; peer < job.n_ranks(); ++peer) {
    if (peer == rank || !job.ranks[peer].attached()) continue;
    Emit(NotifyWatch{job.ranks[peer].session,
                     RankChanged{rank, changed.state, changed.caller.pid, reason}});
  }
}

// From a call to its job.

JobMachine::Impl::Session* JobMachine::Impl::FindSession(SessionId session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

Job* JobMachine::Impl::FindJob(JobId job) {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : found->second.get();
}

absl::StatusOr<JobMachine::Impl::Session*> JobMachine::Impl::CallingSession(SessionId id) {
  if (stopping_) return absl::UnavailableError("irisd is stopping");
  Session* session = FindSession(id);
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
  if (valid && (*session)->job == job_id) {
    Job* job = FindJob(job_id);
    IRIS_CHECK(job != nullptr, "a member's job exists");
    return Membership{*session, job, &job->ranks[(*session)->rank]};
  }
  if (valid && (*session)->past_job == job_id) return (*session)->past_status;
  return absl::PermissionDeniedError(
      absl::StrCat("session ", id.value, " is not a member of job id ", job_id.value));
}

void JobMachine::Impl::Cancelled(CallId call) {
  const auto found = waiting_.find(call);
  if (found == waiting_.end()) return JoinUndelivered(call);
  const WaitingCall waiting = found->second;
  waiting_.erase(found);
  Job* job = FindJob(waiting.job);
  IRIS_CHECK(job != nullptr, "a waiting call has a job");
  Member& member = job->ranks[waiting.rank];
  switch (waiting.kind) {
    case WaitingCall::Kind::kJoin:
      member.join_call = CallId();
      WithdrawJoin(*job, waiting.rank, absl::CancelledError("the call was cancelled"));
      break;
    case WaitingCall::Kind::kMapped:
      std::erase(member.mapped_calls, call);
      break;
    case WaitingCall::Kind::kOperation:
      Team& team = job->teams.at(waiting.team);
      std::erase(team.op->calls[team.IndexOf(waiting.rank)], call);
      break;
  }
}

void JobMachine::Impl::Tick() {
  while (const auto due = deadlines_.PopDue(clock_->Now())) {
    Job* job = FindJob(due->job);
    IRIS_CHECK(job != nullptr, "a deadline has a job");
    switch (due->kind) {
      case DeadlineKey::Kind::kJoin:
        JoinTimedOut(*job, due->index);
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

void JobMachine::Impl::Stop() {
  stopping_ = true;
  std::vector<CallId> calls;
  for (const auto& [call, waiting] : waiting_) calls.push_back(call);
  std::sort(calls.begin(), calls.end());
  for (const CallId call : calls) {
    const WaitingCall waiting = waiting_.at(call);
    Job& job = *FindJob(waiting.job);
    Member& member = job.ranks[waiting.rank];
    switch (waiting.kind) {
      case WaitingCall::Kind::kJoin:
        WithdrawJoin(job, waiting.rank, absl::UnavailableError("irisd is stopping"));
        continue;  // answered there
      case WaitingCall::Kind::kMapped:
        std::erase(member.mapped_calls, call);
        break;
      case WaitingCall::Kind::kOperation: {
        Team& team = job.teams.at(waiting.team);
        std::erase(team.op->calls[team.IndexOf(waiting.rank)], call);
        break;
      }
    }
    Answer(call, absl::UnavailableError("irisd is stopping"));
  }
}

// The public face.

JobMachine::JobMachine(const JobLimits& limits, Ledger* ledger, const Clock* clock,
                       UnusablePairs unusable)
    : impl_(std::make_unique<Impl>(limits, ledger, clock, std::move(unusable))) {}
JobMachine::~JobMachine() = default;

Effects JobMachine::OpenSession(SessionId id, const CallerInfo& caller) {
  IRIS_CHECK(id.value != 0 && !HasSession(id), "a session id is new");
  Impl::Session session;
  session.id = id;
  session.caller = caller;
  session.created = impl_->clock_->Wall();
  impl_->SessionEvent(event::kSessionOpened, impl_->sessions_.emplace(id, session).first->second);
  return impl_->TakeEffects();
}

Effects JobMachine::HangUp(SessionId id) {
  Impl::Session* session = impl_->FindSession(id);
  if (session != nullptr && !session->ending) impl_->HangUp(*session);
  return impl_->TakeEffects();
}

Effects JobMachine::Gone(SessionId id) {
  if (HasSession(id)) impl_->Gone(id);
  return impl_->TakeEffects();
}

Effects JobMachine::Join(SessionId session, CallId call, const JoinSpec& spec) {
  impl_->Join(session, call, spec);
  return impl_->TakeEffects();
}

Effects JobMachine::Mapped(SessionId session, CallId call, JobId job, uint64_t epoch, uint64_t base,
                           const std::string& error) {
  impl_->Mapped(session, call, job, epoch, base, error);
  return impl_->TakeEffects();
}

Effects JobMachine::Operate(SessionId session, CallId call, const OperationSpec& spec) {
  impl_->Operate(session, call, spec);
  return impl_->TakeEffects();
}

Effects JobMachine::GrowMapped(SessionId session, CallId call, JobId job, GrowId grow,
                               const std::string& error) {
  impl_->GrowMapped(session, call, job, grow, error);
  return impl_->TakeEffects();
}

Effects JobMachine::Leave(SessionId session, CallId call, JobId job) {
  impl_->Leave(session, call, job);
  return impl_->TakeEffects();
}

Effects JobMachine::Resume(SessionId session, CallId call, JobId job, const std::string& name,
                           int32_t rank, uint64_t epoch) {
  impl_->Resume(session, call, job, name, rank, epoch);
  return impl_->TakeEffects();
}

Effects JobMachine::Cancelled(CallId call) {
  impl_->Cancelled(call);
  return impl_->TakeEffects();
}

absl::StatusOr<Effects> JobMachine::WatchStarted(SessionId session, JobId job_id) {
  const auto membership = impl_->FindMembership(session, job_id);
  if (!membership.ok()) return membership.status();
  const Job& job = *membership->job;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    const Member& peer = job.ranks[rank];
    const bool over = peer.state == RankState::kEnding || peer.state == RankState::kDead ||
                      peer.state == RankState::kLeft;
    if (!over) continue;
    const std::string reason = peer.state == RankState::kLeft   ? "left the job"
                               : peer.state == RankState::kDead ? "its process is gone"
                                                                : "hung up";
    impl_->Emit(NotifyWatch{session, RankChanged{rank, peer.state, peer.caller.pid,
                                                 absl::StrCat(job.Who(rank), " ", reason)}});
  }
  if (job.last_growth.grow.value != 0) impl_->Emit(NotifyWatch{session, job.last_growth});
  if (job.growth.has_value() && job.growth->mapping) {
    impl_->Emit(NotifyWatch{session, impl_->SegmentsAddedBy(job)});
  }
  return impl_->TakeEffects();
}

Effects JobMachine::SegmentCreated(SegmentId segment, const absl::Status& status) {
  impl_->SegmentCreated(segment, status);
  return impl_->TakeEffects();
}

Effects JobMachine::SegmentDropped(SegmentId segment) {
  impl_->SegmentDropped(segment);
  return impl_->TakeEffects();
}

absl::Time JobMachine::NextDeadline() const { return impl_->deadlines_.Next(); }

Effects JobMachine::Tick() {
  impl_->Tick();
  return impl_->TakeEffects();
}

Effects JobMachine::Stop() {
  impl_->Stop();
  return impl_->TakeEffects();
}

size_t JobMachine::n_jobs() const { return impl_->jobs_.size(); }

std::vector<JobSnapshot> JobMachine::Jobs(const JobQuery& query) const {
  std::vector<JobSnapshot> snapshots;
  for (const auto& [id, entry] : impl_->jobs_) {
    const Job& job = *entry;
    if (query.uid.has_value() && job.uid != *query.uid) continue;
    if (!query.name.empty() && job.name != query.name) continue;
    JobSnapshot& shot = snapshots.emplace_back();
    shot.id = id;
    shot.name = job.name;
    shot.uid = job.uid;
    shot.state = job.state;
    shot.epoch = job.epoch;
    shot.n_ranks = job.n_ranks();
    shot.heap_bytes = job.heap_bytes;
    shot.stride_bytes = job.stride_bytes;
    shot.same_address = job.same_address;
    shot.n_teams = static_cast<uint32_t>(job.teams.size());
    shot.n_allocations = static_cast<uint32_t>(job.allocations.size());
    shot.allocated_bytes = job.allocator.used_bytes();
    shot.largest_free_bytes = job.allocator.largest_free_bytes();
    shot.created = job.created;
    for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
      const Member& member = job.ranks[rank];
      RankSnapshot& rank_shot = shot.ranks.emplace_back();
      rank_shot.rank = rank;
      rank_shot.state = member.state;
      rank_shot.pid = member.caller.pid;
      rank_shot.session = member.session;
      rank_shot.device_index = member.device_index;
      rank_shot.base = member.base;
      for (const SegmentId segment : member.segments) {
        rank_shot.segments.push_back(impl_->segments_.at(segment).info);
      }
    }
    if (!query.allocations) continue;
    shot.allocations.reserve(job.allocations.size());
    for (const auto& [offset, allocation] : job.allocations) {
      shot.allocations.push_back({offset, allocation.bytes, allocation.alignment_bytes,
                                  allocation.name, allocation.tensor, allocation.team, allocation.k,
                                  allocation.created});
    }
  }
  return snapshots;
}

std::vector<SessionSnapshot> JobMachine::Sessions() const {
  std::vector<SessionSnapshot> snapshots;
  for (const auto& [id, session] : impl_->sessions_) {
    SessionSnapshot shot{
        .id = id, .caller = session.caller, .ending = session.ending, .created = session.created};
    if (const Job* job = impl_->FindJob(session.job); job != nullptr) {
      shot.job = job->name;
      shot.rank = static_cast<int32_t>(session.rank);
    }
    snapshots.push_back(std::move(shot));
  }
  std::sort(snapshots.begin(), snapshots.end(),
            [](const SessionSnapshot& a, const SessionSnapshot& b) { return a.id < b.id; });
  return snapshots;
}

bool JobMachine::HasSession(SessionId session) const { return impl_->sessions_.contains(session); }

bool JobMachine::HoldsRank(SessionId session) const {
  const auto it = impl_->sessions_.find(session);
  return it != impl_->sessions_.end() && it->second.job.value != 0;
}

absl::Status JobMachine::CheckInvariants() const { return impl_->CheckInvariants(); }

}  // namespace iris::server
