// A barrier of ranks in two halves: arrive at a slot, do independent work, wait.
//
//   const BarrierToken token = BarrierArrive(ctx, ctx.world, /*slot=*/0, Block{});
//   ... work that reads nothing of what the others wrote ...
//   if (BarrierWait(ctx, ctx.world, token, Block{}) != WaitResult::kOk) return;
//
// A team has SyncArea::kMaxBlocks slots. Block i of Barrier (barrier.h) uses slot i; both kinds of
// calls may alternate at a slot. Slots are independent: a block may have arrived at several, and
// wait in any order, so that warps of one block can meet those of other ranks at their own slots
// (Warp{}).
//
// On every rank, one set of threads at a time uses a slot: a thread, a warp or a block. It
// alternately arrives and waits, and all ranks arrive equally often, with sets of any kind. A wait
// may be left out, as after a BarrierTest that returned true, if the set syncs otherwise before its
// next arrival there.
//
// The ranks of the team must all be on this node.
//
// Everything that the set wrote before it arrived, in any heap, is visible to the other ranks' sets
// after their wait. Later writes may become visible at any time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/impl/barrier.h"
#include "iris/impl/check.h"
#include "iris/impl/coop.h"
#include "iris/impl/mutation.h"
#include "iris/impl/trace.h"
#include "iris/impl/wait.h"
#include "iris/translate.h"
#include "iris/types.h"

