// Memory of a rank's trace: a header, followed by a buffer of events. The rank's kernels write it,
// and so does its host library if it can store there. It lies in the rank's own heap, so that it
// outlives the process and others can read it (iris-ctl trace). Plain data; C++17.
//
// A trace is on while `until_ns` is later than the device's clock: if the tracing process is
// killed, the trace still ends. To start one, take the next `generation`, set `position` to 0, and
// then set `until_ns`. To record an event, read the generation, take a slot by adding to
// `position`, and write the event there. Events after the last slot are dropped, and `position` has
// their number. A trace never overwrites its own events, so that reading needs no lock: an event is
// complete if its `ready` matches its other words and the generation. An event that began in an
// earlier trace, and is written late, does not match and is left out.
#pragma once

#include <cstdint>

namespace iris {

// The kind of an event. Heaps of running jobs have these numbers: they do not change.
enum class TraceOp : uint16_t {
  kNone = 0,
  kUser = 1,  // a TraceSpan of a program
  kPut = 2,
  kGet = 3,
  kPutSignal = 4,
  kWait = 5,
  kBarrier = 6,
  kGridBarrier = 7,
  kCollective = 64,  // plus the ccl::Operation: one block's part of it
  kHost = 128,       // plus the TraceHostCall: a call of the host library
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
  kSpan = 8,  // a named span of the program's, kept in the process only
};
inline constexpr uint32_t kTraceHostCalls = 9;

inline constexpr uint16_t kNoTracePeer = 0xffff;

struct TraceEvent {
  uint64_t start_ns;  // by the device's clock, as all times here
  uint64_t end_ns;
  uint64_t bytes;  // collectives: elements
  // kUser: the tag; signals and waits: the value; barriers: the team; kLaunch: the operation;
  // kSpan: the number of its name; collectives: the first word of the PackedCall.
  uint64_t detail;
  // The three times are for collectives. A time beyond 32 bits (4.29 s) becomes the largest number.
  uint32_t first_ns;  // from the start until the first round was passed; 0: no round
  uint32_t last_ns;   // from the start until the last round began; 0: no such round
  uint32_t wait_ns;   // time that the first thread spent in these rounds, or waiting for packets
  uint32_t number;    // collectives: the number on the communicator; host: the thread
  uint16_t op;        // TraceOp
  uint16_t peer;      // world rank; kNoTracePeer
  uint16_t multiprocessor;
  uint16_t thread;  // of the block: the first one of those that made the call
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
  // Readers need both of these words.
  uint64_t until_ns;    // 0: off
  uint32_t generation;  // of the present trace, or of the last one
  uint32_t capacity;    // room, in events
  uint32_t rank;
  uint32_t reserved;
  int64_t pid;
  uint64_t reserved_before[10];
  uint64_t position;  // slots taken in this trace; a line of its own
  uint64_t reserved_behind[15];
};
static_assert(sizeof(TraceArea) == 256);

// A moment by the clock of a device and by the host's monotonic one, with an error of at most
// `error_ns`.
struct ClockSample {
  uint64_t device_ns;
  uint64_t host_ns;
  uint64_t error_ns;
};

constexpr uint64_t TraceAreaBytes(uint64_t n_events) {
  return sizeof(TraceArea) + n_events * sizeof(TraceEvent);
}

}  // namespace iris
