// kPackets: each 8 bytes travel with two flags. N: number of ranks (2, 4, 8), or 0 for any number.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/patterns.h"
#include "iris/collective/impl/reduce.h"
#include "iris/memory.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/protocol.h"
#include "iris/rounds/words.h"

namespace iris::ccl::impl {

// Sends this rank's rows as packets, and reduces the received rows in the order of the ranks.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceByPackets(const Common& common, const ReduceCall& call,
                                        Rounds& rounds) {
  if (rounds.broken()) return;
  const Op op(call);
  const uint32_t n = N == 0 ? common.size : N;
  const uint32_t me = common.index;
  const uint64_t capacity = common.packet_bytes / 8;
  const uint64_t row_bytes = call.count * sizeof(T);
  const uint64_t words = (row_bytes + 7) / 8;
  const uint64_t per_block = (words + GridOf(common) - 1) / GridOf(common);
  const uint64_t begin = Min(words, BlockOf(common) * per_block);
  const uint64_t end = Min(words, begin + per_block);
  const bool gets =
      call.target == ReduceCall::kAll || call.target == ReduceCall::kSelf || call.target == me;
  // A round of packets shows that all ranks have come only if every rank receives rows. With a
  // root, the other ranks receive none, so the calls are exchanged too.
  const bool calls = common.check != 0 || call.target < n;

  for (uint64_t base = begin; base < end; base += capacity) {
    const uint64_t count = Min(capacity, end - base);
    rounds.Advance();
    for (uint64_t w = backend::ThreadIndex(); w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      const uint64_t left = row_bytes - at;
      uint64_t word = LoadWord<T>(call.in + at, left);
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < n; ++k) {
        const uint32_t peer = rounds.Rotated(k);
        if (call.target < n && peer != call.target) continue;
        if (call.rows != 1) word = LoadWord<T>(call.in + peer * row_bytes + at, left);
        backend::Store16<CacheHint::kVolatile>(rounds.Inbox(peer, me) + w, rounds.Packet(word));
      }
    }
    // All have read the epoch, shared words are clear, and the last round's packets have been read.
    iris::impl::SyncInsideBlock();
    // Compare the calls before the wait: a rank with another call never sends these packets.
    if (calls) {
      rounds.SendCalls(false);
      if (!rounds.ReceiveCalls()) return;
    }
    for (uint64_t w = backend::ThreadIndex(); gets && w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      const uint64_t left = row_bytes - at;
      const uint64_t own = LoadWord<T>(call.in + (call.rows == 1 ? 0 : me * row_bytes) + at, left);
      using P = Pack<T, 8 / sizeof(T)>;
      Sum<T, 8 / sizeof(T)> sum;
      const Bytes16* inbox = rounds.Inbox(me, 0) + w;
      const uint64_t stride = common.packet_bytes / 8;
      bool whole = true;
      if constexpr (N == 0) {
        for (uint32_t m = 0; m < n; ++m) {
          uint64_t word = own;
          if (m != me) {
            const Bytes16* slot = inbox + m * stride;
            whole = whole &&
                    rounds.Receive(slot, backend::Load16<CacheHint::kVolatile>(slot), m, &word);
          }
          const P pack = iris::impl::BitCast<P>(word);
          if (m == 0) {
            sum = Begin(pack);
          } else {
            op.Add(&sum, pack);
          }
        }
      } else {
        Bytes16 packets[N];
        IRIS_UNROLL(8)
        for (uint32_t m = 0; m < N; ++m) {
          packets[m] = m == me ? rounds.Packet(own)
                               : backend::Load16<CacheHint::kVolatile>(inbox + m * stride);
        }
        IRIS_UNROLL(8)
        for (uint32_t m = 0; m < N; ++m) {
          uint64_t word = 0;
          whole = whole && rounds.Receive(inbox + m * stride, packets[m], m, &word);
          const P pack = iris::impl::BitCast<P>(word);
          if (m == 0) {
            sum = Begin(pack);
          } else {
            op.Add(&sum, pack);
          }
        }
      }
      if (!whole) break;
      StoreWord<T>(call.out + at, left, iris::impl::BitCast<uint64_t>(op.Finish(sum)));
    }
    if (base + capacity < end) {
      iris::impl::SyncAfterConsume();
      if (!rounds.Settle()) return;
    }
  }
  if (begin == end) iris::impl::SyncInsideBlock();
  rounds.Finish();
}

