// Body of barrier.h, which the collectives share: they have slots of their own.
#pragma once

#include <cstdint>

#include "device/backend/select.h"
#include "device/iris/context.h"
#include "device/iris/impl/mutation.h"
#include "device/iris/impl/wait.h"
#include "device/iris/types.h"

namespace iris::impl {

// One slot, at the same offset in every member's heap.
struct BarrierArea {
  uint64_t slot_offset_bytes;
  uint32_t size;   // members
  uint32_t index;  // of this rank
  const uint8_t* members;
};

// Every call uses up one epoch on each member, whether it succeeds or not, so that calls stay
// paired.
//
// Order: the writes of all threads -> SyncBeforePublish -> thread p stores the epoch into member
// p's inbox (release)
// -> member p's thread polls it (acquire) -> SyncAfterConsume -> the reads of all threads of member
// p. The own epoch is read by all between the two syncs and written by thread 0 behind the second:
// the next call's first sync separates that write from the next reads. A failure is recorded under
// its epoch, so that nothing has to be cleared.
IRIS_DEVICE inline WaitResult BlockBarrierBehindSync(const DeviceContext& ctx,
                                                     const BarrierArea& area, SyncArea::Slot* mine,
                                                     uint32_t epoch, uint64_t timeout_ns,
                                                     uint32_t* missing) {
  const uint32_t n_threads = backend::BlockSize();
  for (uint32_t p = backend::ThreadIndex(); p < area.size; p += n_threads) {
    SyncArea::Slot* theirs = AtOffset<SyncArea::Slot>(ctx, area.members[p], area.slot_offset_bytes);
    backend::Store<Scope::kSystem, kPublishOrder>(&theirs->inbox[area.index], epoch);
  }
  for (uint32_t p = backend::ThreadIndex(); p < area.size; p += n_threads) {
    const uint32_t* word = &mine->inbox[p];
    const WaitResult result = BoundedWait(ctx, timeout_ns, [word, epoch] {
      return Reached<uint32_t>(backend::Load<Scope::kSystem, kConsumeOrder>(word), epoch);
    });
    if (result != WaitResult::kOk) {
      const uint64_t failure =
          static_cast<uint64_t>(epoch) << 32 | p << 8 | static_cast<uint32_t>(result);
      backend::Store<Scope::kBlock, Order::kRelaxed>(&mine->failure, failure);
      break;  // the call has failed: do not wait another full time for the next member
    }
  }
  SyncAfterConsume();
  const uint64_t failure = backend::Load<Scope::kBlock, Order::kRelaxed>(&mine->failure);
  if (backend::ThreadIndex() == 0) backend::StorePlain(&mine->epoch, epoch);
  const uint32_t result = static_cast<uint32_t>(failure) & 0xff;
  if (result == 0 || static_cast<uint32_t>(failure >> 32) != epoch) return WaitResult::kOk;
  if (missing != nullptr) *missing = static_cast<uint32_t>(failure) >> 8;
  return static_cast<WaitResult>(result);
}

// One call of iris::Barrier: the epoch comes from the slot.
IRIS_DEVICE inline WaitResult BlockBarrier(const DeviceContext& ctx, const BarrierArea& area,
                                           uint64_t timeout_ns, uint32_t* missing) {
  SyncArea::Slot* mine = AtOffset<SyncArea::Slot>(ctx, ctx.rank, area.slot_offset_bytes);
  SyncBeforePublish();
  const uint32_t epoch = backend::LoadPlain(&mine->epoch) + 1;
  return BlockBarrierBehindSync(ctx, area, mine, epoch, timeout_ns, missing);
}

// The same for a caller that keeps the epoch in a register: `epoch` is one more than that of its
// last call.
IRIS_DEVICE inline WaitResult BlockBarrierAt(const DeviceContext& ctx, const BarrierArea& area,
                                             uint32_t epoch, uint64_t timeout_ns,
                                             uint32_t* missing) {
  SyncArea::Slot* mine = AtOffset<SyncArea::Slot>(ctx, ctx.rank, area.slot_offset_bytes);
  SyncBeforePublish();
  return BlockBarrierBehindSync(ctx, area, mine, epoch, timeout_ns, missing);
}

}  // namespace iris::impl
