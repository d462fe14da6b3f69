// The messages that a supervised irisd sends with sd_notify(3), and the descriptors that are kept
// for it. Not thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "proto/wire/unique_fd.h"

namespace iris::server {

// The part of the protocol that the supervisor uses. It ignores other assignments, such as STATUS=,
// MAINPID=, RELOADING=1, after which READY=1 comes, and BARRIER=1, whose descriptor is closed like
// every other that is not to be kept.
struct NotifyMessage {
  bool ready = false;
  bool stopping = false;
  bool alive = false;     // WATCHDOG=1
  bool store = false;     // FDSTORE=1
  bool remove = false;    // FDSTOREREMOVE=1
  std::string_view name;  // the first FDNAME=; a view of the parsed text
};

// Parses `text`, and ignores lines that are no assignments.
NotifyMessage ParseNotifyMessage(std::string_view text);

// The longest name. All names are in one string of the child's environment, of at most 128 KiB.
inline constexpr size_t kMaxKeptNameBytes = 10;
// Returns true if descriptors can be kept under `name`: 1 to 10 characters of [A-Za-z0-9_-].
bool IsKeptName(std::string_view name);

// Descriptors under names, as systemd's service manager keeps them for a service. The cost of
// storing and removing does not depend on the number of kept descriptors. A name may stand for many
// descriptors. They are not compared: one open file that is stored twice is kept twice, while
// systemd would keep it once. The owner of the names prevents that.
class KeptDescriptors {
 public:
  struct Entry {
    int fd = -1;            // still owned by KeptDescriptors
    std::string_view name;  // valid until the next Store or Remove
  };

  explicit KeptDescriptors(size_t most) : most_(most) {}

  // Takes all of *fds, or takes none and returns false if the limit would be exceeded.
  bool Store(std::string_view name, std::vector<wire::UniqueFd>* fds);
  // Closes all descriptors of that name, and returns their number.
  size_t Remove(std::string_view name);

  size_t size() const { return n_; }
  size_t most() const { return most_; }
  // Returns all descriptors, the lowest number first.
  std::vector<Entry> Sorted() const;

 private:
  const size_t most_;
  size_t n_ = 0;
  std::unordered_map<std::string, std::vector<wire::UniqueFd>> by_name_;
};

}  // namespace iris::server
