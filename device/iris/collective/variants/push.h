// kPush: each warp puts a rank's chunks into the inbox of one peer, while another warp fences and
// signals the chunks put before.
//
// The rows of a block are split into chunks. Iteration i of the loop below puts chunk i + 1 of each
// peer's row, then the result of chunk i - 2, and syncs. Then the last warp signals chunk i + 1;
// the others wait for chunk i of all ranks and reduce it. So every wait is for a chunk that was put
// an iteration before.
//
// Chunk c of a block, counted by BlockState::signals over all operations, has the inbox that chunk
// c - kPushSlots had. A rank that signals chunk c has reduced c - 2. So:
// - Chunk c of an operation is put after a wait for its chunk c - 2, so c - 4 has been read.
// - The first chunk is put before any wait. The previous operation has waited for all its chunks,
//   or for its first round, after which all ranks have read all earlier chunks. At most its last
//   two chunks are unread, and they are in other inboxes.
// - The second chunk is put after the first round: all ranks have ended all earlier operations.
// So the first round costs nothing, and if no rank reads others' buffers there is no last round.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/patterns.h"
#include "iris/collective/impl/reduce.h"
#include "iris/collective/impl/reduce_direct.h"
#include "iris/impl/mutation.h"
#include "iris/memory.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/protocol.h"
#include "iris/rounds/words.h"

namespace iris::ccl::impl {

// The roles of a block's warps: to put chunks, or to signal. A single warp does both.
struct PushWarps {
  uint32_t warp;
  uint32_t putting;  // this many warps put, the first ones
  bool puts;
  bool tells;

  IRIS_DEVICE PushWarps() {
    const uint32_t warps = backend::BlockSize() / backend::WarpSize();
    warp = backend::WarpIndex();
    putting = warps > 1 ? warps - 1 : 1;
    puts = warp < putting;
    tells = warp + 1 == warps;
  }
};

// The part of every row for this block, in chunks: one is put while another is reduced.
struct PushChunks {
  uint64_t begin;
  uint64_t end;
  uint64_t chunk;
  uint64_t count;

  IRIS_DEVICE PushChunks(const Common& common, uint64_t row_bytes) {
    constexpr uint64_t kStep = 128;
    const uint64_t per_block = RoundUp((row_bytes + GridOf(common) - 1) / GridOf(common), kStep);
    begin = Min(row_bytes, BlockOf(common) * per_block);
    end = Min(row_bytes, begin + per_block);
    const uint64_t most = common.push_bytes;
    count = (end - begin + most - 1) / most;
    chunk = count == 0 ? most : Min(most, RoundUp((per_block + count - 1) / count, kStep));
  }
  IRIS_DEVICE uint64_t At(uint64_t i) const { return begin + i * chunk; }
  // Returns the bytes of chunk i in a row of `bytes`.
  IRIS_DEVICE uint64_t BytesIn(uint64_t i, uint64_t bytes) const {
    const uint64_t at = At(i);
    const uint64_t to = Min(Min(end, bytes), at + chunk);
    return at < to ? to - at : 0;
  }
};

// Puts the rows of the other ranks into their inboxes, and reduces this rank's row.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceByPush(const Common& common, const ReduceCall& call, Rounds& rounds) {
  // Addresses of the parts and the sum, for alternating chunks: one is written while one is read.
  IRIS_SHARED(uint8_t * [2 * (kMaxTeamRanks + 1)], tables);
  // 1 + the chunk whose wait failed in a warp. All warps that fail between two syncs store the same
  // chunk.
  IRIS_SHARED(uint64_t[1], missed);
  if (rounds.broken()) return;
  const Op op(call);
  const uint32_t n = N == 0 ? common.size : N;
  const uint32_t me = common.index;
  const bool to_all = call.target == ReduceCall::kAll;
  const uint64_t row_bytes = call.count * sizeof(T);
  const PushWarps warps;
  const PushChunks chunks(common, row_bytes);
  const uint64_t signals = rounds.Signals();  // so far
  const auto row_of = [&](uint32_t r) { return RowCount(call, r) * sizeof(T); };
  // Each of these warps does jobs of one peer: job k is for the rank k + 1 places further.
  const Jobs jobs = WarpJobs(warps.warp, warps.putting, n - 1);
  const auto put = [&](uint64_t i) {
    if (!warps.puts) return;
    for (uint32_t job = jobs.job; job + 1 < n; job += jobs.step) {
      const uint32_t peer = rounds.Rotated(job + 1);
      iris::impl::CopyBytes<CacheHint::kDefault>(rounds.PushBox(peer, signals + i, me),
                                                 call.in + peer * row_bytes + chunks.At(i),
                                                 chunks.BytesIn(i, row_of(peer)), jobs.share);
    }
  };
  const auto give = [&](uint64_t i) {
    if (!warps.puts || !to_all) return;
    const uint64_t at = call.row * row_bytes + chunks.At(i);
    for (uint32_t job = jobs.job; job + 1 < n; job += jobs.step) {
      const uint32_t peer = rounds.Rotated(job + 1);
      iris::impl::CopyBytes<CacheHint::kDefault>(rounds.Out(peer) + at, call.out + at,
                                                 chunks.BytesIn(i, row_of(call.row)), jobs.share);
    }
  };
  // Called by the last warp after a sync: signals that chunk i is in the inboxes, and i - 2 is
  // reduced.
  const auto tell = [&](uint64_t i) {
    if (!warps.tells || i >= chunks.count) return;
    for (uint32_t p = backend::LaneIndex(); p < n; p += backend::WarpSize()) {
      if (p != me) rounds.SignalTo(p, signals + i + 1);
    }
  };

