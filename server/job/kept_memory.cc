#include "server/job/kept_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace iris::server {
namespace {

constexpr size_t kHoldersNamed = 4;

}  // namespace

void KeptMemory::Add(const Party& party, std::set<Process> holders, uint64_t bytes) {
  if (holders.empty() || bytes == 0) return;
  Parts& parts = parts_[party.Account()];
  if (parts.size() >= kMaxPartsPerUid && !parts.contains(holders)) {
    const auto last = std::prev(parts.end());
    holders.insert(last->first.begin(), last->first.end());
    bytes += last->second;
    parts.erase(last);
  }
  parts[std::move(holders)] += bytes;
}

void KeptMemory::ProcessGone(const Party& party, const Process& process) {
  const auto found = parts_.find(party.Account());
  if (found == parts_.end()) return;
  Parts left;
  for (auto& [holders, bytes] : found->second) {
    std::set<Process> others = holders;
    others.erase(process);
    if (!others.empty()) left[std::move(others)] += bytes;
  }
  found->second = std::move(left);
  if (found->second.empty()) parts_.erase(found);
}

const KeptMemory::Parts& KeptMemory::PartsOf(const Party& party) const {
  static const auto& none = *new Parts;
  const auto found = parts_.find(party.Account());
  return found == parts_.end() ? none : found->second;
}

bool KeptMemory::Holds(const Party& party, const Process& process) const {
  const Parts& parts = PartsOf(party);
  return std::any_of(parts.begin(), parts.end(),
                     [&](const auto& part) { return part.first.contains(process); });
}

uint64_t KeptMemory::bytes(const Party& party) const {
  uint64_t sum = 0;
  for (const auto& [holders, bytes] : PartsOf(party)) sum += bytes;
  return sum;
}

std::string KeptMemory::Holders(const Party& party) const {
  std::set<Process> all;
  for (const auto& [holders, bytes] : PartsOf(party)) all.insert(holders.begin(), holders.end());
  std::vector<std::string> named;
  for (const Process& process : all) {
    if (named.size() == kHoldersNamed) break;
    named.push_back(absl::StrCat("pid ", process.pid));
  }
  std::string text = absl::StrJoin(named, ", ");
  if (all.size() > named.size())
    absl::StrAppend(&text, " and ", all.size() - named.size(), " more");
  return text;
}

}  // namespace iris::server
