// A ring of slots in shared memory, through which warps of a block pass work to other warps of it:
// producers fill slots, consumers empty them. With it some warps of a kernel compute tiles while
// others send them to peers ("warp specialisation").
//
//   IRIS_SHARED(RingWords<4>[1], words);                     // 4 slots
//   IRIS_SHARED(float[4][kTile], tiles);                     // what is in them
//   InitRing(&words[0]);                                     // all threads of the block
//   const bool sends = backend::WarpIndex() >= kComputing;
//   Ring<4> ring(ctx, &words[0], /*producers=*/kComputing, /*consumers=*/1);
//   if (!sends) {                                            // each of these warps makes a part
//     Produce(ring, 0, n, 1, Warp{}, [&](uint64_t item, uint32_t slot) { ... tiles[slot] ... });
//   } else {                                                 // sender s takes every kSending-th
//     Consume(ring, s, n, kSending, Warp{}, [&](uint64_t item, uint32_t slot) {
//       StoreTileSignal(ctx, peer, ..., tiles[slot], ..., Warp{});
//     });
//   }
//
// Items are numbered from 0 and use the slots round robin: item i uses slot i mod kSlots. A slot is
// full once `producers` sets of threads have committed the item, and empty again once `consumers`
// sets have released it. So several warps may make one item together (producers = their number), or
// one of several may make each (producers = 1), and likewise for consumers. Every item is committed
// and released by that many sets; a set takes its items in ascending order.
//
// Waits are bounded by the timeout of the context and by its abort word. A set that fails, or that
// calls Cancel, ends the waits of all others with kAborted.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/impl/coop.h"
#include "iris/impl/mutation.h"
#include "iris/impl/wait.h"
#include "iris/types.h"

namespace iris {

// The state of the slots, in shared memory of the block. Counts only grow, and wrap.
template <uint32_t kSlots>
struct RingWords {
  static_assert(kSlots >= 1 && kSlots <= 64 && (kSlots & (kSlots - 1)) == 0,
                "a ring has 1 to 64 slots, a power of two");
  uint32_t full[kSlots];   // how often a set has committed the slot's item
  uint32_t empty[kSlots];  // how often a set has released it
  uint32_t cancelled;      // not 0: a set has given up
};

// Initializes the words of an empty ring, and syncs. All threads of the block call it.
template <uint32_t kSlots>
IRIS_DEVICE inline void InitRing(RingWords<kSlots>* words) {
  for (uint32_t i = backend::ThreadIndex(); i < kSlots; i += backend::BlockSize()) {
    words->full[i] = 0;
    words->empty[i] = 0;
  }
  if (backend::ThreadIndex() == 0) words->cancelled = 0;
  impl::SyncInsideBlock();
}

// A thread's own view of a ring. All threads of a set (Thread or Warp; a Block would wait for
// itself) make each call together, with the same arguments.
template <uint32_t kSlots>
class Ring {
 public:
  // `producers` sets commit each item, and `consumers` sets release it. Borrows both pointers.
  IRIS_DEVICE Ring(const DeviceContext& ctx, RingWords<kSlots>* words, uint32_t producers = 1,
                   uint32_t consumers = 1)
      : ctx_(ctx), words_(words), producers_(producers), consumers_(consumers) {}

  IRIS_HOST_DEVICE static constexpr uint32_t SlotOf(uint64_t item) {
    return static_cast<uint32_t>(item % kSlots);
  }

  // Waits until the item's slot is empty, so that it may be written.
  template <typename Coop>
  IRIS_DEVICE WaitResult ProducerAcquire(uint64_t item, Coop coop, uint64_t timeout_ns = 0) {
    return Await(&words_->empty[SlotOf(item)], RoundOf(item) * consumers_, coop, timeout_ns);
  }
  // Signals that this set has written its part of the item, and releases its writes.
  template <typename Coop>
  IRIS_DEVICE void ProducerCommit(uint64_t item, Coop coop) {
    Count(&words_->full[SlotOf(item)], coop);
  }