namespace iris {

// An arrival, for which BarrierWait waits. A plain value, the same in all threads of the set.
struct BarrierToken {
  uint32_t slot = 0;
  uint32_t epoch = 0;
};

namespace impl {

// Encodes a rank that did not come: its index times kWaitResults, plus the WaitResult.
inline constexpr uint32_t kWaitResults = 4;
inline constexpr uint32_t kNoFailure = ~0u;

IRIS_DEVICE inline SyncArea::Slot* SlotOfRank(const DeviceContext& ctx, const DeviceTeam& team,
                                              uint32_t rank, uint32_t slot) {
  return AtOffset<SyncArea::Slot>(ctx, rank,
                                  team.sync_offset_bytes + slot * sizeof(SyncArea::Slot));
}

// Returns the least `failure` of a set's threads (kNoFailure if a thread saw all ranks come) to all
// of them. Orders what each thread has acquired before what all of them do after it.
IRIS_DEVICE inline uint32_t LeastFailure(Thread, uint32_t failure) { return failure; }

// In a short warp, lane 0 gets the values of all others: a lane without a partner keeps its own.
IRIS_DEVICE inline uint32_t LeastFailure(Warp, uint32_t failure) {
  const uint32_t n = CoopSize(Warp{});
  for (uint32_t delta = 1; delta < backend::WarpSize(); delta *= 2) {
    const uint32_t lane = backend::LaneIndex() ^ delta;
    const uint32_t other = backend::Shuffle(failure, lane < n ? lane : backend::LaneIndex());
    if (other < failure) failure = other;
  }
  failure = backend::Shuffle(failure, 0);
  SyncWarp();
  return failure;
}

IRIS_DEVICE inline void CheckSlot(uint32_t slot) {
  if (slot >= SyncArea::kMaxBlocks) {
    backend::Trap("iris::BarrierArrive: the slot is not below SyncArea::kMaxBlocks");
  }
}

// Waits in the calling thread for its share of the ranks. Returns a missing one, or kNoFailure.
template <typename Coop>
IRIS_DEVICE inline uint32_t AwaitArrivals(const DeviceContext& ctx, const DeviceTeam& team,
                                          const BarrierToken& token, Coop coop,
                                          uint64_t timeout_ns) {
  const SyncArea::Slot* mine = SlotOfRank(ctx, team, ctx.rank, token.slot);
  const uint32_t n = CoopSize(coop);
  for (uint32_t p = CoopIndex(coop); p < team.size; p += n) {
    const uint32_t* word = &mine->inbox[p];
    const uint32_t epoch = token.epoch;
    const WaitResult result = BoundedWait(ctx, timeout_ns, [word, epoch] {
      return Reached<uint32_t>(backend::Load<Scope::kSystem, kConsumeOrder>(word), epoch);
    });
    // After a failure, do not wait another full time for the next rank.
    if (result != WaitResult::kOk) return p * kWaitResults + static_cast<uint32_t>(result);
  }
  return kNoFailure;
}

// Waits by a block, with two syncs. One word has the epoch of a failure, because reading each
// thread's result takes longer than a sync. The word may match by chance, so the results decide.
IRIS_DEVICE inline uint32_t AwaitArrivalsOfBlock(const DeviceContext& ctx, const DeviceTeam& team,
                                                 const BarrierToken& token, uint64_t timeout_ns) {
  IRIS_SHARED(uint32_t[kMaxTeamRanks], failures);
  IRIS_SHARED(uint32_t[1], failed_epoch);
  uint32_t failure = AwaitArrivals(ctx, team, token, Block{}, timeout_ns);
  const uint32_t waiting = CoopSize(Block{}) < team.size ? CoopSize(Block{}) : team.size;
  if (backend::ThreadIndex() < waiting) failures[backend::ThreadIndex()] = failure;
  if (failure != kNoFailure)
    backend::Store<Scope::kBlock, Order::kRelaxed>(failed_epoch, token.epoch);
  SyncAfterConsume();
  failure = kNoFailure;
  if (backend::Load<Scope::kBlock, Order::kRelaxed>(failed_epoch) == token.epoch) {
    for (uint32_t i = 0; i < waiting; ++i) {
      if (failures[i] < failure) failure = failures[i];
    }
  }
  SyncInsideBlock();  // the next wait, perhaps for another slot, writes them again
  return failure;
}

}  // namespace impl

// Signals to all ranks of `team` that this set has arrived at `slot`, below SyncArea::kMaxBlocks,
// and does not wait. All threads of `coop` call it with the same arguments. Releases their writes.
template <typename Coop, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline BarrierToken BarrierArrive(const DeviceContext& ctx, const DeviceTeam& team,
                                              uint32_t slot, Coop coop) {
  impl::CheckMembership(ctx, team);
  impl::CheckOneNode(ctx, team, "BarrierArrive");
  impl::CheckSlot(slot);
  uint32_t* const mine = &impl::SlotOfRank(ctx, team, ctx.rank, slot)->epoch;
  // All threads read the word before the sync, and the first one writes it after that.
  const uint32_t epoch = backend::LoadPlain(mine) + 1;
  impl::CoopSyncBeforePublish(coop);
  const uint32_t n = impl::CoopSize(coop);
  for (uint32_t p = impl::CoopIndex(coop); p < team.size; p += n) {
    SyncArea::Slot* theirs = impl::SlotOfRank(ctx, team, MemberRank(team, p), slot);
    backend::Store<Scope::kSystem, impl::kPublishOrder>(&theirs->inbox[team.index], epoch);
  }
  if (impl::CoopIndex(coop) == 0) backend::StorePlain(mine, epoch);
  return {slot, epoch};
}

// Waits until all ranks have made the arrival of `token`. All threads of `coop`, the set that has
// arrived, call it and get the same answer. On kTimeout or kAborted, `*missing`, if given, is the
// index of a missing rank. The wait may be repeated; the next arrival belongs to the next round.
template <typename Coop, typename = impl::IfCoop<Coop>>
IRIS_DEVICE inline WaitResult BarrierWait(const DeviceContext& ctx, const DeviceTeam& team,
                                          const BarrierToken& token, Coop coop,
                                          uint64_t timeout_ns = 0, uint32_t* missing = nullptr) {
  const impl::SpanOf<Coop> span(ctx, TraceOp::kBarrier, kNoTracePeer, 0, team.id, coop);
  uint32_t failure = impl::kNoFailure;
  if constexpr (std::is_same_v<Coop, Block>) {
    failure = impl::AwaitArrivalsOfBlock(ctx, team, token, timeout_ns);
  } else {
    failure = impl::LeastFailure(coop, impl::AwaitArrivals(ctx, team, token, coop, timeout_ns));
  }
  if (failure == impl::kNoFailure) return WaitResult::kOk;
  if (missing != nullptr) *missing = failure / impl::kWaitResults;
  return static_cast<WaitResult>(failure % impl::kWaitResults);
}

// Returns true if all ranks have made the arrival of `token`. Only the calling thread acquires.
IRIS_DEVICE inline bool BarrierTest(const DeviceContext& ctx, const DeviceTeam& team,
                                    const BarrierToken& token) {
  const SyncArea::Slot* mine = impl::SlotOfRank(ctx, team, ctx.rank, token.slot);
  for (uint32_t p = 0; p < team.size; ++p) {
    if (!impl::Reached<uint32_t>(
            backend::Load<Scope::kSystem, impl::kConsumeOrder>(&mine->inbox[p]), token.epoch)) {
      return false;
    }
  }
  return true;
}

}  // namespace iris
