// The heaps that a kernel uses. Launchers of collectives check whether a buffer is mapped, and the
// emulator describes the memory near a wrong access. Kernels on GPUs do not use this file. C++17.
#pragma once

#include <cstdint>

namespace iris::backend {

// One range of a heap.
struct HeapRange {
  uint64_t offset_bytes = 0;
  uint64_t bytes = 0;
  // Nonzero for memory of Iris itself, a team's barrier area, which kernels do not access directly.
  uint32_t internal = 0;
  char name[132] = {};  // empty: the range has no name. Longer names are truncated
};

// A description of a context's heaps, made by the host library. It lives as long as the process,
// because kernels and graphs keep copies of the DeviceContext. It counts ranks from the first one
// of this node.
struct HeapMap {
  uint32_t struct_bytes = sizeof(HeapMap);
  uint32_t reserved = 0;
  // The process that made the map; forked children do not have the heaps mapped. 0: any process.
  int64_t pid = 0;
  // Finds the range of the heap of `rank` that contains the byte at `offset_bytes`, otherwise the
  // nearest one. Returns false if no range is known. Any thread calls it.
  bool (*nearest)(const HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                  HeapRange* out) = nullptr;
  // Returns true if all of these bytes of the heap of `rank`, or of memory registered above that
  // heap, are known to be mapped. Null if nothing is known. Any host thread calls it.
  bool (*mapped)(const HeapMap* map, uint32_t rank, uint64_t offset_bytes,
                 uint64_t bytes) = nullptr;
  // Returns false if no call may access these bytes of the heap of `rank`, by its known allocations
  // and by IRIS_CHECK_ACCESS. It then sets `why`, if not null, to a sentence without a full stop,
  // truncated to `why_bytes`. Null if nothing is checked. Any thread calls it.
  bool (*allowed)(const HeapMap* map, uint32_t rank, uint64_t offset_bytes, uint64_t bytes,
                  char* why, uint64_t why_bytes) = nullptr;
};

// The heaps of one DeviceContext.
struct HeapView {
  uint32_t rank = 0;
  uint32_t n_ranks = 0;
  uint64_t base = 0;
  uint64_t stride_bytes = 0;
  const HeapMap* map = nullptr;  // null: the allocations are not known
  // The ranks whose heaps are mapped, as in DeviceContext.
  uint32_t first_mapped = 0;
  uint32_t n_mapped = 0;
};

// Describes a call of the device API whose arguments are wrong.
struct BadAccess {
  enum class Why : uint32_t {
    kPeer,         // there is no rank `peer`
    kTeamIndex,    // the team has no member `peer`
    kNotAMember,   // the rank is not in the team whose barrier it called
    kAddress,      // the `bytes` bytes are not all in the heap of rank `owner`
    kAllocation,   // HeapMap::allowed refuses it
    kAlignment,    // the address is no multiple of `alignment_bytes`
    kOtherNode,    // `peer` is on another node, and the call needs its memory mapped
    kOutsideHeap,  // `peer` is on another node, and the local side of the call is not in the heap
    kTeamOfNodes,  // the call needs a team whose ranks are all on this node
  };
  Why why = Why::kPeer;
  const char* call = "";
  uint32_t peer = 0;
  uint32_t owner = 0;      // the rank whose heap should contain `address`
  uint32_t team_size = 0;  // for kTeamIndex
  uint64_t address = 0;    // as the kernel gave it
  uint64_t bytes = 0;
  uint64_t alignment_bytes = 0;
  HeapView heaps;
};

// Prints the kernel, the error and the memory near the address; ends the process. Emulator only.
[[noreturn]] void RefuseAccess(const BadAccess& access);

}  // namespace iris::backend
