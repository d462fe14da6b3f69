// The two kinds of shared page behind the host barrier: layout and rules. Both are PageBytes() =
// 4,096 bytes, zeroed at creation, sealed against resizing.
//
// ControlPage: one per rank. That rank maps it read-write, its peers read-only, irisd never.
// StatusPage: one per job. irisd maps it read-write, ranks read-only. Words are accessed with the
// atomic built-ins: a page is shared between processes, so std::atomic objects do not live in it.
//
// Barrier (docs/memory_model.md): a rank stores its new epoch (release) into words[slot] of its own
// page, wakes that word, then waits until every member's word has reached the epoch (acquire), or
// until the status page says that a rank is gone. Compare epochs with EpochReached(): they wrap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "proto/wire/limits.h"

namespace iris::wire {

inline constexpr size_t kPageBytes = 4096;

struct ControlPage {
  uint32_t words[kMaxTeamsPerJob];  // one epoch word per team slot
  uint8_t reserved[kPageBytes - 8 * kMaxTeamsPerJob];
  // Per team slot: 0, or after how many milliseconds, at least 1, this rank gave up the barrier
  // that its word tells, because its own time was up. For the errors of others alone.
  uint32_t gave_up_ms[kMaxTeamsPerJob];
};
static_assert(sizeof(ControlPage) == kPageBytes);

// From a slot's word to its gave_up_ms in the same page.
inline constexpr size_t kWordsToGaveUp = offsetof(ControlPage, gave_up_ms) / sizeof(uint32_t);

// Values of StatusPage::rank_state, the same numbers as iris.v1.RankState.
enum class PageRankState : uint32_t {
  kUnspecified = 0,
  kAbsent = 1,
  kJoined = 2,
  kMapped = 3,
  kReady = 4,
  kEnding = 5,
  kDead = 6,
  kLeft = 7,
};

struct StatusPage {
  // Not 0: a rank hung up or died; every wait on the device or the host ends with an error.
  uint32_t abort;
  uint32_t changes;  // incremented, then woken (futex), after any other word changed
  uint32_t n_ranks;
  uint32_t reserved0;
  uint64_t job_id;
  uint64_t epoch;
  uint32_t rank_state[kMaxRanks];  // PageRankState
  int64_t rank_pid[kMaxRanks];
  uint8_t reserved[kPageBytes - 32 - 12 * kMaxRanks];
};
static_assert(sizeof(StatusPage) == kPageBytes);

// True if `seen` is `wanted` or later, for epochs less than 2^31 apart.
constexpr bool EpochReached(uint32_t seen, uint32_t wanted) {
  return static_cast<int32_t>(seen - wanted) >= 0;
}

}  // namespace iris::wire
