// The memory through which a rank, on its host and in its kernels, asks the port process of its
// node for transfers to ranks of other nodes, and gets the answers. C++17, trivially copyable.
//
// A rank has one PortMemory, which irisd creates and both processes map. It has two rings of
// requests: one for the host, one for kernels. All places are offsets in heaps, or in the area of
// values, never addresses.
//
// A requester takes the next numbers of a ring, writes the slots, `sequence` last, and wakes the
// port process if that sleeps. The port process carries out the requests to one rank in the order
// of their numbers, and writes a result for each. A slot is free again when `completed` has passed
// its number. Everything in the memory is hostile to the port process until it is checked.
#pragma once

#include <cstdint>
#include <type_traits>

namespace iris {

enum class PortOp : uint8_t {
  kPut = 1,     // `bytes` bytes from `src` here to `dst` in the heap of `to`; then the signal
  kGet = 2,     // `bytes` bytes from `src` in the heap of `to` to `dst` here
  kAtomic = 3,  // an atomic on the word at `dst` in the heap of `to`; the result is the old value
  // Like kPut and kGet, of rows: the next slot is a PortRows. `bytes` is the length of a row.
  kPutRows = 4,
  kGetRows = 5,
  // kOk once the port process has all of the `bytes` bytes from `dst` of the requesting rank, which
  // is `to`; else kOutOfRange. For memory that was registered just before.
  kCovers = 6,
};

// What PortRequest::src of a put, or dst of a get, counts from.
enum class PortSpace : uint8_t {
  kHeap = 0,    // the beginning of the requesting rank's heap
  kValues = 1,  // the beginning of PortMemory::values
  kInline = 2,  // kPut: up to 8 bytes, which are `src` itself
};

// Operations of kAtomic: those of iris::AtomicOp, and two more.
enum class PortAtomic : uint8_t {
  kAdd = 0,
  kSub = 1,
  kExchange = 2,
  kMin = 3,
  kMax = 4,
  kAnd = 5,
  kOr = 6,
  kXor = 7,
  kCompareExchange = 8,  // `value` is written if the word is `compare`; floats compare by bits
  kLoad = 9,
};

enum class PortType : uint8_t {
  kInt32 = 0,
  kUint32 = 1,
  kInt64 = 2,
  kUint64 = 3,
  kFloat = 4,
  kDouble = 5,
  kHalf = 6,      // kAdd alone
  kBfloat16 = 7,  // kAdd alone
};

inline constexpr uint64_t kNoPortSignal = ~0ull;

struct PortRequest {
  PortOp op;
  PortSpace space;      // of `src` of a put, or `dst` of a get
  PortAtomic atomic;    // of kAtomic
  PortType type;        // of kAtomic
  uint8_t signal_op;    // SignalOp
  uint8_t reserved[3];  // zero
  uint32_t to;          // world rank, on another node
  uint32_t flags;       // zero
  uint64_t dst;         // offset in bytes
  uint64_t src;         // offset in bytes; of kAtomic: `compare`
  uint64_t bytes;       // of kAtomic: `value`, in its lowest bytes
  uint64_t signal;      // offset in the heap of `to`, a multiple of 8; or kNoPortSignal
  uint64_t signal_value;
  uint64_t sequence;  // 1 + the number, written last, with release order
};
static_assert(sizeof(PortRequest) == 64);

// The second slot of kPutRows and kGetRows. Strides are in bytes, at least the length of a row.
struct PortRows {
  uint64_t rows;
  uint64_t dst_stride;
  uint64_t src_stride;
  uint64_t reserved[4];
  uint64_t sequence;  // as of every slot
};
static_assert(sizeof(PortRows) == sizeof(PortRequest));

// The result of the request in the slot of the same index.
struct PortResult {
  uint64_t value;  // of kAtomic, in its lowest bytes
  // (1 + the number) << 8 | StatusCode, written last, with release order, once the request is
  // complete: a put is in the other heap with its signal, a get is in this one.
  uint64_t done;
};

// Words that the port process writes.
struct PortRingWords {
  uint64_t completed;  // how many requests are complete or have failed, in order of their numbers
  uint64_t read;       // how many requests' sources may be overwritten, in order likewise
  uint64_t failed;     // how many have failed
  uint64_t first_failed;  // PortResult::done of the first one
  uint32_t stopped;       // not 0: a StatusCode; the port process takes no more requests
  uint32_t events;        // grows when any of these words or a result has changed
  uint32_t reserved[6];
};
static_assert(sizeof(PortRingWords) == 64);

inline constexpr uint32_t kPortSlots = 1024;  // of each ring, a power of two
inline constexpr uint32_t kPortRings = 2;
inline constexpr uint32_t kPortHostRing = 0;
inline constexpr uint32_t kPortKernelRing = 1;
// PortMemory::values: a part for requests of the host, then stages, each of which a kernel claims
// for a while (impl/port.h).
inline constexpr uint64_t kPortHostValueBytes = 1 << 20;
inline constexpr uint32_t kPortStages = 4;
inline constexpr uint64_t kPortStageBytes = 256 << 10;
inline constexpr uint64_t kPortValueBytes = kPortHostValueBytes + kPortStages * kPortStageBytes;
inline constexpr uint32_t kPortMagic = 0x54524F50;  // "PORT"
inline constexpr uint32_t kPortVersion = 2;

struct PortRing {
  PortRequest slots[kPortSlots];
  PortResult results[kPortSlots];
};

struct PortMemory {
  uint32_t magic;  // kPortMagic and kPortVersion, written by irisd
  uint32_t version;
  uint32_t rank;
  // Not 0: the port process sleeps, and whoever writes a request sets it to 0 and adds 1 to the
  // eventfd that comes with this memory. Sequentially consistent on both sides: the sleeper sets
  // it, then looks for requests; the requester writes `sequence`, then looks at it.
  uint32_t asleep;
  // Not 0: a thread of the rank's host waits by futex(2) for a change of words[ring].events. It
  // sets this first, then reads `events`, then looks at what it waits for, then waits. The port
  // process sets it to 0 and wakes all waiters. Sequentially consistent likewise.
  uint32_t waiting[2];
  uint32_t reserved[10];
  PortRingWords words[kPortRings];
  // Places taken on the ring of the host. Those of the ring of kernels are counted in memory of the
  // device.
  uint64_t host_posted;
  uint8_t padding[4096 - 64 - 64 * kPortRings - 8];
  PortRing rings[kPortRings];
  uint8_t values[kPortValueBytes];  // for puts from, and gets to, memory outside the heap
};
static_assert(std::is_trivially_copyable_v<PortMemory> && std::is_standard_layout_v<PortMemory>);
static_assert(sizeof(PortMemory) == 4096 + kPortRings * 80 * kPortSlots + kPortValueBytes);
static_assert(sizeof(PortMemory) % 4096 == 0);

// A kernel's view of its ring. In memory that kernels read. The number of places taken is in the
// SyncArea of the world, in the memory of the device.
struct DevicePort {
  PortRequest* slots = nullptr;
  PortResult* results = nullptr;
  const PortRingWords* words = nullptr;
  uint32_t* asleep = nullptr;  // PortMemory::asleep; kernels of the emulator alone use it
  int32_t wake_fd = -1;        // the eventfd; likewise
  uint32_t reserved = 0;
  uint8_t* stages = nullptr;  // PortMemory::values + kPortHostValueBytes
};
static_assert(std::is_trivially_copyable_v<DevicePort>);

// The failed copies of a rank's streams (iris/nodes/copies.h): host memory that kernels write.
struct PortFailures {
  uint64_t count = 0;
  // Of the first one, written before `count`: StatusCode | 1 << 8 if it is a put | rank << 16.
  uint64_t first = 0;
};

}  // namespace iris