  if (backend::ThreadIndex() == 0) missed[0] = 0;
  rounds.Advance();
  iris::impl::SyncInsideBlock();  // shared memory is cleared
  rounds.SendCalls(false);
  if (chunks.count != 0) {
    put(0);
    iris::impl::SyncBeforePublish();
    tell(0);
  }
  if (!rounds.ReceiveCalls()) return;
  // If the result goes to all, but not every `out` is in the heap, pull. All ranks decide alike.
  if (to_all && !rounds.out_direct()) {
    if (chunks.count != 0) rounds.KeepSignals(signals + 1);
    PullAndReduce<T, Op, N>(common, call, false, rounds,
                            [](const Op&, uint8_t**) { return false; });
    return;
  }
  const uint64_t own_bytes = row_of(call.row);
  for (uint64_t i = 0; i < chunks.count; ++i) {
    if (i + 1 < chunks.count) put(i + 1);
    if (i > 1) give(i - 2);
    uint8_t** table = tables + (i % 2) * (kMaxTeamRanks + 1);
    for (uint32_t m = backend::ThreadIndex(); m < n + 1; m += backend::BlockSize()) {
      if (m == n) {
        table[m] = call.out + (to_all ? call.row * row_bytes : 0) + chunks.At(i);
      } else {
        table[m] = m == me ? const_cast<uint8_t*>(call.in) + call.row * row_bytes + chunks.At(i)
                           : rounds.PushBox(me, signals + i, m);
      }
    }
    iris::impl::SyncBeforePublish();
    const uint64_t in_vain = backend::Load<Scope::kBlock, Order::kRelaxed>(missed);
    if (in_vain != 0 && in_vain <= i) return;
    tell(i + 1);
    if (!warps.puts) continue;
    const uint64_t since_ns = rounds.WaitBegins();
    bool there = true;
    for (uint32_t m = backend::LaneIndex(); m < n && there; m += backend::WarpSize()) {
      if (m != me) there = rounds.AwaitSignalOf(m, signals + i + 1);
    }
    there = backend::WarpAll(there);
    iris::impl::SyncWarp();
    rounds.WaitEnds(since_ns);
    if (!there) {
      backend::Store<Scope::kBlock, Order::kRelaxed>(missed, i + 1);
      continue;
    }
    const Share share = {backend::ThreadIndex(), uint64_t{warps.putting} * backend::WarpSize(),
                         call.unroll};
    ReduceRange<T, Op, N>(op, table, n, 1, chunks.BytesIn(i, own_bytes) / sizeof(T), share);
  }
  iris::impl::SyncInsideBlock();
  if (backend::Load<Scope::kBlock, Order::kRelaxed>(missed) != 0) return;
  if (chunks.count != 0) {
    if (chunks.count > 1) give(chunks.count - 2);
    give(chunks.count - 1);
    rounds.KeepSignals(signals + chunks.count);
  }
  if (to_all) {
    rounds.MeetLast(true);
  } else {
    rounds.Finish();
  }
}

template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReducePush(IRIS_PARAM Common common,
                                                               IRIS_PARAM ReduceCall call) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, BlockOf(common));
  ReduceByPush<T, Op, N>(common, call, rounds);
  rounds.Conclude();
}

}  // namespace iris::ccl::impl
