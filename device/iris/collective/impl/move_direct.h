// Movements of rows of one length, by stores. Templates, since a kernel cannot be inline.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/patterns.h"
#include "iris/collective/impl/reduce.h"
#include "iris/memory.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/protocol.h"

namespace iris::ccl::impl {

// Pushes rows to their places, or to the workspace of ranks whose `out` is outside the heap.
IRIS_DEVICE inline void PushRows(const Common& common, const MoveCall& call, Rounds& rounds,
                                 uint32_t block, uint32_t grid) {
  IRIS_SHARED(uint8_t* [kMaxTeamRanks], table);
  if (rounds.broken()) return;
  const uint32_t n = common.size;
  const uint32_t me = common.index;
  const bool to_all = call.pattern == Pattern::kAllGather || call.pattern == Pattern::kBroadcast;
  const bool out_staged = common.out_offset_bytes == kNotInHeap;
  const uint64_t room = common.stage_bytes / n / 16 * 16;  // of a row
  if (!rounds.Exchange(false)) return;
  const bool direct = rounds.out_direct();
  const uint64_t span = direct ? call.count : grid * room;
  for (uint64_t base = 0; base < call.count; base += span) {
    const uint64_t j = direct ? 0 : base + block * room;
    const uint64_t bytes = direct ? call.count : j < call.count ? Min(room, call.count - j) : 0;
    if (base != 0 && !rounds.Meet()) return;
    for (uint32_t k = backend::ThreadIndex(); k < n; k += backend::BlockSize()) {
      const uint32_t peer = rounds.Rotated(k);
      uint8_t* const out = peer == me ? call.out : rounds.Out(peer);
      // A rank that receives nothing may have no `out`; then it does not store to itself, either.
      if (out != nullptr) {
        table[k] = out + RowReceived(call, me) * call.count + j;
      } else {
        table[k] = peer == me ? nullptr : rounds.StageOut(peer) + me * room;
      }
    }
    iris::impl::SyncInsideBlock();
    if (to_all) {
      if (Sends(call, me, me)) {
        const Share share =
            direct ? Share{block * uint64_t{backend::BlockSize()} + backend::ThreadIndex(),
                           uint64_t{grid} * backend::BlockSize(), call.unroll}
                   : Share{backend::ThreadIndex(), backend::BlockSize(), call.unroll};
        CopyToAll(table, n, call.in + j, bytes, share);
      }
    } else {
      const bool one = call.pattern == Pattern::kGather;
      const uint32_t n_jobs = one ? 1 : n;
      Jobs jobs = direct ? JobsOf(block, grid, n_jobs) : JobsOf(0, 1, n_jobs);
      for (uint32_t job = jobs.job; job < n_jobs; job += jobs.step) {
        const uint32_t peer = one ? call.root : rounds.Rotated(job);
        if (!Sends(call, me, peer)) continue;
        const uint32_t k = peer >= me ? peer - me : peer + n - me;
        const uint8_t* from = call.in + RowSent(call, peer) * call.count + j;
        if (table[k] != from) {
          iris::impl::CopyBytes<CacheHint::kDefault>(table[k], from, bytes, jobs.share);
        }
      }
    }
    if (direct) break;
    if (!rounds.Meet()) return;
    if (!out_staged || bytes == 0) continue;
    for (uint32_t step = 1; step < n; ++step) {
      const uint32_t m = rounds.Rotated(step);
      if (!Sends(call, m, me)) continue;
      Copy(call.out + RowReceived(call, m) * call.count + j, rounds.StageOut(me) + m * room, bytes,
           Block{});
    }
  }
  if (direct) {
    rounds.MeetLast(true);
  } else {
    iris::impl::SyncInsideBlock();
    rounds.Finish();
  }
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void MoveDirect(IRIS_PARAM Common common,
                                                               IRIS_PARAM MoveCall call) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, BlockOf(common));
  PushRows(common, call, rounds, BlockOf(common), GridOf(common));
  rounds.Conclude();
}

// Moves up to N messages, none of which waits for another.
template <uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void MovePairs(IRIS_PARAM PairCalls<N> calls) {
  IRIS_SHARED(SharedState, shared);
  uint32_t block = backend::BlockIndex();
  uint32_t k = 0;
  while (block >= calls.each[k].count) block -= calls.each[k++].count;
  const PairCall& call = calls.each[k];
  block += call.first;
  Rounds rounds(call.common, &shared, block);
  PushRows(call.common, call.move, rounds, block, call.blocks);
  rounds.Conclude();
}

// Makes a round that publishes earlier puts of kernels and copies of the stream, at other ranks,
// too. So its words are released, whatever a launch publishes.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void BarrierKernel(IRIS_PARAM Common common) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, BlockOf(common));
  if (!rounds.broken() && rounds.Exchange(true)) rounds.Finish();
  rounds.Conclude();
}

}  // namespace iris::ccl::impl
