// The two kinds of shared page behind the host barrier: layout and rules. Both are PageBytes() =
// 4,096 bytes, zeroed at creation, sealed against resizing.
//
// ControlPage: one per rank. That rank maps it read-write, its peers read-only. irisd never maps
// it: it copies it when somebody asks who waits for whom (docs/decisions/025), and believes none of
// it.
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

// One operation of a communicator, as its rank put it on a stream.
struct CollectiveEntry {
  uint64_t count;   // elements, as the call has them; 0: each member has its own
  uint32_t put_ms;  // when: PageMilliseconds
  uint8_t call;     // iris::ccl::Operation
  uint8_t dtype;    // iris::DType
  uint8_t reserved[2];
};
static_assert(sizeof(CollectiveEntry) == 16);

inline constexpr uint32_t kCollectiveEntries = 6;

// The operations that a rank has put on its streams through one communicator. Messages between
// members do not count: they are no operations of the whole team. Its writer makes `version` odd
// meanwhile.
struct CollectiveRecord {
  uint32_t version;
  uint32_t team_id;
  uint64_t workspace_offset_bytes;  // in every heap the same: it tells which communicator this is
  uint32_t n_members;               // 0: this record is of no communicator
  uint32_t n_put;                   // operations since the workspace was cleared; wraps
  // Words of the workspace, in bytes from its begin: uint32_t, how many operations the device has
  // finished; uint64_t, whose lower half is 1 + the number of the last operation in which the
  // device has waited long.
  uint16_t finished_at;
  uint16_t waiting_at;
  uint32_t reserved;
  CollectiveEntry last[kCollectiveEntries];  // of operation n, from 0: last[n % kCollectiveEntries]
};
static_assert(sizeof(CollectiveRecord) == 128);

inline constexpr uint32_t kCollectiveRecords = 6;

// A wait of one of the rank's own kernels for a signal, which the kernel writes once the wait has
// lasted a second. The same as iris::WaitNote of device/iris.
struct KernelWait {
  uint32_t state;      // kKernelWaitNoted: the rest is there. Any other value: it is not
  uint32_t from;       // rank that raises the signal
  uint32_t block;      // that waits
  uint32_t waited_ms;  // updated about every second, as is `seen`
  uint64_t wanted;     // the least value that the signal has to have
  uint64_t seen;       // its value
};
static_assert(sizeof(KernelWait) == 32);

// The first word of a KernelWait. Older clients have records of communicators in its place, of
// which the first word, `version`, does not get so large.
inline constexpr uint32_t kKernelWaitNoted = 0x77616974;

// One for each rank waited for, by its number modulo this. Waits beyond these are not listed.
inline constexpr uint32_t kKernelWaitSlots = 8;

struct ControlPage {
  uint32_t words[kMaxTeamsPerJob];  // one epoch word per team slot
  // Per team slot: 0, or since when (PageMilliseconds) this rank has waited in the barrier that its
  // word tells. For those who look from outside alone.
  uint32_t waits_since_ms[kMaxTeamsPerJob];
  // Communicators beyond these are not told of.
  CollectiveRecord collectives[kCollectiveRecords];
  KernelWait kernel_waits[kKernelWaitSlots];
  // Per team slot: 0, or after how many milliseconds, at least 1, this rank gave up the barrier
  // that its word tells, because its own time was up. For the errors of others alone.
  uint32_t gave_up_ms[kMaxTeamsPerJob];
};
static_assert(sizeof(ControlPage) == kPageBytes);

// The distance of a slot's word from its waits_since_ms and its gave_up_ms in the same page.
inline constexpr size_t kWordsToWaitsSince =
    offsetof(ControlPage, waits_since_ms) / sizeof(uint32_t);
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
  // One more than the rank whose end set `abort`, and 0 before. Those that end later do so because
  // of it, as a rule.
  uint32_t broken_by;
  uint64_t job_id;
  uint64_t epoch;
  uint32_t rank_state[kMaxRanks];  // PageRankState
  int64_t rank_pid[kMaxRanks];
  uint64_t control_inode[kMaxRanks];  // of the control pages, by which the next irisd knows them
  uint8_t reserved[kPageBytes - 32 - 20 * kMaxRanks];
};
static_assert(sizeof(StatusPage) == kPageBytes);

// A point of time in a page: milliseconds of the steady clock, which all processes share
// (CLOCK_MONOTONIC), modulo 2^32 and never 0.
constexpr uint32_t PageMilliseconds(int64_t steady_ms) {
  const uint32_t ms = static_cast<uint32_t>(steady_ms);
  return ms == 0 ? 1 : ms;
}

// True if `seen` is `wanted` or later, for epochs less than 2^31 apart.
constexpr bool EpochReached(uint32_t seen, uint32_t wanted) {
  return static_cast<int32_t>(seen - wanted) >= 0;
}

}  // namespace iris::wire
