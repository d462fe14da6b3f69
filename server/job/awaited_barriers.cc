// Host barriers that ranks wait in for long, and calls that wait for each other without end.
//
// Host barriers do not go through irisd. A rank that waits long in a barrier reports which ranks
// are missing, and its call stays pending until the barrier ends. With the operations that ranks
// have asked for, these calls show where every rank is (FindStuck). The missing ranks are those at
// the time of the rank's look, and a rank that entered the barrier after the look may be in another
// call by now. So a look counts only for calls that irisd knew before it: irisd asks the rank to
// look again, and the rank returns the job's moment of that answer.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/job/teams.h"

namespace iris::server {
namespace {

// One call that a rank waits in.
struct Standing {
  const Team* team = nullptr;               // of an operation, or null
  const AwaitedBarrier* barrier = nullptr;  // otherwise
  bool only_thread = false;
  uint64_t entered = 0;
};

// Errors are cut at wire::kMaxErrorTextBytes, so they name at most this many ranks, and this many
// calls of a rank.
constexpr size_t kRanksNamed = 6;
constexpr size_t kCallsNamed = 2;

std::string JoinFirst(std::vector<std::string> texts, size_t n_max, const char* separator) {
  const size_t n = texts.size();
  if (n > n_max) {
    texts.resize(n_max);
    texts.push_back(absl::StrCat(n - n_max, " more"));
  }
  return absl::StrJoin(texts, separator);
}

std::string OfTeam(TeamId team) {
  return team == kWorldTeam ? "" : absl::StrCat(" of ", TeamText(team));
}

// Returns for example "allocate #3".
std::string TextOf(const Standing& call) {
  if (call.barrier != nullptr) {
    return absl::StrCat("host barrier #", call.barrier->epoch, OfTeam(call.barrier->team));
  }
  const std::string described = Describe(call.team->op->op);  // with its arguments
  return absl::StrCat(described.substr(0, described.find('(')), " #", call.team->next_k,
                      OfTeam(call.team->info.id));
}

std::vector<std::vector<Standing>> StandingCalls(const Job& job) {
  std::vector<std::vector<Standing>> calls(job.n_ranks());
  for (const auto& [id, team] : job.teams) {
    if (!team.op.has_value()) continue;
    for (size_t index = 0; index < team.info.ranks.size(); ++index) {
      if (team.op->calls[index].empty()) continue;
      const uint64_t entered = team.op->asked_alone[index];
      calls[team.info.ranks[index]].push_back({&team, nullptr, entered != 0, entered});
    }
  }
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    for (const AwaitedBarrier& barrier : job.ranks[rank].barriers) {
      calls[rank].push_back({nullptr, &barrier, barrier.only_thread, barrier.entered});
    }
  }
  return calls;
}

std::vector<Rank> NeededBy(const Standing& call) {
  return call.barrier != nullptr ? call.barrier->missing : call.team->Missing();
}

}  // namespace

std::vector<Rank> FindStuck(const std::vector<Blocked>& blocked) {
  std::map<Rank, const Blocked*> stuck;
  for (const Blocked& each : blocked) stuck[each.rank] = &each;
  // Removes ranks whose call may end. The remaining ranks wait for each other.
  const auto may_end = [&stuck](const auto& entry) {
    const std::vector<Rank>& needs = entry.second->needs;
    return std::none_of(needs.begin(), needs.end(),
                        [&stuck](Rank rank) { return stuck.contains(rank); });
  };
  while (std::erase_if(stuck, may_end) > 0) {
  }
  std::vector<Rank> ranks;
  for (const auto& [rank, each] : stuck) ranks.push_back(rank);
  return ranks;
}

std::string Teams::WhereAre(const Job& job, const std::vector<Rank>& ranks) {
  const auto calls = StandingCalls(job);
  std::vector<std::string> places;
  for (const Rank rank : ranks) {
    std::vector<std::string> texts;
    for (const Standing& call : calls[rank]) texts.push_back(TextOf(call));
    if (texts.empty()) continue;
    places.push_back(
        absl::StrCat(job.Who(rank), " is in ", JoinFirst(std::move(texts), kCallsNamed, " and ")));
  }
  const std::string where = places.empty() ? "none of them is in a call that irisd knows"
                                           : JoinFirst(std::move(places), kRanksNamed, ", ");
  return absl::StrCat(where, " (`iris-ctl waits` shows who waits for whom)");
}

