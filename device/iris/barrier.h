// The barrier of a team, made by one block of each member. docs/memory_model.md has the proof.
#pragma once

#include <cstdint>

#include "device/backend/select.h"
#include "device/iris/impl/barrier.h"
#include "device/iris/types.h"

namespace iris {

// Waits until the block of the same index has called it on every member of `team`. All threads of
// the block call it and get the same answer. On kOk, everything that those blocks wrote before
// their call, in any heap, is visible to this block.
//
// Blocks of different index do not wait for each other, and are ordered by nothing: a kernel whose
// blocks share data between ranks lets the block that wrote it and the block that reads it have the
// same index. All members launch the same number of blocks, at most SyncArea::kMaxBlocks. Two
// kernels that run at the same time on one rank must not use the same team.
//
// kTimeout, kAborted: `*missing`, if given, is the index in the team of a member that had not come.
// The call still counts as made: this rank has arrived, members that come later do not wait for it,
// and the next call belongs to the next round.
IRIS_DEVICE inline WaitResult Barrier(const DeviceContext& ctx, const DeviceTeam& team,
                                      uint64_t timeout_ns = 0, uint32_t* missing = nullptr) {
  const uint32_t block = backend::BlockIndex();
  if (block >= SyncArea::kMaxBlocks) {
    backend::Trap("iris::Barrier: more blocks than SyncArea::kMaxBlocks");
  }
  const impl::BarrierArea area = {team.sync_offset_bytes + block * sizeof(SyncArea::Slot),
                                  team.size, team.index, team.members};
  return impl::BlockBarrier(ctx, area, timeout_ns, missing);
}

}  // namespace iris