template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReducePackets(IRIS_PARAM Common common,
                                                                  IRIS_PARAM ReduceCall call) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, BlockOf(common));
  ReduceByPackets<T, Op, N>(common, call, rounds);
  rounds.Conclude();
}

// Moves rows by packets.
IRIS_DEVICE inline void MoveByPackets(const Common& common, const MoveCall& call, Rounds& rounds) {
  if (rounds.broken()) return;
  const uint32_t n = common.size;
  const uint32_t me = common.index;
  const uint64_t capacity = common.packet_bytes / 8;
  const uint64_t words = (call.count + 7) / 8;
  const uint64_t per_block = (words + GridOf(common) - 1) / GridOf(common);
  const uint64_t begin = Min(words, BlockOf(common) * per_block);
  const uint64_t end = Min(words, begin + per_block);
  // If some ranks send nothing, a round of packets does not show that all have come, so the calls
  // are exchanged too.
  const bool calls = common.check != 0 ||
                     (call.pattern != Pattern::kAllGather && call.pattern != Pattern::kAllToAll);
  const bool one_row = call.pattern != Pattern::kAllToAll && call.pattern != Pattern::kScatter;

  for (uint64_t base = begin; base < end; base += capacity) {
    const uint64_t count = Min(capacity, end - base);
    rounds.Advance();
    for (uint64_t w = backend::ThreadIndex(); w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      const uint64_t left = call.count - at;
      uint64_t word = 0;
      bool loaded = false;
      for (uint32_t k = 0; k < n; ++k) {
        const uint32_t peer = rounds.Rotated(k);
        if (!Sends(call, me, peer)) continue;
        if (!loaded || !one_row) {
          word = LoadWord<uint8_t>(call.in + RowSent(call, peer) * call.count + at, left);
          loaded = true;
        }
        if (peer == me) {
          uint8_t* to = call.out + RowReceived(call, me) * call.count + at;
          if (to != call.in + RowSent(call, me) * call.count + at) {
            StoreWord<uint8_t>(to, left, word);
          }
        } else {
          backend::Store16<CacheHint::kVolatile>(rounds.Inbox(peer, me) + w, rounds.Packet(word));
        }
      }
    }
    iris::impl::SyncInsideBlock();  // as in ReduceByPackets
    // Compare the calls before the wait: a rank with another call never sends these packets.
    if (calls) {
      rounds.SendCalls(false);
      if (!rounds.ReceiveCalls()) return;
    }
    for (uint64_t w = backend::ThreadIndex(); w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      const uint64_t left = call.count - at;
      bool whole = true;
      constexpr uint32_t kAhead = 8;
      for (uint32_t first = 0; whole && first < n; first += kAhead) {
        Bytes16 packets[kAhead];
        IRIS_UNROLL(8)
        for (uint32_t k = 0; k < kAhead; ++k) {
          const uint32_t m = first + k;
          if (m < n && m != me && Sends(call, m, me)) {
            packets[k] = backend::Load16<CacheHint::kVolatile>(rounds.Inbox(me, m) + w);
          }
        }
        IRIS_UNROLL(8)
        for (uint32_t k = 0; k < kAhead; ++k) {
          const uint32_t m = first + k;
          if (m < n && m != me && Sends(call, m, me)) {
            uint64_t word = 0;
            whole = whole && rounds.Receive(rounds.Inbox(me, m) + w, packets[k], m, &word);
            if (whole) {
              StoreWord<uint8_t>(call.out + RowReceived(call, m) * call.count + at, left, word);
            }
          }
        }
      }
      if (!whole) break;
    }
    if (base + capacity < end) {
      iris::impl::SyncAfterConsume();
      if (!rounds.Settle()) return;
    }
  }
  if (begin == end) iris::impl::SyncInsideBlock();
  rounds.Finish();
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void MovePackets(IRIS_PARAM Common common,
                                                                IRIS_PARAM MoveCall call) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, BlockOf(common));
  MoveByPackets(common, call, rounds);
  rounds.Conclude();
}

}  // namespace iris::ccl::impl
