// Joins that were refused or given up, and their errors for ranks that join later.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "proto/wire/limits.h"
#include "server/job/rendezvous.h"

namespace iris::server {
namespace {

// Returns a measured time, rounded, as text.
std::string Readable(absl::Duration time) {
  return absl::FormatDuration(absl::Trunc(time, absl::Milliseconds(1)));
}

// Returns for example "rank 1 (pid 4711) after 5s (its own timeout)".
std::string WhoGaveUp(Rank rank, const GaveUp& gave_up) {
  return absl::StrCat("rank ", rank, " (pid ", gave_up.pid, ") after ", Readable(gave_up.waited),
                      gave_up.timed_out ? " (its own timeout)" : "");
}

// Removes the oldest entry if the map has n_max, before another is added.
template <typename Map>
void LimitTo(size_t n_max, Map* map) {
  if (map->size() < n_max) return;
  map->erase(std::min_element(map->begin(), map->end(), [](const auto& a, const auto& b) {
               return a.second.when < b.second.when;
             })->first);
}

}  // namespace

// A refusal ends the join of the other ranks only if the job cannot form without the refused rank:
// the caller belongs to the job's party (to which the name belongs), and names one of the job's
// ranks, which is free, and the job forms or does not exist yet. Every other refusal concerns only
// its caller: another user, another name, a number that is no rank of the job, a second claim to a
// rank that has joined, a session that holds a rank, a job that runs or is broken.
void Rendezvous::RefuseJob(const Session& session, const JoinSpec& spec, const absl::Status& why) {
  if (session.lease.has_value()) return;
  if (!CheckText("the name", spec.job, 1, wire::kMaxJobNameBytes).ok()) return;
  const uint32_t most = spec.nodes.has_value() ? wire::kMaxWorldRanks : wire::kMaxRanks;
  const bool is_rank =
      spec.rank >= 0 && spec.rank < spec.n_ranks && spec.n_ranks <= static_cast<int32_t>(most);
  if (!is_rank) return;
  const Rank rank = static_cast<Rank>(spec.rank);
  const Job* const job = FindJob(Name(session.caller.party, spec.job));
  const bool lacks_it = job == nullptr || (job->state == JobState::kForming &&
                                           rank < job->n_ranks() && !job->ranks[rank].lease.held);
  if (lacks_it) RefuseRank(session.caller, spec, why);
}

void Rendezvous::RefuseRank(const CallerInfo& caller, const JoinSpec& spec,
                            const absl::Status& why) {
  absl::string_view reason = why.message();
  const std::string as_rank = absl::StrCat("join job '", spec.job, "' as rank ", spec.rank);
  if (!absl::ConsumePrefix(&reason, absl::StrCat(as_rank, " of ", spec.n_ranks, ": "))) {
    absl::ConsumePrefix(&reason, absl::StrCat(as_rank, ": "));
  }
  const absl::Status told(
      why.code(), absl::StrCat("join job '", spec.job, "': rank ", spec.rank, " (pid ", caller.pid,
                               ") was refused, and no rank joins without it: ", reason,
                               "; mend that, then start all ranks again"));
  FailAllJoins(
      {caller.party, spec.job}, static_cast<uint32_t>(spec.n_ranks),
      {told, static_cast<Rank>(spec.rank), now_.steady, now_.steady + JoinTimeout(spec), {}});
}

void Rendezvous::FailAllJoins(const Name& name, uint32_t n_ranks, RefusedJoin refused,
                              bool tells_nodes) {
  Job* const job = FindJob(name);
  for (Rank rank = 0; rank < (job == nullptr ? n_ranks : job->n_ranks()); ++rank) {
    const bool told = job != nullptr && std::as_const(job->ranks)[rank].lease.held;
    if (!told && rank != refused.rank) refused.untold.insert(rank);
  }
  const absl::Status told = refused.told;
  refused_.erase(name);
  if (!refused.untold.empty()) {
    LimitTo(kMaxRefusedJoins, &refused_);
    refused_[name] = std::move(refused);
  }
  if (job != nullptr) FailJob(*job, told, tells_nodes);
}

absl::Status Rendezvous::RefusedBefore(const Session& session, const JoinSpec& spec) {
  const Name name(session.caller.party, spec.job);
  if (!refused_.contains(name) || session.lease.has_value() || spec.rank < 0) {
    return absl::OkStatus();
  }
  RefusedJoin& refused = refused_.at(name);
  if (now_.steady >= refused.until) {
    refused_.erase(name);
    return absl::OkStatus();
  }
  // A process that began later belongs to another attempt, which may succeed.
  if (session.process_began > refused.when) return absl::OkStatus();
  if (refused.untold.erase(static_cast<Rank>(spec.rank)) == 0) return absl::OkStatus();
  absl::Status told = refused.told;
  if (refused.untold.empty()) refused_.erase(name);
  return told;
}

void Rendezvous::ForgetRefused(const Job& job, Rank joined) {
  RefusedJoin* const refused = refused_.Find({job.party, job.name});
  if (refused == nullptr) return;
  refused->untold.erase(joined);
  if (refused->untold.empty() || joined == refused->rank) refused_.erase({job.party, job.name});
}

void Rendezvous::RememberAbandoned(const Job& job) {
  LimitTo(kMaxAbandonedJobs, &abandoned_);
  abandoned_[{job.party, job.name}] = {job.n_ranks(), now_.steady, job.gave_up};
}

void Rendezvous::RecallAbandoned(Job& job) {
  AbandonedJob* const found = abandoned_.Find({job.party, job.name});
  if (found == nullptr) return;
  if (found->n_ranks == job.n_ranks() && now_.steady - found->when < kAbandonedJobKept) {
    job.gave_up = std::move(found->gave_up);
  }
  abandoned_.erase({job.party, job.name});
}

// Withdraws a Join, with the reason. A rank that was present while this one waited counts as
// joined, even if its own time was up first: ranks whose timeouts end together must not report each
// other. A rank that joined and gave up earlier counts as missing, and is listed with its attempt.
void Rendezvous::JoinTimedOut(Job& job, Rank rank) {
  std::vector<std::string> missing, gave_up, came_before, slow;
  const absl::Time joined = job.ranks[rank].joined;
  for (Rank r = 0; r < job.n_ranks(); ++r) {
    const Member& member = job.ranks[r];
    const auto left = job.gave_up.find(r);
    if (member.lease.held) {
      if (member.segments.empty() || !segments_.at(member.segments[0]).created) {
        slow.push_back(job.Who(r));
      }
    } else if (left != job.gave_up.end() && left->second.when > joined) {
      gave_up.push_back(WhoGaveUp(r, left->second));
    } else {
      missing.push_back(absl::StrCat(r));
      if (left == job.gave_up.end()) continue;
      const absl::Duration ago = joined - left->second.when;
      came_before.push_back(absl::StrCat(WhoGaveUp(r, left->second), ", ",
                                         ago < absl::Milliseconds(1) ? "shortly" : Readable(ago),
                                         " before this rank came"));
    }
  }
  std::string text = absl::StrCat("join job '", job.name, "' as rank ", rank, ": time is up after ",
                                  Readable(now_.steady - joined), " (join_timeout)");
  if (!missing.empty()) {
    came_before.insert(came_before.begin(), gave_up.begin(), gave_up.end());
    if (!came_before.empty()) {
      absl::StrAppend(&text, ": these came and gave up: ", absl::StrJoin(came_before, "; "));
    }
    absl::StrAppend(&text, came_before.empty() ? ": of " : "; of ", job.n_ranks(),
                    " ranks these have not joined: ", absl::StrJoin(missing, ", "));
    if (job.nodes.has_value()) {
      absl::StrAppend(&text,
                      " (those of other nodes: see their errors, and in irisd's log here the "
                      "connections that the job's port has refused)");
    }
  } else if (!gave_up.empty()) {
    absl::StrAppend(&text, ": all ", job.n_ranks(),
                    " ranks have come, but these gave up before the last one did: ",
                    absl::StrJoin(gave_up, ", "));
  } else {
    absl::StrAppend(&text, ": memory is not ready yet for ", absl::StrJoin(slow, ", "));
  }
  WithdrawJoin(job, rank, absl::DeadlineExceededError(text));
}

}  // namespace iris::server