  // Waits until the item is complete in its slot, so that it may be read.
  template <typename Coop>
  IRIS_DEVICE WaitResult ConsumerWait(uint64_t item, Coop coop, uint64_t timeout_ns = 0) {
    return Await(&words_->full[SlotOf(item)], (RoundOf(item) + 1) * producers_, coop, timeout_ns);
  }
  // Signals that this set no longer reads the item.
  template <typename Coop>
  IRIS_DEVICE void ConsumerRelease(uint64_t item, Coop coop) {
    Count(&words_->empty[SlotOf(item)], coop);
  }

  // Ends all waits at this ring with kAborted, now and later. Any thread may call it.
  IRIS_DEVICE void Cancel() {
    backend::Store<Scope::kBlock, Order::kRelaxed>(&words_->cancelled, 1u);
  }

 private:
  IRIS_HOST_DEVICE static constexpr uint32_t RoundOf(uint64_t item) {
    return static_cast<uint32_t>(item / kSlots);
  }

  template <typename Coop>
  IRIS_DEVICE WaitResult Await(const uint32_t* word, uint32_t count, Coop coop,
                               uint64_t timeout_ns) {
    static_assert(!std::is_same_v<Coop, Block>, "a ring is between the warps of a block");
    WaitResult result = WaitResult::kOk;
    if (impl::CoopIndex(coop) == 0) {
      const uint32_t* const cancelled = &words_->cancelled;
      result = impl::BoundedWait(
          ctx_, timeout_ns,
          [word, count] {
            return impl::Reached<uint32_t>(backend::Load<Scope::kBlock, impl::kConsumeOrder>(word),
                                           count);
          },
          [cancelled] { return backend::Load<Scope::kBlock, Order::kRelaxed>(cancelled) != 0; });
      if (result != WaitResult::kOk) Cancel();
    }
    return static_cast<WaitResult>(impl::CoopBroadcast(coop, static_cast<uint32_t>(result)));
  }

  template <typename Coop>
  IRIS_DEVICE void Count(uint32_t* word, Coop coop) {
    static_assert(!std::is_same_v<Coop, Block>, "a ring is between the warps of a block");
    impl::CoopSyncBeforePublish(coop);
    if (impl::CoopIndex(coop) != 0) return;
    (void)backend::FetchOp<AtomicOp::kAdd, Scope::kBlock, impl::kPublishOrder>(word, 1u);
  }

  const DeviceContext& ctx_;
  RingWords<kSlots>* const words_;
  const uint32_t producers_;
  const uint32_t consumers_;
};

// Fills slots with the items first, first + step, ... below `end` by make(item, slot), until a wait
// fails.
template <uint32_t kSlots, typename Coop, typename Make>
IRIS_DEVICE inline WaitResult Produce(Ring<kSlots>& ring, uint64_t first, uint64_t end,
                                      uint64_t step, Coop coop, Make make) {
  for (uint64_t item = first; item < end; item += step) {
    const WaitResult result = ring.ProducerAcquire(item, coop);
    if (result != WaitResult::kOk) return result;
    make(item, ring.SlotOf(item));
    ring.ProducerCommit(item, coop);
  }
  return WaitResult::kOk;
}

// Empties slots, as a sender does, by take(item, slot), until a wait fails.
template <uint32_t kSlots, typename Coop, typename Take>
IRIS_DEVICE inline WaitResult Consume(Ring<kSlots>& ring, uint64_t first, uint64_t end,
                                      uint64_t step, Coop coop, Take take) {
  for (uint64_t item = first; item < end; item += step) {
    const WaitResult result = ring.ConsumerWait(item, coop);
    if (result != WaitResult::kOk) return result;
    take(item, ring.SlotOf(item));
    ring.ConsumerRelease(item, coop);
  }
  return WaitResult::kOk;
}

}  // namespace iris
