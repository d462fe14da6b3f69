#include "server/supervise/kept_descriptors.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace iris::server {

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
