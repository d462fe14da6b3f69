// Small plain types that kernels get by value: the rank, and the addresses of its peers' heaps.
// C++17, trivially copyable, and without pointers that a call would have to follow on the way to a
// peer.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/types.h"

namespace iris::backend {
struct HeapMap;
}  // namespace iris::backend

namespace iris {

struct TraceArea;
struct DevicePort;

inline constexpr uint32_t kMaxTeamRanks = 64;

// Threads that make one call together.
struct Thread {};  // each thread alone
struct Warp {};    // all threads of a warp
struct Block {};   // all threads of a block

// How a bounded wait ended.
enum class WaitResult : uint32_t { kOk = 0, kTimeout = 1, kAborted = 2 };

// The first failed wait of kernels, which they report to WaitMonitor (<iris/wait_monitor.h>) on the
// host. It is host memory that kernels can write, all zero at first.
struct WaitFailure {
  enum State : uint32_t { kNone = 0, kClaimed = 1, kTold = 2 };
  uint32_t state = kNone;  // kTold: the other fields are complete
  WaitResult result = WaitResult::kOk;
  uint32_t from = 0;       // the world rank that was waited for
  uint32_t block = 0;      // the block that waited
  uint64_t waited_ns = 0;  // of kTimeout
  uint64_t wanted = 0;     // the least value of the signal that ends the wait
  uint64_t seen = 0;       // its value
};

// The place to which the waits of a kernel report a failure. A WaitMonitor passes it to kernels by
// value. With WaitReport{}, waits do not report.
struct WaitReport {
  WaitFailure* failure = nullptr;
};

// A wait that has lasted for a second, as its kernel reports it to other processes (iris-ctl
// waits). A part of the rank's control page: host memory that kernels can write.
struct WaitNote {
  // kNoted differs from the values that older clients had at this place of the page.
  enum State : uint32_t { kFree = 0, kClaimed = 1, kNoted = 0x77616974 };
  uint32_t state = kFree;  // kNoted: the rest is complete
  uint32_t from = 0;       // as in WaitFailure
  uint32_t block = 0;
  uint32_t waited_ms = 0;  // updated about every second, as is `seen`
  uint64_t wanted = 0;
  uint64_t seen = 0;
};
static_assert(sizeof(WaitNote) == 32);

// The notes of a rank: a wait for rank r uses the note r % kWaitNotes, if no other wait does.
inline constexpr uint32_t kWaitNotes = 8;

// Comparisons of waits and tests, signed for signed types. For epochs, WaitEpoch compares
// wrap-safe.
enum class Compare { kEq, kNe, kGt, kGe, kLt, kLe };

// The effect of a signal on its word.
enum class SignalOp { kSet, kAdd };

// A signal at a peer, which PutSignal sends once its data has arrived. {word, value} sets.
struct SignalTo {
  uint64_t* word;  // an address in the caller's own heap, as everywhere
  uint64_t value;
  SignalOp op = SignalOp::kSet;
};

// Rows of a matrix, for the strided Put and Get: `rows` of `length` elements each, whose beginnings
// are a stride apart. Elements of void are bytes. A column is rows of length 1.
struct Strided {
  uint64_t rows;
  uint64_t length;
  uint64_t dst_stride;  // at least the length, as the other
  uint64_t src_stride;
};

// The area of a team's device barriers in every rank's heap, at the same offset on each: for each
// block of the grid one inbox with a word per rank, and this rank's own epoch. Epochs only grow and
// are never reset.
struct SyncArea {
  static constexpr uint32_t kMaxBlocks = 128;
  struct Slot {
    uint32_t inbox[kMaxTeamRanks];  // inbox[i]: the epoch that the rank at index i has reached
    uint32_t epoch;                 // of this rank
    uint32_t met;                   // slot 0: the result of GridBarrier's barrier of the ranks
    uint64_t grid;                  // slot 0: blocks of this rank's grid that have arrived, and
                                    // in the upper half how often all have
    // The world's area has the state of the kernels' ring to other nodes (impl/port.h).
    uint64_t port_posted;    // slot 0: places taken; slot 1 + i: the state of stage i
    uint32_t port_waits[8];  // slot s: not 0: a thread has yet to read result 8 s + i
    uint64_t host;           // slot k: the barrier of hosts that has reached its step k
  };
  Slot slots[kMaxBlocks];
};
static_assert(sizeof(SyncArea::Slot) == 320);
inline constexpr uint64_t kSyncAreaBytes = sizeof(SyncArea);

// An ordered set of ranks and its barrier area. MemberRank (translate.h) returns its ranks.
struct DeviceTeam {
  // Values of `step` for teams whose ranks are not evenly spaced.
  static constexpr uint16_t kListed = 0;      // on one node: first + members[i]
  static constexpr uint16_t kTable = 0xffff;  // members[0..7] is the address of uint32_t ranks[]

