// The heaps that a kernel works on: launchers of collectives ask whether a buffer is mapped, and
// the emulator what lies near a wrong access. Kernels on GPUs call nothing of it. C++17.
#pragma once

#include <cstdint>

namespace iris::backend {

// One range of a heap.
struct HeapRange {
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  // Not 0: memory of Iris itself, a team's barrier area, which no kernel uses by its own calls.
  uint32_t internal = 0;
  char name[132] = {};  // empty: it has none. Longer ones are cut
};

// The host library makes one for each context. It lives as long as the process, since kernels and
// graphs keep copies of the DeviceContext.
struct HeapMap {
  uint32_t struct_bytes = sizeof(HeapMap);
  uint32_t reserved = 0;
  // The process that made it, whose forked children do not have the heaps mapped. 0: any process.
  int64_t pid = 0;
  // The range of the heap of `rank` that has the byte at `offset_bytes`, or else the nearest one.
  // False if none is known. Any thread.
  bool (*nearest)(const HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                  HeapRange* out) = nullptr;
  // Returns false if not all of these bytes, of the heap of `rank` or of memory registered above
  // it, are known to be mapped. Null if nothing is known. Any thread of the host calls it.
  bool (*mapped)(const HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                 uint64_t bytes) = nullptr;
  // Returns false if no call may access these bytes of the heap of `rank`, by its known allocations
  // and by IRIS_CHECK_ACCESS. It then sets `why`, if not null, to a sentence without an end, cut to
  // `why_bytes`. Null if nothing is checked. Any thread calls it.
  bool (*allowed)(const HeapMap* map, uint32_t rank, uint64_t offset_bytes, uint64_t bytes,
                  char* why, uint64_t why_bytes) = nullptr;
};

// The heaps of one DeviceContext.
struct HeapView {
  uint32_t rank = 0;
  uint32_t n_ranks = 0;
  uint64_t base = 0;
  uint64_t stride_bytes = 0;
  const HeapMap* map = nullptr;  // null: nobody knows the allocations
};

// Describes a call of the device API whose arguments are wrong.
struct BadAccess {
  enum class Why : uint32_t {
    kPeer,        // there is no rank `peer`
    kTeamIndex,   // the team has no member `peer`
    kNotAMember,  // of the team whose barrier it called
    kAddress,     // not `bytes` bytes in the heap of rank `owner`
    kAllocation,  // HeapMap::allowed refuses it
    kAlignment,   // not a multiple of `alignment_bytes`
  };
  Why why = Why::kPeer;
  const char* call = "";
  uint32_t peer = 0;
  uint32_t owner = 0;      // in whose heap `address` should lie
  uint32_t team_size = 0;  // for kTeamIndex
  uint64_t address = 0;    // as the kernel gave it
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 0;
  HeapView heaps;
};

// Prints which kernel, what is wrong and what lies near it; ends the process. Emulator alone.
[[noreturn]] void RefuseAccess(const BadAccess& access);

}  // namespace iris::backend
