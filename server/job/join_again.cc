// A Join whose answer was lost with its connection, and that comes again.
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/job/job_machine_impl.h"

namespace iris::server {

bool JobMachine::Impl::JoinAgain(Session& session, CallId call, const JoinSpec& asked) {
  if (asked.number == 0 || asked.number != session.join_number) return false;
  Job* const job = JobOf(session);
  if (job == nullptr) {  // it is over: its caller was not there to hear how it ended
    Answer(call, session.past_status);
    return true;
  }
  const auto spec = CheckJoin(asked);
  const Rank rank = session.lease->rank;
  const bool same = spec.ok() && spec->job == job->name && static_cast<Rank>(spec->rank) == rank;
  const bool over = job->state == JobState::kReady || job->state == JobState::kBroken;
  if (!same || over) return false;  // refused as a second Join
  Member& member = job->ranks[rank];
  deadlines_.Clear({job->id, DeadlineKey::Kind::kWithdraw, rank});
  if (job->state == JobState::kMapping) {
    // Its descriptors are on their way, or there.
    Answer(call, absl::OkStatus(), JoinResultOf(*job, rank));
    return true;
  }
  const CallId earlier = std::exchange(member.join_call, call);
  member.answered_join = CallId();
  if (earlier.value != 0) {
    Answer(earlier, absl::CancelledError(absl::StrCat("join job '", job->name, "' as rank ", rank,
                                                      ": a repetition took this call's place")));
  }
  AddWaiting(call, {WaitingCall::Kind::kJoin, job->id, rank});
  deadlines_.Set({job->id, DeadlineKey::Kind::kJoin, rank}, now_.steady + spec->timeout);
  return true;
}

JoinResult JobMachine::Impl::JoinResultOf(const Job& job, Rank rank) const {
  JoinResult result;
  result.job = job.id;
  result.rank = rank;
  result.epoch = job.epoch;
  result.proposed_base = wire::kProposedBase;
  result.stride_bytes = job.stride_bytes;
  result.granularity_bytes = granularity_bytes_;
  result.heap_bytes = job.heap_bytes;
  result.segments = SegmentsOf(job);
  for (Rank peer = 0; peer < job.n_ranks(); ++peer) {
    result.peers.push_back({peer, job.ranks[peer].lease.process.pid, job.ranks[peer].device_index});
  }
  result.device_index = job.ranks[rank].device_index;
  result.map_timeout = limits_.map_timeout;
  return result;
}

}  // namespace iris::server