  uint32_t id = 0;
  uint32_t size = 0;
  uint32_t index = 0;  // of this rank in the team
  uint16_t first = 0;  // a world rank; 0 in a job of one node
  // A team with ranks of several nodes has a step or a table, and may have more than kMaxTeamRanks
  // ranks. With another value than the two above, rank i of the team is first + i * step.
  uint16_t step = kListed;
  uint64_t sync_offset_bytes = 0;       // of the SyncArea in every heap
  uint8_t members[kMaxTeamRanks] = {};  // added to `first`; so world ranks in a job of one node
};
static_assert(sizeof(DeviceTeam) == 88);

// The layout of the structs below, which the library fills and kernels read. It changes when a
// field moves or goes; new fields are at the end, and `size_bytes` shows them. It is the same as
// IRIS_DEVICE_ABI of <iris/c_api.h>.
inline constexpr uint32_t kDeviceAbi = 1;

// The data by which a kernel reaches its peers. Rank r's heap begins at base + r * stride_bytes, so
// a pointer into one heap becomes a pointer into another by adding (to - from) * stride_bytes.
struct DeviceContext {
  uint32_t size_bytes = 0;  // of this struct, as the library knows it
  uint32_t abi = kDeviceAbi;
  uint32_t rank = 0;
  uint32_t n_ranks = 0;
  // Address of rank 0's heap in this process. In a job of several nodes it is the place where that
  // heap would be: `base + r * stride_bytes` is mapped for the ranks of this node alone.
  uint64_t base = 0;
  uint64_t stride_bytes = 0;
  uint64_t timeout_ns = 0;               // of every wait without its own; 0: 60 s
  const uint32_t* abort_word = nullptr;  // not 0: every wait ends with kAborted. Null: never
  DeviceTeam world;
  // The allocations, by which the emulator describes a wrong access. Null if they are not known.
  const backend::HeapMap* heap_map = nullptr;
  // The trace of this rank, in its heap (trace_area.h), or null.
  TraceArea* trace = nullptr;
  // This rank's kWaitNotes notes. If null, long waits are not noted.
  WaitNote* wait_notes = nullptr;
  // The ranks of this node, whose heaps are mapped: `n_mapped` ranks from `first_mapped` on.
  // n_mapped 0: all ranks of the job.
  uint32_t first_mapped = 0;
  uint32_t n_mapped = 0;
  // The way to ranks of other nodes, in memory that kernels read. Null: there is none.
  const DevicePort* port = nullptr;
};
static_assert(std::is_trivially_copyable_v<DeviceContext>);

// The addresses of the heaps, for a kernel that gets a table and no DeviceContext: see
// heap_bases.h. Calls that take a DeviceContext for addressing also take this.
struct HeapBases {
  // bases[r] is the address in this process at which the heap of rank r begins. Borrowed; in memory
  // that the kernel can read.
  const uint64_t* bases = nullptr;
  uint32_t rank = 0;  // the caller's own
  // Only the emulator's checks use these. 0 means unknown, and not checked.
  uint32_t n_ranks = 0;
  uint64_t heap_bytes = 0;  // of each heap
};
static_assert(std::is_trivially_copyable_v<HeapBases>);

}  // namespace iris
