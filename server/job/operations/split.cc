#include "server/job/operations/split.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "server/job/operations/create_team.h"
#include "server/job/operations/operation.h"

namespace iris::server {

void OperationOf<SplitOp>::Prepare(SplitOp& op, const Team& team, size_t index) {
  std::erase_if(op.wishes, [own = team.info.ranks[index]](const SplitOp::Wish& wish) {
    return wish.rank != own;
  });
}

absl::Status OperationOf<SplitOp>::Check(const SplitOp& op, const Team& team) {
  std::vector<Rank> ranks;
  for (const SplitOp::Wish& wish : op.wishes) ranks.push_back(wish.rank);
  if (ranks.empty()) return absl::InvalidArgumentError("it names no color");
  return CheckRanksOf(ranks, team);
}

void OperationOf<SplitOp>::Merge(SplitOp& pending, const SplitOp& asked, const Team& /*team*/) {
  pending.wishes.insert(pending.wishes.end(), asked.wishes.begin(), asked.wishes.end());
}

Executed OperationOf<SplitOp>::Execute(const SplitOp& op, Run& run) {
  std::vector<SplitOp::Wish> wishes = op.wishes;
  // Equal keys: the order is that of the team.
  std::sort(wishes.begin(), wishes.end(), [&](const SplitOp::Wish& a, const SplitOp::Wish& b) {
    return std::tuple(a.key, run.team.IndexOf(a.rank)) <
           std::tuple(b.key, run.team.IndexOf(b.rank));
  });
  std::map<int32_t, std::vector<Rank>> by_color;
  for (const SplitOp::Wish& wish : wishes) {
    if (wish.color >= 0) by_color[wish.color].push_back(wish.rank);
  }
  std::vector<std::vector<Rank>> teams;
  for (auto& [color, ranks] : by_color) teams.push_back(std::move(ranks));
  return MakeTeams(teams, run);
}

}  // namespace iris::server
