// What a rank and a job can be in, and who calls. Plain data.
#pragma once

#include <cstdint>

#include "server/account/party.h"

namespace iris::server {

// Same numbers as iris.v1.RankState and wire::PageRankState.
enum class RankState : uint32_t {
  kAbsent = 1,
  kJoined = 2,
  kMapped = 3,
  kReady = 4,
  kEnding = 5,
  kDead = 6,
  kLeft = 7,
};
enum class JobState : uint32_t { kForming = 1, kMapping = 2, kReady = 3, kBroken = 4 };

struct CallerInfo {
  int64_t pid = 0;
  Party party;
  uint32_t gid = 0;
  uint64_t process_start = 0;  // start time of the pid, so that a recycled pid is another process

  // Whether both are the same process. A pid alone may have been used again.
  bool SameProcess(const CallerInfo& other) const {
    return pid == other.pid && party == other.party && process_start == other.process_start;
  }
};

}  // namespace iris::server
