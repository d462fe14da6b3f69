// How a workspace is laid out: one region per block, so that the blocks of a kernel never wait for
// each other.
//
//   slot     the barrier of this block (impl/barrier.h): inbox of epochs, own epoch
//   notes    [2][members]: what each member is calling, and where its buffers are; by the parity of
//   the epoch inbox    [2][members][one_shot_chunk_bytes]: data pushed by one-shot, likewise stage
//   in[stage_bytes], out[stage_bytes]: for buffers that are not in the heap
#pragma once

#include <cstdint>

#include "device/backend/select.h"
#include "device/collective/collective.h"

namespace iris::ccl::impl {

inline constexpr uint64_t kNotInHeap = ~0ull;

// What one member tells each other at the start of an operation.
struct Note {
  uint64_t in_offset_bytes;   // in its heap, or kNotInHeap
  uint64_t out_offset_bytes;  // likewise
  uint64_t count;
  uint64_t signature;  // operation, variant, type, op, root, grid
};

IRIS_HOST_DEVICE constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

IRIS_HOST_DEVICE constexpr uint64_t NotesOffset() { return sizeof(SyncArea::Slot); }

IRIS_HOST_DEVICE constexpr uint64_t InboxOffset(uint32_t n_members) {
  return RoundUp(NotesOffset() + 2 * n_members * sizeof(Note), kWorkspaceAlignmentBytes);
}

IRIS_HOST_DEVICE constexpr uint64_t StageOffset(uint32_t n_members, const Config& config) {
  return InboxOffset(n_members) +
         RoundUp(2 * n_members * config.one_shot_chunk_bytes, kWorkspaceAlignmentBytes);
}

IRIS_HOST_DEVICE constexpr uint64_t BlockRegionBytes(uint32_t n_members, const Config& config) {
  return RoundUp(StageOffset(n_members, config) + 2 * config.stage_bytes, kWorkspaceAlignmentBytes);
}

// One launch of one operation: the argument of its kernel.
struct Call {
  DeviceContext context;
  DeviceTeam team;
  uint64_t workspace_offset_bytes;
  uint64_t* error_word;
  Config config;
  Operation operation;
  uint32_t root_index;
  const uint8_t* in;
  uint8_t* out;
  uint64_t count;       // elements, or bytes for operations that only move
  uint64_t part_count;  // of each block but the last
  Note note;            // of this member
};

// The error word: code | operation << 8 | (member + 1) << 16. 0: no error.
IRIS_HOST_DEVICE constexpr uint64_t PackError(ErrorCode code, Operation operation,
                                              uint32_t member) {
  return static_cast<uint64_t>(code) | static_cast<uint64_t>(operation) << 8 |
         (static_cast<uint64_t>(member) + 1) << 16;
}

}  // namespace iris::ccl::impl
