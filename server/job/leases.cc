#include "server/job/leases.h"

#include <utility>

#include "proto/wire/limits.h"
#include "server/heap/check.h"

namespace iris::server {

void Leases::GrantLease(Job& job, Rank rank, Session& session) {
  job.ranks[rank].lease = {session.caller, true, session.id};
  job.ranks[rank].joined = now_.steady;
  session.lease = LeaseRef{job.id, rank};
}

void Leases::Release(Job& job, Rank rank, const absl::Status& told) {
  Session* session = FindSession(job.ranks[rank].lease.session);
  IRIS_CHECK(session != nullptr, "a session speaks for a lease that is held");
  session->lease.reset();
  session->past_job = job.id;
  session->past_status = told;
  RefuseBarriers(job, rank, told);
}

void Leases::EndLease(Job& job, Rank rank, const absl::Status& told) {
  Lease& lease = job.ranks[rank].lease;
  Release(job, rank, told);
  lease.held = false;
  lease.session = SessionId();
  starved_.erase({job.id, rank});
  for (const auto kind : {Due::kJoin, Due::kWithdraw, Due::kResume}) {
    deadlines_.Clear({job.id, kind, rank});
  }
}

void Leases::On(const SessionHungUp& in) {
  Session* session = FindSession(in.session);
  if (session == nullptr || session->ending) return;
  Emit(EndWatch{in.session, Error(Code::kAborted, "the session ended: ", in.reason)});
  HangUp(*session);
  // Without a lease or kept memory, irisd need not wait for the end of the process.
  if (!session->lease.has_value() && !WatchesKeeper(*session)) Gone(in.session);
}

void Leases::On(const ProcessGone& in) {
  if (FindSession(in.session) == nullptr) return;
  Emit(EndWatch{in.session, absl::AbortedError("the session's process is gone")});
  ForgetKeeper(FindSession(in.session)->caller);
  Gone(in.session);
}

void Leases::HangUp(Session& session) {
  session.ending = true;
  NoteSession(session, event::SessionHungUp{session.id});
  Job* job = JobOf(session);
  if (job == nullptr) return;
  const Rank rank = session.lease->rank;
  const std::string reason = absl::StrCat(job->Who(rank), " ", kHungUp);
  // A rank without peers breaks nothing by hanging up: no peer was notified, so it may resume.
  const bool resumes =
      job->state == JobState::kReady && job->n_held() == 1 && !job->nodes.has_value();
  Note(*job, rank, event::RankHungUp{});
  SetState(*job, rank, RankState::kEnding, !resumes);
  if (job->is_starting()) return FailJob(*job, ErrorOf(*job, Code::kAborted, "join", reason));
  NotifyPeers(*job, rank, reason);
  if (job->state == JobState::kReady && !resumes) return Break(*job, reason);
  FailGrowth(*job, absl::AbortedError(reason));
  ConcludeDeadTeams(*job);
}

void Leases::Gone(SessionId id) {
  Session& session = *FindSession(id);
  if (Job* job = JobOf(session); job != nullptr) {
    const Rank rank = session.lease->rank;
    const std::string reason = absl::StrCat(job->Who(rank), " died");
    SetState(*job, rank, RankState::kDead, true);
    Note(*job, rank, event::RankDead{});
    if (job->is_starting()) {
      FailJob(*job, ErrorOf(*job, Code::kAborted, "join", reason));
    } else {
      NotifyPeers(*job, rank, reason);
      if (job->state == JobState::kReady) Break(*job, reason);
      EndLease(*job, rank, absl::AbortedError(reason));
      EndIfEmpty(*job);
    }
  }
  NoteSession(session, event::SessionClosed{id});
  const auto mine = sessions_by_account_.find(session.caller.party.Account());
  mine->second.erase(id);
  if (mine->second.empty()) sessions_by_account_.erase(mine);
  sessions_.erase(id);
  Emit(ReleaseSession{id});
}

void Leases::On(const ResumeCall& in) {
  const CallId call = in.call;
  const auto calling = CallingSession(in.session);
  if (!calling.ok()) return Answer(call, calling.status());
  Session& session = *FindSession(in.session);
  Job* job = FindJob(in.job);
  const std::string what = absl::StrCat("resume rank ", in.rank, " of job '",
                                        CleanText(in.name, wire::kMaxJobNameBytes), "': ");
  const bool known = job != nullptr && job->party == session.caller.party && job->name == in.name;
  if (!known) return Refuse(call, Code::kNotFound, what, "irisd does not know that job");
  if (in.rank < 0 || static_cast<uint32_t>(in.rank) >= job->n_ranks()) {
    return Refuse(call, Code::kInvalidArgument, what, "the job has ", job->n_ranks(), " ranks");
  }
  if (in.epoch != job->epoch) {
    return Refuse(call, Code::kFailedPrecondition, what, "its epoch is ", job->epoch, ", not ",
                  in.epoch);
  }
  const Rank rank = static_cast<Rank>(in.rank);
  Member& member = job->ranks[rank];
  if (session.lease == LeaseRef{in.job, rank}) {  // a retry
    if (job->state == JobState::kBroken) {
      return Refuse(call, Code::kAborted, what, "the job is broken: ", job->broken_reason);
    }
    return Answer(call, absl::OkStatus(), ResumeResult{member.state});
  }
  if (session.lease.has_value()) {
    return Refuse(call, Code::kFailedPrecondition, what, "this session is a member of another job");
  }
  if (!member.lease.held || !member.lease.OfProcess(session.caller)) {
    return Refuse(call, Code::kPermissionDenied, what, "another process holds or held it");
  }
  Session& old = *FindSession(member.lease.session);
  if (!old.ending) {
    return Refuse(call, Code::kUnavailable, what, "its earlier session has not hung up yet: retry");
  }
  Release(*job, rank, Error(Code::kFailedPrecondition, what, "a newer session has it"));
  deadlines_.Clear({job->id, Due::kResume, rank});
  member.lease.session = session.id;
  session.lease = LeaseRef{job->id, rank};
  if (job->state == JobState::kBroken) {
    // The peers were notified, so the job stays broken; but the rank can now leave it.
    return Refuse(call, Code::kAborted, what, "the job is broken: ", job->broken_reason,
                  ": leave it and join a new one");
  }
  SetState(*job, rank, RankState::kReady, false);
  SendGrowthAgain(*job, rank);
  Note(*job, rank, event::RankResumed{session.id});
  Answer(call, absl::OkStatus(), ResumeResult{RankState::kReady});
}

void Leases::Break(Job& job, std::string reason) {
  job.state = JobState::kBroken;
  job.broken_reason = std::move(reason);
  Note(job, event::JobBroken{job.broken_reason});
  if (job.nodes.has_value()) Emit(SetLayout{job.id});
  FailGrowth(job, absl::AbortedError(job.broken_reason));
  ConcludeDeadTeams(job);
}

void Leases::FailJob(Job& job, const absl::Status& status, bool tells_nodes) {
  Note(job, event::JobFailed{std::string(status.message())});
  if (job.nodes.has_value() && tells_nodes) TellNodes(job, JoinsFailed{status});
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    Member& member = job.ranks[rank];
    if (!member.lease.held) continue;
    if (member.join_call.value != 0) Answer(std::exchange(member.join_call, CallId()), status);
    for (const CallId call : std::exchange(member.mapped_calls, {})) Answer(call, status);
    EndLease(job, rank, status);
  }
  EndJob(job);
}

