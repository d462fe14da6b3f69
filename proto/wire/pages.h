// Layout of the shared pages of the host barrier: 4,096 bytes, zeroed at creation, sealed against
// resizing. docs/protocol.md has the rules of the barrier, docs/memory_model.md its order of
// memory.
//
// ControlPage: one per rank, which maps it read-write, and its peers read-only. irisd only copies
// it to list waits (docs/decisions/025); its contents may be hostile.
// StatusPage: one per job. irisd maps it read-write, ranks read-only. Words are accessed with the
// atomic built-ins, since no process constructs objects in a shared page.
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

// A rank's operations on its streams through one communicator, without messages between two ranks.
// `version` is odd while its writer changes the record.
struct CollectiveRecord {
  uint32_t version;
  uint32_t team_id;
  uint64_t workspace_offset_bytes;  // names the communicator; the same in every heap
  uint32_t n_members;               // 0: this record is of no communicator
  uint32_t n_put;                   // operations since the workspace was cleared; wraps
  // Offsets of words in the workspace: the number of operations that the device has finished (32
  // bits), and one whose lower half is 1 + the last operation in which it has waited long (64
  // bits).
  uint16_t finished_at;
  uint16_t waiting_at;
  uint32_t reserved;
  CollectiveEntry last[kCollectiveEntries];  // of operation n, from 0: last[n % kCollectiveEntries]
};
static_assert(sizeof(CollectiveRecord) == 128);

inline constexpr uint32_t kCollectiveRecords = 6;

// A wait for a signal, which the waiting kernel writes after a second. The layout is that of
// iris::WaitNote of device/iris.
struct KernelWait {
  uint32_t state;      // kKernelWaitNoted: the rest is valid
  uint32_t from;       // rank that raises the signal
  uint32_t block;      // that waits
  uint32_t waited_ms;  // updated about every second, as is `seen`
  uint64_t wanted;     // the least value of the signal that ends the wait
  uint64_t seen;       // its value
};
static_assert(sizeof(KernelWait) == 32);

// Value of KernelWait::state. Older clients have records of communicators at this place, whose
// first word, `version`, never becomes this large.
inline constexpr uint32_t kKernelWaitNoted = 0x77616974;

// A wait uses the slot of the awaited rank modulo this number. Further waits are not listed.
inline constexpr uint32_t kKernelWaitSlots = 8;

struct ControlPage {
  uint32_t words[kMaxTeamsPerJob];  // one epoch word per team slot
  // Per team slot: 0, or the time (PageMilliseconds) at which this rank began to wait in the
  // barrier of its word. Only for listings.
  uint32_t waits_since_ms[kMaxTeamsPerJob];
  CollectiveRecord collectives[kCollectiveRecords];  // other communicators are not listed
  KernelWait kernel_waits[kKernelWaitSlots];
  // Per team slot: 0, or the milliseconds (at least 1) after which this rank's barrier timed out.
  // Only the errors of other ranks use it.
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
  uint32_t broken_by;  // 1 + the rank whose end set `abort`
  uint64_t job_id;
  uint64_t epoch;
  uint32_t rank_state[kMaxRanks];  // PageRankState
  int64_t rank_pid[kMaxRanks];
  uint64_t control_inode[kMaxRanks];  // of the control pages, for the next irisd
  // Bit r % 32 of word r / 32: rank r, which is of another node, has left.
  uint32_t left_elsewhere[kMaxWorldRanks / 32];
  uint8_t reserved[kPageBytes - 32 - 20 * kMaxRanks - kMaxWorldRanks / 8];
};
static_assert(sizeof(StatusPage) == kPageBytes);

// A time in a page: milliseconds of CLOCK_MONOTONIC, modulo 2^32 and never 0.
constexpr uint32_t PageMilliseconds(int64_t steady_ms) {
  const uint32_t ms = static_cast<uint32_t>(steady_ms);
  return ms == 0 ? 1 : ms;
}

// Returns true if `seen` is `wanted` or later, for epochs less than 2^31 apart.
constexpr bool EpochReached(uint32_t seen, uint32_t wanted) {
  return static_cast<int32_t>(seen - wanted) >= 0;
}

}  // namespace iris::wire
