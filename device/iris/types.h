// The small plain types that kernels get by value: who this rank is and where its peers' heaps are.
// C++17, trivially copyable, no pointer to anything that a call would have to follow on the way to
// a peer.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/types.h"

namespace iris::backend {
struct HeapMap;
}  // namespace iris::backend

namespace iris {

struct TraceArea;

inline constexpr uint32_t kMaxTeamRanks = 64;

// Threads that make one call together.
struct Thread {};  // each thread alone
struct Warp {};    // all threads of a warp
struct Block {};   // all threads of a block

// How a bounded wait ended.
enum class WaitResult : uint32_t { kOk = 0, kTimeout = 1, kAborted = 2 };

// The first wait of kernels that failed, as they tell it to the host: who reads it is WaitMonitor
// (<iris/wait_monitor.h>). Host memory that kernels can write, all zero at first.
struct WaitFailure {
  enum State : uint32_t { kNone = 0, kClaimed = 1, kTold = 2 };
  uint32_t state = kNone;  // kTold: all of the rest is there
  WaitResult result = WaitResult::kOk;
  uint32_t from = 0;       // the world rank that was waited for
  uint32_t block = 0;      // that waited
  uint64_t waited_ns = 0;  // of kTimeout
  uint64_t wanted = 0;     // the least value that the signal has to have
  uint64_t seen = 0;       // its value
};

// Where the waits of a kernel report a failure. Kernels get it by value, from a WaitMonitor. A
// WaitReport{} reports to nobody.
struct WaitReport {
  WaitFailure* failure = nullptr;
};

// A wait for a signal that has lasted for a second, as its kernel notes it for those who look from
// outside (iris-ctl waits). A part of the rank's control page: host memory that kernels can write.
struct WaitNote {
  // kNoted differs from what older clients had at this place of the page.
  enum State : uint32_t { kFree = 0, kClaimed = 1, kNoted = 0x77616974 };
  uint32_t state = kFree;  // kNoted: the rest is there
  uint32_t from = 0;       // as in WaitFailure
  uint32_t block = 0;
  uint32_t waited_ms = 0;  // updated about every second, as is `seen`
  uint64_t wanted = 0;
  uint64_t seen = 0;
};
static_assert(sizeof(WaitNote) == 32);

// The notes of a rank: a wait for rank r uses the note r % kWaitNotes, if no other wait does.
inline constexpr uint32_t kWaitNotes = 8;

// Comparison of wait and test, signed for signed types; kGe on epochs is wrap-safe through
// WaitEpoch.
enum class Compare { kEq, kNe, kGt, kGe, kLt, kLe };

// What a signal does to its word.
enum class SignalOp { kSet, kAdd };

// A signal at a peer: what PutSignal does when its data is there. {word, value} sets.
struct SignalTo {
  uint64_t* word;  // an address in the caller's own heap, as everywhere
  uint64_t value;
  SignalOp op = SignalOp::kSet;
};

// Rows of a matrix, for the strided Put and Get: `rows` of `length` elements each, that begin so
// many elements after one another. Elements of void are bytes. A column is rows of length 1.
struct Strided {
  uint64_t rows;
  uint64_t length;
  uint64_t dst_stride;  // at least the length; likewise the other
  uint64_t src_stride;
};

// The area in every member's heap through which a team's device barriers go, at the same offset on
// each: for each block of the grid one inbox with a word per member, and this rank's own epoch.
// Epochs only grow and are never reset.
struct SyncArea {
  static constexpr uint32_t kMaxBlocks = 128;
  struct Slot {
    uint32_t inbox[kMaxTeamRanks];  // inbox[i]: the epoch that member i has reached
    uint32_t epoch;                 // of this rank
    uint32_t met;                   // slot 0: what GridBarrier's meeting of the ranks came to
    uint64_t grid;                  // slot 0: blocks of this rank's grid that have arrived, and
                                    // in the upper half how often all of them had
    uint32_t reserved[12];
  };
  Slot slots[kMaxBlocks];
};
static_assert(sizeof(SyncArea::Slot) == 320);
inline constexpr uint64_t kSyncAreaBytes = sizeof(SyncArea);

// An ordered set of ranks and its barrier area.
struct DeviceTeam {
  uint32_t id = 0;
  uint32_t size = 0;
  uint32_t index = 0;                   // of this rank in members[]
  uint64_t sync_offset_bytes = 0;       // of the SyncArea in every heap
  uint8_t members[kMaxTeamRanks] = {};  // world ranks
};

// The layout of the structs below, which the library makes and kernels read. It changes when a
// field moves or goes; fields that come are at the end, and `size_bytes` tells of them. The same as
// IRIS_DEVICE_ABI of <iris/c_api.h>.
inline constexpr uint32_t kDeviceAbi = 1;

// What a kernel needs to reach its peers. Rank r's heap begins at base + r * stride_bytes, so a
// pointer into one heap becomes a pointer into another by adding (to - from) * stride_bytes.
struct DeviceContext {
  uint32_t size_bytes = 0;  // of this struct, as the library knows it
  uint32_t abi = kDeviceAbi;
  uint32_t rank = 0;
  uint32_t n_ranks = 0;
  uint64_t base = 0;  // address of rank 0's heap in this process
  uint64_t stride_bytes = 0;
  uint64_t timeout_ns = 0;               // of every wait that is given no other; 0: 60 s
  const uint32_t* abort_word = nullptr;  // not 0: every wait ends with kAborted. Null: never
  DeviceTeam world;
  // Who knows the allocations, for what the emulator says of a wrong access. Null: nobody.
  const backend::HeapMap* heap_map = nullptr;
  // The trace of this rank, in its heap (trace_area.h). Null: it has none.
  TraceArea* trace = nullptr;
  // This rank's kWaitNotes notes. Null: long waits are not noted.
  WaitNote* wait_notes = nullptr;
};
static_assert(std::is_trivially_copyable_v<DeviceContext>);

// Where the heaps are, for a kernel that is given a table and no DeviceContext: see heap_bases.h.
// Calls that take the one take the other.
struct HeapBases {
  // bases[r]: the address in this process at which the heap of rank r begins. Borrowed; memory that
  // the kernel can read.
  const uint64_t* bases = nullptr;
  uint32_t rank = 0;  // the caller's own
  // For the checks of the emulator alone. 0: not known, and not checked.
  uint32_t n_ranks = 0;
  uint64_t heap_bytes = 0;  // of each heap
};
static_assert(std::is_trivially_copyable_v<HeapBases>);

}  // namespace iris
