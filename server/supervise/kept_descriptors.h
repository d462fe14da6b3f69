// KeptDescriptors: descriptors under names, as systemd's service manager keeps them for a service.
// Not thread-safe. Neither storing nor removing costs by the number that is kept.
//
// A name may stand for many descriptors. They are not compared: one open file that is stored twice
// is kept twice, which systemd would notice. The owner of the names sees to that.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "proto/wire/unique_fd.h"

namespace iris::server {

class KeptDescriptors {
 public:
  struct Entry {
    int fd = -1;            // still owned by KeptDescriptors
    std::string_view name;  // valid until the next Store or Remove
  };

  explicit KeptDescriptors(size_t most) : most_(most) {}

  // Takes all of *fds, or none: false, because there would be more than may be kept.
  bool Store(std::string_view name, std::vector<wire::UniqueFd>* fds);
  // Closes all of that name. The number of them.
  size_t Remove(std::string_view name);

  size_t size() const { return n_; }
  size_t most() const { return most_; }
  // All of them, the lowest number first.
  std::vector<Entry> Sorted() const;

 private:
  const size_t most_;
  size_t n_ = 0;
  std::unordered_map<std::string, std::vector<wire::UniqueFd>> by_name_;
};

}  // namespace iris::server
