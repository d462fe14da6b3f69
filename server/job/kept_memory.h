// KeptMemory: counts memory that irisd has given back, but that processes may still have mapped.
// irisd can close its own descriptor, but cannot undo a process's mapping, so such memory stays on
// its user's account until every process that may have it mapped has ended.
//
// Each user's memory is in parts, each with its set of processes. The number of parts is bounded:
// beyond it, two parts are merged, and count until the processes of both have ended.
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

  struct Process {
    int64_t pid = 0;
    uint64_t start = 0;
    friend auto operator<=>(const Process&, const Process&) = default;
  };
  // Maps sets of processes to the bytes that they may have. No set is empty, and no number is 0.
  using Parts = std::map<std::set<Process>, uint64_t>;

  static Process ProcessOf(const CallerInfo& caller) { return {caller.pid, caller.process_start}; }

  // Adds a part. Does nothing if there are no holders or no bytes.
  void Add(const Party& party, std::set<Process> holders, uint64_t bytes);
  void ProcessGone(const Party& party, const Process& process);

  bool Holds(const Party& party, const Process& process) const;
  uint64_t bytes(const Party& party) const;
  // Returns the processes that hold the user's memory, for an error: "pid 12, pid 13 and 5 more".
  std::string Holders(const Party& party) const;

  const std::map<Party, Parts>& all() const { return parts_; }

 private:
  const Parts& PartsOf(const Party& party) const;

  std::map<Party, Parts> parts_;  // by account; none is empty
};

}  // namespace iris::server
