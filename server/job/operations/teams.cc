// Teams: create_team, split, destroy_team.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/limits.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {
namespace {

// Returns kInvalidArgument if a rank is not in the team, or is named twice.
absl::Status CheckRanksOf(const std::vector<Rank>& ranks, const Team& team) {
  std::set<Rank> seen;
  for (const Rank rank : ranks) {
    if (team.IndexOf(rank) < 0) {
      return Error(Code::kInvalidArgument, "rank ", rank, " is not a member of team ",
                   team.info.id);
    }
    if (!seen.insert(rank).second) {
      return Error(Code::kInvalidArgument, "rank ", rank, " is named twice");
    }
  }
  return absl::OkStatus();
}

// Makes a team of each list of ranks, or makes none.
Executed MakeTeams(const std::vector<std::vector<Rank>>& teams, Run& run) {
  Job& job = run.job;
  const size_t n_teams = job.n_teams();
  std::vector<TeamInfo> made;
  absl::Status status;
  bool has_slots = true;
  for (size_t i = 0; i < teams.size() && status.ok(); ++i) {
    const std::optional<uint32_t> slot = job.FreeSlot();
    has_slots = slot.has_value() && !IsOwnTeam(job.next_team);
    if (!has_slots) {
      status = Error(Code::kResourceExhausted, "the job has ", n_teams, " teams and no slot for ",
                     teams.size() == 1 ? "another" : absl::StrCat(teams.size(), " others"),
                     ": destroy some");
      break;
    }
    const auto team = job.MakeTeam(teams[i], *slot, run.wall);
    status = team.status();
    if (status.ok()) made.push_back(*team);
  }
  if (status.ok()) {
    for (const TeamInfo& team : made) {
      run.events.push_back(event::TeamCreated{team.id, team.barrier_slot, team.ranks});
    }
    return Concluded{{.teams = std::move(made)}};
  }
  for (; !made.empty(); made.pop_back()) job.UnmakeLastTeam();
  const uint64_t area = (job.team_sync_bytes + wire::kMinAlignmentBytes - 1) /
                        wire::kMinAlignmentBytes * wire::kMinAlignmentBytes;
  const uint64_t needed =
      has_slots ? job.allocator.ShortfallBytes(teams.size() * area, wire::kMinAlignmentBytes) : 0;
  if (needed == 0) return status;  // not for lack of room
  return NeedsGrowth{needed, std::max(needed, job.heap_bytes_initial), status};
}

// Returns by how many epochs the word has advanced since the team began; 0 if the word is earlier.
uint64_t Ahead(uint32_t epoch, const Team& team) {
  const int32_t ahead = static_cast<int32_t>(epoch - team.info.barrier_start_epoch);
  return static_cast<uint64_t>(std::max(ahead, 0));
}

}  // namespace

std::string CreateTeamOp::Arguments() const {
  return absl::StrCat("(ranks=[", absl::StrJoin(ranks, ","), "])");
}

absl::Status CreateTeamOp::Check(const Team& team) const {
  if (ranks.empty()) return absl::InvalidArgumentError("a team has at least one rank");
  if (ranks.size() > team.info.ranks.size()) {
    return Error(Code::kInvalidArgument, ranks.size(), " ranks are more than the ",
                 team.info.ranks.size(), " of team ", team.info.id);
  }
  return CheckRanksOf(ranks, team);
}

Executed CreateTeamOp::Execute(Run& run) const { return MakeTeams({ranks}, run); }

void SplitOp::Prepare(const Team& team, size_t index) {
  std::erase_if(wishes,
                [own = team.info.ranks[index]](const Wish& wish) { return wish.rank != own; });
}

absl::Status SplitOp::Check(const Team& team) const {
  std::vector<Rank> ranks;
  for (const Wish& wish : wishes) ranks.push_back(wish.rank);
  if (ranks.empty()) return absl::InvalidArgumentError("it names no color");
  return CheckRanksOf(ranks, team);
}

void SplitOp::Merge(const SplitOp& asked, const Team& /*team*/) {
  wishes.insert(wishes.end(), asked.wishes.begin(), asked.wishes.end());
}

Executed SplitOp::Execute(Run& run) const {
  std::vector<Wish> sorted = wishes;
  // For equal keys, uses the order of the team.
  std::sort(sorted.begin(), sorted.end(), [&](const Wish& a, const Wish& b) {
    return std::tuple(a.key, run.team.IndexOf(a.rank)) <
           std::tuple(b.key, run.team.IndexOf(b.rank));
  });
  std::map<int32_t, std::vector<Rank>> by_color;
  for (const Wish& wish : sorted) {
    if (wish.color >= 0) by_color[wish.color].push_back(wish.rank);
  }
  std::vector<std::vector<Rank>> teams;
  for (auto& [color, ranks] : by_color) teams.push_back(std::move(ranks));
  return MakeTeams(teams, run);
}

absl::Status DestroyTeamOp::Check(const Team& team) const {
  if (team.info.id != kWorldTeam) return absl::OkStatus();
  return absl::InvalidArgumentError("the world is not destroyed: leave the job");
}

void DestroyTeamOp::Merge(const DestroyTeamOp& asked, const Team& team) {
  if (Ahead(asked.last_barrier_epoch, team) > Ahead(last_barrier_epoch, team)) {
    last_barrier_epoch = asked.last_barrier_epoch;
  }
}

Executed DestroyTeamOp::Execute(Run& run) const {
  const Team& team = run.team;
  if (team.n_allocations > 0) {
    return Error(Code::kFailedPrecondition, "its ", team.n_allocations,
                 " live allocations come first");
  }
  // Words of the slot only count up: the next team starts after the last epoch that any rank has
  // reported.
  run.job.slot_epochs[team.info.barrier_slot] =
      uint64_t{team.info.barrier_start_epoch} + Ahead(last_barrier_epoch, team) + 1;
  run.job.GiveBackSlotAndArea(team.info);
  run.events.push_back(event::TeamDestroyed{team.info.id});
  return Concluded{.ends_team = true};
}

}  // namespace iris::server
