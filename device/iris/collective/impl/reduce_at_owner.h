// All-reduces in the heaps of the owners of rows: kAtomic and kSpinlock.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/reduce.h"
#include "iris/memory.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/protocol.h"
#include "iris/rounds/words.h"

namespace iris::ccl::impl {

// Performs *p = op(*p, value) atomically.
template <typename A>
IRIS_DEVICE inline void CombineAtomic(ReduceOp op, A* p, A value) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kRelaxed>(p, value);
    return;
  }
  using U = typename iris::impl::UnsignedOf<sizeof(A)>::Type;
  U* word = reinterpret_cast<U*>(p);
  U seen = backend::Load<Scope::kSystem, Order::kRelaxed>(word);
  for (;;) {
    const A old = iris::impl::BitCast<A>(seen);
    const A made = op == ReduceOp::kProd  ? Combine<ReduceOp::kProd, A>(old, value)
                   : op == ReduceOp::kMin ? Combine<ReduceOp::kMin, A>(old, value)
                                          : Combine<ReduceOp::kMax, A>(old, value);
    const U bits = iris::impl::BitCast<U>(made);
    if (bits == seen) return;
    const U now = backend::CompareExchange<Scope::kSystem, Order::kRelaxed>(word, seen, bits);
    if (now == seen) return;
    seen = now;
  }
}

// Does an all-reduce in the heaps of the owners: rank r keeps the sum of row r in its stage, in the
// accumulator's type; all add their parts, and fetch the result. Buffers may be anywhere. kLocked:
// one rank at a time, in order, under a lock of the block's row; else by atomics.
template <typename T, typename Op, bool kLocked>
IRIS_DEVICE inline void SumAtOwner(const Common& common, const ReduceCall& call, Rounds& rounds) {
  if (rounds.broken()) return;
  using A = typename Accumulator<T>::Type;
  const Op op(call);
  const uint32_t n = common.size;
  const uint32_t me = common.index;
  const uint64_t room = 2 * common.stage_bytes / sizeof(A);
  const uint64_t span = GridOf(common) * room;
  uint64_t turns = rounds.Turns();
  // Returns how many elements of a row, from j on, this block works on.
  const auto in_window = [&](uint32_t row, uint64_t j) {
    const uint64_t all = RowCount(call, row);
    return j < all ? Min(room, all - j) : 0;
  };
  const auto own = [&](uint32_t row, uint64_t i) {
    return iris::impl::LoadValue<CacheHint::kDefault>(reinterpret_cast<const T*>(call.in) +
                                                      row * call.count + i);
  };
  const auto sums = [&](uint32_t owner) { return reinterpret_cast<A*>(rounds.StageIn(owner)); };
  // Sets the sum of this rank's row to this rank's part.
  const auto seed = [&](uint64_t j) {
    const uint64_t count = in_window(me, j);
    for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
      iris::impl::StoreValue<CacheHint::kDefault>(sums(me) + i, static_cast<A>(own(me, j + i)));
    }
  };

  if (!kLocked) seed(BlockOf(common) * room);
  if (!rounds.Exchange(!kLocked)) return;
  for (uint64_t base = 0; base < call.count; base += span) {
    const uint64_t j = base + BlockOf(common) * room;
    if (base != 0) {
      if (!rounds.Meet()) return;  // all have fetched the sums in the stages
      if (!kLocked) {
        seed(j);
        if (!rounds.Meet()) return;
      }
    }
    for (uint32_t k = 0; k < n; ++k) {
      const uint32_t owner = kLocked ? k : rounds.Rotated(k);
      const uint64_t count = in_window(owner, j);
      if (!kLocked) {
        for (uint64_t i = backend::ThreadIndex(); k != 0 && i < count; i += backend::BlockSize()) {
          CombineAtomic<A>(call.op, sums(owner) + i, static_cast<A>(own(owner, j + i)));
        }
        continue;
      }
      if (backend::ThreadIndex() == 0) (void)rounds.AwaitTurn(owner, turns);
      iris::impl::SyncAfterConsume();
      if (!rounds.Settle()) return;
      for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
        Pack<T, 1> pack;
        pack.values[0] = own(owner, j + i);
        Sum<T, 1> sum = Begin(pack);
        if (me != 0) {
          sum.values[0] = iris::impl::LoadValue<CacheHint::kDefault>(sums(owner) + i);
          op.Add(&sum, pack);
        }
        iris::impl::StoreValue<CacheHint::kDefault>(sums(owner) + i, sum.values[0]);
      }
      iris::impl::SyncBeforePublish();
      if (backend::ThreadIndex() == 0) rounds.PassTurn(owner, turns);
    }
    turns += n;
    if (!rounds.Meet()) return;
    for (uint32_t k = 0; k < n; ++k) {
      const uint32_t owner = rounds.Rotated(k);
      const uint64_t count = in_window(owner, j);
      for (uint64_t i = backend::ThreadIndex(); i < count; i += backend::BlockSize()) {
        Sum<T, 1> sum;
        sum.values[0] = iris::impl::LoadValue<CacheHint::kDefault>(sums(owner) + i);
        iris::impl::StoreValue<CacheHint::kDefault>(
            reinterpret_cast<T*>(call.out) + owner * call.count + j + i, op.Finish(sum).values[0]);
      }
    }
  }
  rounds.MeetLast(false);
}

template <typename T, typename Op, bool kLocked>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceAtOwner(IRIS_PARAM Common common,
                                                                  IRIS_PARAM ReduceCall call) {
  IRIS_SHARED(SharedState, shared);
  Rounds rounds(common, &shared, BlockOf(common));
  SumAtOwner<T, Op, kLocked>(common, call, rounds);
  rounds.Conclude();
}

}  // namespace iris::ccl::impl
