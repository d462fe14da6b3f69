// KeptMemory: what processes may still have mapped of memory that irisd has given back. irisd can
// take its own descriptor away, and no process's mapping: so memory that a process was sent stays
// on the account of its user until every process that may have it has ended.
//
// It is known by user: each part of it with the processes that may have it. A user's parts are
// bounded; beyond that, parts are put together, and count until the processes of both have ended.
//
// Not thread-safe: inside the JobMachine.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "server/job/states.h"

namespace iris::server {

class KeptMemory {
 public:
  static constexpr size_t kMaxPartsPerUid = 64;

  // A process of a user.
  struct Process {
    int64_t pid = 0;
    uint64_t start = 0;
    friend auto operator<=>(const Process&, const Process&) = default;
  };
  // Bytes, by the processes that may have them. Neither is ever empty or 0.
  using Parts = std::map<std::set<Process>, uint64_t>;

  static Process ProcessOf(const CallerInfo& caller) { return {caller.pid, caller.process_start}; }

  // Does nothing if there are no holders or no bytes.
  void Add(const Party& party, std::set<Process> holders, uint64_t bytes);
  void ProcessGone(const Party& party, const Process& process);

  bool Holds(const Party& party, const Process& process) const;
  uint64_t bytes(const Party& party) const;
  // "pid 12, pid 13 and 5 more", of those that hold the user's; for an error.
  std::string Holders(const Party& party) const;

  const std::map<Party, Parts>& all() const { return parts_; }

 private:
  const Parts& PartsOf(const Party& party) const;

  std::map<Party, Parts> parts_;  // by account; none is empty
};

}  // namespace iris::server
