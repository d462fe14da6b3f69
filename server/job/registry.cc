#include "server/job/registry.h"

#include "server/heap/check.h"

namespace iris::server {

void Registry::Answer(CallId call, absl::Status status, Result result) {
  waiting_.erase(call);
  Emit(Reply{call, std::move(status), std::move(result)});
}

void Registry::Note(const Job& job, EventDetail detail) {
  Emit(EmitEvent{{job.name, -1, 0, job.party, std::move(detail)}});
}

void Registry::Note(const Job& job, Rank rank, EventDetail detail) {
  Emit(EmitEvent{{job.name, static_cast<int32_t>(rank), job.ranks[rank].lease.process.pid,
                  job.party, std::move(detail)}});
}

void Registry::NoteSession(const Session& session, EventDetail detail) {
  const Job* job = JobOf(session);
  Emit(EmitEvent{{job == nullptr ? "" : job->name,
                  job == nullptr ? -1 : static_cast<int32_t>(session.lease->rank),
                  session.caller.pid, session.caller.party, std::move(detail)}});
}

void Registry::SetState(Job& job, Rank rank, RankState state, bool abort) {
  Member& member = job.ranks[rank];
  member.state = state;
  if (stopping_) return;  // the ranks live on: their barriers must not end
  if (!abort && !job.IsLocal(rank) && state != RankState::kLeft) return;
  Emit(SetRankState{job.id, rank, state, member.lease.process.pid, abort});
}

void Registry::NotifyPeers(Job& job, Rank rank, const std::string& reason) {
  const auto& ranks = std::as_const(job).ranks;
  const Member& changed = ranks[rank];
  for (Rank peer = 0; peer < job.n_ranks(); ++peer) {
    if (peer == rank || !ranks[peer].lease.held) continue;
    Emit(NotifyWatch{ranks[peer].lease.session,
                     RankChanged{rank, changed.state, changed.lease.process.pid, reason}});
  }
  if (!job.nodes.has_value() || !job.IsLocal(rank)) return;
  TellNodes(job, RankIs{rank, changed.state, changed.lease.process.pid, reason});
}

void Registry::TellNodes(Job& job, NodeMessage message) {
  Send(job, kLeader, job.nodes->leads(), std::move(message));
}

void Registry::Send(Job& job, NodeId node, bool all, NodeMessage message) {
  JobNodes& nodes = *job.nodes;
  // Without a port process, messages would stay in the state.
  const auto own = nodes.all.find(nodes.own);
  if (own != nodes.all.end() && own->second.state == JobNodes::Node::State::kLost) return;
  nodes.outbox.push_back({job.id, node, all, std::move(message), ++nodes.sent});
  Emit(nodes.outbox.back());
}

Job* Registry::JobOf(const Session& session) {
  if (!session.lease.has_value()) return nullptr;
  Job* job = FindJob(session.lease->job);
  IRIS_CHECK(job != nullptr, "a lease is of a job that there is");
  return job;
}

const std::set<JobId>& Registry::JobsOf(const Party& account) const {
  static const auto& none = *new std::set<JobId>;
  const auto found = jobs_by_account_.find(account);
  return found == jobs_by_account_.end() ? none : found->second;
}

Job* Registry::FindJob(JobId job) {
  Box<Job>* const found = jobs_.Find(job);
  return found == nullptr ? nullptr : &**found;
}

Job* Registry::FindJob(const Name& name) {
  const auto named = jobs_by_name_.find(name);
  return named == jobs_by_name_.end() ? nullptr : FindJob(named->second);
}

absl::StatusOr<const Registry::Session*> Registry::CallingSession(SessionId id) const {
  if (stopping_) return absl::UnavailableError("irisd is stopping");
  const Session* const session = sessions_.Find(id);
  if (session == nullptr) {
    return Error(Code::kPermissionDenied, "session ", id.value,
                 " is not open: connect to irisd first");
  }
  if (session->ending) {
    return Error(Code::kFailedPrecondition, "session ", id.value, " hung up: open a new session");
  }
  return session;
}

absl::StatusOr<Registry::Membership> Registry::FindMembership(SessionId id, JobId job_id) {
  const auto session = CallingSession(id);
  if (!session.ok()) return session.status();
  const bool valid = job_id.value != 0;
  if (const auto& lease = (*session)->lease; valid && lease.has_value() && lease->job == job_id) {
    Job* job = FindJob(job_id);
    IRIS_CHECK(job != nullptr, "a member's job exists");
    return Membership{job, &job->ranks[lease->rank], lease->rank};
  }
  if (valid && (*session)->past_job == job_id) return (*session)->past_status;
  return Error(Code::kPermissionDenied, "session ", id.value, " is not a member of job id ",
               job_id.value);
}

}  // namespace iris::server
