#include "server/supervise/keeping.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace iris::server {

NotifyMessage ParseNotifyMessage(std::string_view text) {
  constexpr std::string_view kName = "FDNAME=";
  NotifyMessage message;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line == "READY=1") message.ready = true;
    if (line == "STOPPING=1") message.stopping = true;
    if (line == "WATCHDOG=1") message.alive = true;
    if (line == "FDSTORE=1") message.store = true;
    if (line == "FDSTOREREMOVE=1") message.remove = true;
    if (message.name.empty() && line.substr(0, kName.size()) == kName) {
      message.name = line.substr(kName.size());
    }
  }
  return message;
}

bool IsKeptName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxKeptNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
                  c == '_' || c == '-';
         });
}

bool KeptDescriptors::Store(std::string_view name, std::vector<wire::UniqueFd>* fds) {
  if (fds->empty()) return true;
  if (fds->size() > most_ - n_) return false;
  std::vector<wire::UniqueFd>& kept = by_name_[std::string(name)];
  std::move(fds->begin(), fds->end(), std::back_inserter(kept));
  n_ += fds->size();
  fds->clear();
  return true;
}

size_t KeptDescriptors::Remove(std::string_view name) {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return 0;
  const size_t n = found->second.size();
  by_name_.erase(found);
  n_ -= n;
  return n;
}

std::vector<KeptDescriptors::Entry> KeptDescriptors::Sorted() const {
  std::vector<Entry> all;
  all.reserve(n_);
  for (const auto& [name, fds] : by_name_) {
    for (const wire::UniqueFd& fd : fds) all.push_back({fd.get(), name});
  }
  std::sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return a.fd < b.fd; });
  return all;
}

}  // namespace iris::server
