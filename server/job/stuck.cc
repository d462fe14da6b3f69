#include "server/job/stuck.h"

#include <algorithm>
#include <map>

namespace iris::server {

std::vector<Rank> FindStuck(const std::vector<Blocked>& blocked) {
  std::map<Rank, const Blocked*> stuck;
  for (const Blocked& each : blocked) stuck[each.rank] = &each;
  // What is left when nobody can be taken out any more waits for itself.
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

}  // namespace iris::server