void Leases::EndIfEmpty(Job& job) {
  if (job.n_held() > 0) return;
  if (job.nodes.has_value() && job.nodes->leads()) {
    // The ranks of other nodes still need decisions.
    for (Rank rank = job.end_local(); rank < job.n_ranks(); ++rank) {
      const RankState state = job.ranks[rank].state;
      if (state == RankState::kReady || state == RankState::kEnding) return;
    }
  }
  FailGrowth(job, absl::AbortedError("nobody is in the job any more"));
  EndJob(job);
}

void Leases::EndJob(Job& job) {
  IRIS_CHECK(job.n_held() == 0 && !job.growth.has_value(), "a job ends when nobody is in it");
  for (const auto& [id, team] : job.teams) {  // what another node would have decided
    if (!team.op.has_value()) continue;
    Conclude(job, job.teams.at(id), Error(Code::kAborted, "every rank of this node has left"));
  }
  deadlines_.Clear({job.id, Due::kMap});
  uint64_t bytes = 0;
  for (const SegmentInfo& segment : OwnSegmentsOf(job)) bytes += segment.bytes;
  KeepAccountOf(job, bytes);
  for (const Member& member : job.ranks) DropAll(member.segments);
  for (const auto& [offset, allocation] : job.allocations) DropAll(allocation.registered->pieces);
  CountDescriptors(job.party, -static_cast<int64_t>(job.n_pages()));
  if (job.nodes.has_value()) Emit(StopPort{job.id});
  Emit(DropPages{job.id});
  Note(job, event::JobEnded{});
  const auto mine = jobs_by_account_.find(job.party.Account());
  mine->second.erase(job.id);
  if (mine->second.empty()) jobs_by_account_.erase(mine);
  jobs_by_name_.erase({job.party, job.name});
  jobs_.erase(job.id);
}

}  // namespace iris::server