void Teams::On(const AwaitBarrierCall& in) {
  const auto& [id, call, spec] = in;
  const auto membership = FindMembership(id, spec.job);
  if (!membership.ok()) return Answer(call, membership.status());
  Job& job = *membership->job;
  const Rank rank = membership->rank;
  const std::string what =
      absl::StrCat("await host barrier #", spec.epoch, " of ", TeamText(spec.team), ": ");
  if (job.state != JobState::kReady) {
    return Refuse(call, Code::kFailedPrecondition, what, "the job is not ready");
  }
  const Team* const team = std::as_const(job.teams).Find(spec.team);
  if (team == nullptr || team->IndexOf(rank) < 0) {
    return Refuse(call, Code::kNotFound, what, "it is no team of this rank");
  }
  const bool members = spec.missing.size() < team->info.ranks.size() &&
                       std::all_of(spec.missing.begin(), spec.missing.end(), [&](Rank missing) {
                         return missing != rank && team->IndexOf(missing) >= 0;
                       });
  if (!members) {
    return Refuse(call, Code::kInvalidArgument, what,
                  "the missing ranks are not members of the team");
  }
  if (spec.time_is_up) {
    return Answer(call, absl::OkStatus(),
                  BarrierAnswer{job.moment, false, WhereAre(job, spec.missing)});
  }
  Member& member = *membership->member;
  if (member.barriers.size() >= kMaxWaitingCallsPerRank) {
    return Refuse(call, Code::kResourceExhausted, what, "too many calls wait already");
  }
  // A rank that looks again has stayed in the barrier since that moment.
  const uint64_t looked = std::min(spec.moment, job.moment);
  const uint64_t entered = looked != 0 ? looked : ++job.moment;
  member.barriers.push_back(
      {call, spec.team, spec.epoch, spec.missing, spec.only_thread, entered, looked});
  AddWaiting(call, {WaitingCall::Kind::kBarrier, job.id, rank, spec.team});
  if (spec.only_thread) LookForStuck(job);
}

void Teams::AnswerBarrier(Job& job, Rank rank, CallId call, BarrierAnswer answer) {
  std::erase_if(job.ranks[rank].barriers,
                [call](const AwaitedBarrier& barrier) { return barrier.call == call; });
  Answer(call, absl::OkStatus(), std::move(answer));
}

void Teams::AnswerBarriersOfDeadTeams(Job& job) {
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    for (const AwaitedBarrier& barrier : std::vector(std::as_const(job).ranks[rank].barriers)) {
      const Team* const team = std::as_const(job).teams.Find(barrier.team);
      if (team != nullptr && job.CheckAlive(*team).ok()) continue;
      AnswerBarrier(job, rank, barrier.call, {job.moment, false, ""});
    }
  }
}

void Teams::RefuseBarriers(Job& job, Rank rank, const absl::Status& why) {
  for (const AwaitedBarrier& barrier : std::exchange(job.ranks[rank].barriers, {})) {
    Answer(barrier.call, why);
  }
}

void Teams::LookForStuck(Job& job) {
  if (job.state != JobState::kReady || !job.Decides()) return;
  const auto all = StandingCalls(job);
  std::vector<Blocked> blocked;
  for (Rank rank = 0; rank < job.n_ranks(); ++rank) {
    if (all[rank].size() != 1 || !all[rank][0].only_thread) continue;
    blocked.push_back({rank, NeededBy(all[rank][0])});
  }
  const std::vector<Rank> stuck = FindStuck(blocked);
  if (stuck.empty()) return;

  uint64_t newest = 0;
  std::vector<std::string> places;
  for (const Rank rank : stuck) {
    newest = std::max(newest, all[rank][0].entered);
    places.push_back(absl::StrCat(job.Who(rank), " is in ", TextOf(all[rank][0])));
  }
  bool fresh = true;
  for (const Rank rank : stuck) {
    const AwaitedBarrier* const barrier = all[rank][0].barrier;
    if (barrier == nullptr || barrier->looked >= newest) continue;
    fresh = false;
    AnswerBarrier(job, rank, barrier->call, {job.moment, false, ""});
  }
  if (!fresh) return;  // the ranks that look again call again

  const std::string text = absl::StrCat(
      "it cannot end, because ranks wait for each other: ",
      JoinFirst(std::move(places), kRanksNamed, ", "),
      ": make these calls in the same order on all ranks (`iris-ctl waits` shows who waits for "
      "whom)");
  Note(job, event::OperationMismatch{text});
  for (const Rank rank : stuck) {
    const Standing& call = all[rank][0];
    if (call.barrier != nullptr) {
      AnswerBarrier(job, rank, call.barrier->call, {job.moment, true, text});
    } else if (call.team->op.has_value()) {  // otherwise concluded for another rank
      Team& team = job.teams.at(call.team->info.id);
      Conclude(job, team, Error(Code::kInvalidArgument, What(team.op->op, team), text));
    }
  }
}

}  // namespace iris::server
