// Where a rank's trace is: a header, and behind it a buffer of events, which the rank's kernels
// and, where it can store there, its host library fill. It lies in the rank's own heap, so that it
// outlives the process and is read from outside (iris-ctl trace). Plain data; C++17.
//
// A trace is on while `until_ns` is later than the device's clock: who traces and is killed leaves
// nothing on. Who switches it on takes the next `generation`, sets `position` to 0, and then sets
// `until_ns`. Who has something to tell reads the generation and takes a slot, by adding to
// `position`, and writes the event there; a slot behind the last one is dropped, and `position`
// tells how many were. A trace never writes over its own events, so that reading needs no lock: an
// event is there when its `ready` fits all the rest of it and the generation. What began in an
// earlier trace, and is written late, does not fit and is left out.
#pragma once

#include <cstdint>

namespace iris {

// What an event is of. The numbers are in the heaps of running jobs: they stay.
enum class TraceOp : uint16_t {
  kNone = 0,
  kUser = 1,  // a TraceSpan of a program
  kPut = 2,
  kGet = 3,
  kPutSignal = 4,
  kWait = 5,
  kBarrier = 6,
  kGridBarrier = 7,
  kCollective = 64,  // and ccl::Operation is added: what one block did of it
  kHost = 128,       // and TraceHostCall is added: a call of the host library
};

enum class TraceHostCall : uint16_t {
  kAllocate = 0,
  kFree = 1,
  kBarrier = 2,
  kBroadcast = 3,
  kTeam = 4,    // a team is made, split or ended
  kLaunch = 5,  // an operation is put on a stream
  kSynchronize = 6,
  kOpen = 7,
  kSpan = 8,  // a named span of the program's, which is kept in the process alone
};
inline constexpr uint32_t kTraceHostCalls = 9;

inline constexpr uint16_t kNoTracePeer = 0xffff;

struct TraceEvent {
  uint64_t start_ns;  // by the device's clock, as all times here
  uint64_t end_ns;
  uint64_t bytes;  // collectives: elements
  // kUser: the tag; signals and waits: the value; barriers: the team; kLaunch: the operation;
  // kSpan: the number of its name; collectives: what is called, as the first word of PackedCall.
  uint64_t detail;
  // Of collectives. What is longer than 32 bits hold, 4.29 s, is told as that.
  uint32_t first_ns;  // from the start until the first round was passed; 0: no round
  uint32_t last_ns;   // from the start until the last round began; 0: no such round
  uint32_t wait_ns;   // of it the first thread spent in these rounds, or waiting for packets
  uint32_t number;    // collectives: the how-manieth of the communicator; host: the thread
  uint16_t op;        // TraceOp
  uint16_t peer;      // world rank; kNoTracePeer
  uint16_t multiprocessor;
  uint16_t thread;  // of the block: the first one of those that made the call together
  uint32_t block;   // of the kernel's grid
  uint32_t ready;   // the generation, xor all the other words of 32 bits
};
static_assert(sizeof(TraceEvent) == 64);

struct alignas(16) TraceArea {
  static constexpr uint64_t kMagic = 0x3145434152543149;  // "I1TRACE1"
  static constexpr uint32_t kVersion = 2;

  uint64_t magic;
  uint32_t version;
  uint32_t event_bytes;
  // These two words are read together.
  uint64_t until_ns;    // 0: off
  uint32_t generation;  // of the trace that is on, or was last
  uint32_t capacity;    // events that there is room for
  uint32_t rank;
  uint32_t reserved;
  int64_t pid;
  uint64_t reserved_before[10];
  uint64_t position;  // slots taken since it was switched on; a line of its own
  uint64_t reserved_behind[15];
};
static_assert(sizeof(TraceArea) == 256);

// A moment by the clock of a device and by the host's monotonic one, which differ by no more than
// `error_ns` from being the same moment.
struct ClockSample {
  uint64_t device_ns;
  uint64_t host_ns;
  uint64_t error_ns;
};

constexpr uint64_t TraceAreaBytes(uint64_t n_events) {
  return sizeof(TraceArea) + n_events * sizeof(TraceEvent);
}

}  // namespace iris
