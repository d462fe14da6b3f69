#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "server/job/operations/operation.h"

namespace iris::server {

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
  // Equal keys: the order is that of the team.
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

}  // namespace iris::server
