// The barrier of a team: one block of each rank takes part. docs/memory_model.md has the proof.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/impl/barrier.h"
#include "iris/impl/check.h"
#include "iris/impl/coop.h"
#include "iris/impl/mutation.h"
#include "iris/impl/trace.h"
#include "iris/translate.h"
#include "iris/types.h"

namespace iris {

// Waits until the block of the same index has called Barrier on every rank of `team`. All threads
// of the block call it and get the same answer. On kOk, everything that those blocks wrote before,
// in any heap, is visible to this block.
//
// The team may have ranks of several nodes, and then any number of them. All puts that kernels of
// this rank have posted to other nodes before have then arrived, too.
//
// Blocks of different index are not ordered: only blocks of the same index can share data. All
// ranks launch the same number of blocks, at most SyncArea::kMaxBlocks. Two kernels that run at the
// same time on one rank must not use the same team.
//
// On kTimeout or kAborted, `*missing`, if given, is the index in the team of a rank that did not
// come. This rank has arrived nevertheless, and its next call belongs to the next round.
IRIS_DEVICE inline WaitResult Barrier(const DeviceContext& ctx, const DeviceTeam& team,
                                      uint64_t timeout_ns = 0, uint32_t* missing = nullptr) {
  impl::CheckMembership(ctx, team);
  const impl::SpanOf<Block> span(ctx, TraceOp::kBarrier, kNoTracePeer, 0, team.id, Block{});
  const uint64_t offset_bytes = impl::BarrierSlotOffset(team);
  // All threads read the word before the first sync of a call, thread 0 writes it between the two.
  uint32_t* const mine = &AtOffset<SyncArea::Slot>(ctx, ctx.rank, offset_bytes)->epoch;
  const uint32_t epoch = backend::LoadPlain(mine);
  const uint32_t first_rank = impl::FirstMemberRank(team);
  impl::SyncBeforePublish();
  return impl::MeetMembers(ctx, team, offset_bytes, epoch + 1, timeout_ns, missing, first_rank,
                           mine);
}

// Waits until all blocks of this rank's grid have called GridBarrier. All threads call it and get
// the same answer. On kOk, everything that the grid wrote before is visible to all blocks.
//
// All blocks of the launch must be on the device at once; emulated devices have room for any
// number. Two kernels that run at the same time on one rank must not both call GridBarrier. After
// kTimeout or kAborted this block no longer counts as arrived, and the kernel should end.
IRIS_DEVICE inline WaitResult GridBarrier(const DeviceContext& ctx, uint64_t timeout_ns = 0) {
  const impl::SpanOf<Block> span(ctx, TraceOp::kGridBarrier, kNoTracePeer, 0, ctx.world.id,
                                 Block{});
  return impl::MeetGrid(ctx, ctx.world, timeout_ns);
}

// Does GridBarrier and Barrier: waits until all blocks of the grids of all ranks of `team`, which
// may differ in number, have called this function. On kOk, everything that they wrote before, in
// any heap, is visible to all. After a failure all blocks of this rank get kTimeout or kAborted.
// `*missing` is only set on the first block, and not if a block of this rank's own grid is missing.
IRIS_DEVICE inline WaitResult GridBarrier(const DeviceContext& ctx, const DeviceTeam& team,
                                          uint64_t timeout_ns = 0, uint32_t* missing = nullptr) {
  const impl::SpanOf<Block> span(ctx, TraceOp::kGridBarrier, kNoTracePeer, 0, team.id, Block{});
  WaitResult result = impl::MeetGrid(ctx, team, timeout_ns);
  if (result != WaitResult::kOk) return result;
  uint32_t* const met = &AtOffset<SyncArea::Slot>(ctx, ctx.rank, team.sync_offset_bytes)->met;
  if (backend::BlockIndex() == 0) {
    result = Barrier(ctx, team, timeout_ns, missing);
    if (backend::ThreadIndex() == 0) {
      backend::Store<Scope::kDevice, Order::kRelaxed>(met, static_cast<uint32_t>(result));
    }
  }
  // The grid waits for its first block longer than that block waits for the other ranks.
  const uint64_t longer_ns = 2 * impl::TimeoutOf(ctx, timeout_ns);
  const WaitResult again = impl::MeetGrid(ctx, team, longer_ns);
  if (again != WaitResult::kOk) return again;
  return static_cast<WaitResult>(backend::Load<Scope::kDevice, Order::kRelaxed>(met));
}

// A series of barriers in one kernel, faster than Barrier: the block keeps the epoch in a register.
// All threads of the block construct and destroy it together, and call no other barrier of that
// team meanwhile. Borrows both arguments.
//
//   BarrierSeries barriers(ctx, ctx.world);
//   for (...) {
//     ...
//     if (barriers.Wait() != WaitResult::kOk) break;
//   }
class BarrierSeries {
 public:
  IRIS_DEVICE BarrierSeries(const DeviceContext& ctx, const DeviceTeam& team)
      : ctx_(ctx),
        team_(team),
        offset_bytes_(impl::BarrierSlotOffset(team)),
        first_rank_(impl::FirstMemberRank(team)) {
    impl::CheckMembership(ctx, team);
    first_epoch_ = epoch_ = backend::LoadPlain(Epoch());
  }
  // Wait has synced all reads of the epoch; the next barrier or series reads it at once.
  IRIS_DEVICE ~BarrierSeries() {
    if (epoch_ == first_epoch_) return;
    if (backend::ThreadIndex() == 0) backend::StorePlain(Epoch(), epoch_);
    impl::SyncInsideBlock();
  }
  BarrierSeries(const BarrierSeries&) = delete;
  BarrierSeries& operator=(const BarrierSeries&) = delete;

  // Waits as Barrier does.
  IRIS_DEVICE WaitResult Wait(uint64_t timeout_ns = 0, uint32_t* missing = nullptr) {
    const impl::SpanOf<Block> span(ctx_, TraceOp::kBarrier, kNoTracePeer, 0, team_.id, Block{});
    impl::SyncBeforePublish();
    return impl::MeetMembers(ctx_, team_, offset_bytes_, ++epoch_, timeout_ns, missing, first_rank_,
                             nullptr);
  }

 private:
  IRIS_DEVICE uint32_t* Epoch() const {
    return &AtOffset<SyncArea::Slot>(ctx_, ctx_.rank, offset_bytes_)->epoch;
  }

  const DeviceContext& ctx_;
  const DeviceTeam& team_;
  const uint64_t offset_bytes_;
  const uint32_t first_rank_;
  uint32_t first_epoch_;
  uint32_t epoch_;
};

}  // namespace iris
