// The kernels of the operations that only move bytes, and the barrier. Templates of nothing, since
// a kernel cannot be inline everywhere.
#pragma once

#include <cstdint>

#include "device/backend/select.h"
#include "device/collective/impl/layout.h"
#include "device/collective/impl/protocol.h"
#include "device/collective/impl/reduce.h"
#include "device/collective/impl/reduce_kernels.h"
#include "device/iris/memory.h"

namespace iris::ccl::impl {

// Which rows of `in` go where, and where in `out` they arrive.
IRIS_DEVICE inline bool Sends(const Call& call, uint32_t from, uint32_t to) {
  switch (call.pattern) {
    case Pattern::kBroadcast:
    case Pattern::kScatter:
      return from == call.root;
    case Pattern::kGather:
      return to == call.root;
    default:
      return true;
  }
}
IRIS_DEVICE inline uint64_t RowSent(const Call& call, uint32_t to) {
  return call.pattern == Pattern::kAllToAll || call.pattern == Pattern::kScatter ? to : 0;
}
IRIS_DEVICE inline uint64_t RowReceived(const Call& call, uint32_t from) {
  return call.pattern == Pattern::kBroadcast || call.pattern == Pattern::kScatter ? 0 : from;
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void MovePackets(Call call) {
  IRIS_SHARED(SharedState, shared);
  Session session(call, &shared, backend::BlockIndex());
  if (session.broken()) return;
  const uint32_t n = call.size;
  const uint32_t me = call.index;
  const uint64_t capacity = call.packet_bytes / 8;
  const uint64_t words = (call.count + 7) / 8;
  const uint64_t per_block = (words + backend::GridSize() - 1) / backend::GridSize();
  const uint64_t begin = Min(words, backend::BlockIndex() * per_block);
  const uint64_t end = Min(words, begin + per_block);
  // Where some send nothing, a round does not show that all have come.
  const bool calls = call.check != 0 ||
                     (call.pattern != Pattern::kAllGather && call.pattern != Pattern::kAllToAll);
  const bool one_row = call.pattern != Pattern::kAllToAll && call.pattern != Pattern::kScatter;

  for (uint64_t base = begin; base < end; base += capacity) {
    const uint64_t count = Min(capacity, end - base);
    session.Advance();
    for (uint64_t w = backend::ThreadIndex(); w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      const uint64_t left = call.count - at;
      uint64_t word = 0;
      bool loaded = false;
      for (uint32_t k = 0; k < n; ++k) {
        const uint32_t peer = session.Rotated(k);
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
          backend::Store16<CacheHint::kVolatile>(session.Inbox(peer, me) + w, session.Packet(word));
        }
      }
    }
    iris::impl::SyncInsideBlock();  // as in ReducePackets
    // What differs must be known before packets are waited for that will not come.
    if (calls) {
      session.SendCalls(false);
      if (!session.ReceiveCalls()) return;
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
            packets[k] = backend::Load16<CacheHint::kVolatile>(session.Inbox(me, m) + w);
          }
        }
        IRIS_UNROLL(8)
        for (uint32_t k = 0; k < kAhead; ++k) {
          const uint32_t m = first + k;
          if (m < n && m != me && Sends(call, m, me)) {
            uint64_t word = 0;
            whole = whole && session.Receive(session.Inbox(me, m) + w, packets[k], m, &word);
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
      if (!session.Settle()) return;
    }
  }
  if (begin == end) iris::impl::SyncInsideBlock();
  session.Finish();
}

// Thread set of this thread among all warps of `blocks` blocks, when they divide among `n_jobs`:
// neighbouring warps do different jobs, so that all links are busy. Jobs job, job + n_warps, ...
struct Jobs {
  uint32_t job;
  uint32_t step;
  Share share;
};
IRIS_DEVICE inline Jobs JobsOf(uint32_t block, uint32_t blocks, uint32_t n_jobs) {
  const uint32_t lanes = backend::WarpSize();
  const uint32_t per_block = (backend::BlockSize() + lanes - 1) / lanes;
  // The last warp of a block may be short; then warps do not divide evenly, and threads do.
  if (backend::BlockSize() % lanes != 0 || per_block * blocks < n_jobs) {
    return {0,
            1,
            {block * uint64_t{backend::BlockSize()} + backend::ThreadIndex(),
             uint64_t{blocks} * backend::BlockSize()}};
  }
  const uint32_t warps = per_block * blocks;
  const uint32_t warp = block * per_block + backend::WarpIndex();
  const uint32_t job = warp % n_jobs;
  const uint32_t sharing = warps / n_jobs + (job < warps % n_jobs ? 1 : 0);
  return {job,
          n_jobs,
          {warp / n_jobs * uint64_t{lanes} + backend::LaneIndex(), uint64_t{sharing} * lanes}};
}

// Rows are pushed to where they belong, or to the workspace of whoever has its `out` elsewhere.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void MoveDirect(Call call) {
  IRIS_SHARED(SharedState, shared);
  IRIS_SHARED(uint8_t* [kMaxTeamRanks], table);
  Session session(call, &shared, backend::BlockIndex());
  if (session.broken()) return;
  const uint32_t n = call.size;
  const uint32_t me = call.index;
  const uint32_t block = backend::BlockIndex();
  const uint32_t grid = backend::GridSize();
  const bool to_all = call.pattern == Pattern::kAllGather || call.pattern == Pattern::kBroadcast;
  const bool out_staged = call.out_offset_bytes == kNotInHeap;
  const uint64_t room = call.stage_bytes / n / 16 * 16;  // of a row
  if (!session.Exchange(false)) return;
  const bool direct = session.out_direct();
  const uint64_t span = direct ? call.count : grid * room;
  for (uint64_t base = 0; base < call.count; base += span) {
    const uint64_t j = direct ? 0 : base + block * room;
    const uint64_t bytes = direct ? call.count : j < call.count ? Min(room, call.count - j) : 0;
    if (base != 0 && !session.Meet()) return;
    for (uint32_t k = backend::ThreadIndex(); k < n; k += backend::BlockSize()) {
      const uint32_t peer = session.Rotated(k);
      uint8_t* out = peer == me ? call.out : session.Out(peer);
      table[k] = out != nullptr || peer == me ? out + RowReceived(call, me) * call.count + j
                                              : session.StageOut(peer) + me * room;
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
      // Gather: one job; otherwise one for each member, this one included.
      const bool one = call.pattern == Pattern::kGather;
      const uint32_t n_jobs = one ? 1 : n;
      Jobs jobs = direct ? JobsOf(block, grid, n_jobs) : JobsOf(0, 1, n_jobs);
      for (uint32_t job = jobs.job; job < n_jobs; job += jobs.step) {
        const uint32_t peer = one ? call.root : session.Rotated(job);
        if (!Sends(call, me, peer)) continue;
        const uint32_t k = peer >= me ? peer - me : peer + n - me;
        const uint8_t* from = call.in + RowSent(call, peer) * call.count + j;
        if (table[k] != from) {
          iris::impl::CopyBytes<CacheHint::kDefault>(table[k], from, bytes, jobs.share);
        }
      }
    }
    if (direct) break;
    if (!session.Meet()) return;
    if (!out_staged || bytes == 0) continue;
    for (uint32_t step = 1; step < n; ++step) {
      const uint32_t m = session.Rotated(step);
      if (!Sends(call, m, me)) continue;
      Copy(call.out + RowReceived(call, m) * call.count + j, session.StageOut(me) + m * room, bytes,
           Block{});
    }
  }
  if (direct) {
    session.MeetLast(true);
  } else {
    iris::impl::SyncInsideBlock();
    session.Finish();
  }
}

// A broadcast of much: each member but the root fetches a slice from it and gives it to the others,
// so that no link carries more than the whole once. Where a buffer is not in the heap: MoveDirect's
// way.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void BroadcastSlices(Call call) {
  IRIS_SHARED(SharedState, shared);
  IRIS_SHARED(uint8_t* [kMaxTeamRanks], table);
  Session session(call, &shared, backend::BlockIndex());
  if (session.broken()) return;
  const uint32_t n = call.size;
  const uint32_t me = call.index;
  const uint32_t block = backend::BlockIndex();
  const uint32_t grid = backend::GridSize();
  const bool root = me == call.root;
  if (!session.Exchange(false)) return;
  if (session.in_direct() && session.out_direct()) {
    const Share share = {block * uint64_t{backend::BlockSize()} + backend::ThreadIndex(),
                         uint64_t{grid} * backend::BlockSize(), call.unroll};
    if (root) {
      if (call.out != call.in) {
        iris::impl::CopyBytes<CacheHint::kDefault>(call.out, call.in, call.count, share);
      }
    } else {
      const uint64_t slice = RoundUp((call.count + n - 2) / (n - 1), 16);
      const uint32_t place = (me + n - call.root) % n - 1;  // among the others
      const uint64_t begin = Min(call.count, place * slice);
      const uint64_t bytes = Min(call.count - begin, slice);
      uint8_t* from = session.In(call.root) + begin;
      for (uint32_t k = backend::ThreadIndex(); k + 1 < n; k += backend::BlockSize()) {
        // The others in turn, without the root: this member first.
        const uint32_t other = (call.root + 1 + (place + k) % (n - 1)) % n;
        table[k] = session.Out(other) + begin;
      }
      iris::impl::SyncInsideBlock();
      CopyToAll(table, n - 1, from, bytes, share);
    }
    session.MeetLast(true);
    return;
  }
  // By chunks through the stages of those that need them.
  for (uint64_t base = 0; base < call.count; base += grid * call.stage_bytes) {
    const uint64_t j = base + block * call.stage_bytes;
    const uint64_t bytes = j < call.count ? Min(call.stage_bytes, call.count - j) : 0;
    if (base != 0 && !session.Meet()) return;
    if (root) {
      for (uint32_t k = backend::ThreadIndex(); k < n; k += backend::BlockSize()) {
        const uint32_t peer = session.Rotated(k);
        uint8_t* out = peer == me ? call.out : session.Out(peer);
        table[k] = out != nullptr ? out + j : session.StageOut(peer);
      }
      iris::impl::SyncInsideBlock();
      CopyToAll(table, n, call.in + j, bytes,
                Share{backend::ThreadIndex(), backend::BlockSize(), call.unroll});
    }
    if (!session.Meet()) return;
    if (!root && call.out_offset_bytes == kNotInHeap) {
      Copy(call.out + j, session.StageOut(me), bytes, Block{});
    }
  }
  iris::impl::SyncInsideBlock();
  session.Finish();
}

// As MoveDirect, with rows of any length.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void MoveVector(Call call, Vector vector) {
  IRIS_SHARED(SharedState, shared);
  IRIS_SHARED(uint8_t* [kMaxTeamRanks], outs);
  Session session(call, &shared, backend::BlockIndex(), &vector);
  if (session.broken()) return;
  const uint32_t n = call.size;
  const uint32_t me = call.index;
  const uint32_t block = backend::BlockIndex();
  const uint32_t grid = backend::GridSize();
  const uint64_t room = call.stage_bytes / n / 16 * 16;
  if (!session.Exchange(false)) return;
  // Where each member wants what comes from here; its own stage if that is not in the heap.
  for (uint32_t m = backend::ThreadIndex(); m < n; m += backend::BlockSize()) {
    outs[m] = m == me ? call.out + vector.receive_offset_bytes[me] : session.Out(m);
  }
  iris::impl::SyncInsideBlock();
  const bool direct = session.out_direct();
  const Jobs jobs = direct ? JobsOf(block, grid, n) : JobsOf(0, 1, n);
  for (uint64_t base = 0;; base += grid * room) {
    const uint64_t j = direct ? 0 : base + block * room;
    bool more = false;
    for (uint32_t m = 0; m < n; ++m) {
      more = more || vector.send_bytes[m] > base + grid * room ||
             vector.receive_bytes[m] > base + grid * room;
    }
    for (uint32_t job = jobs.job; job < n; job += jobs.step) {
      const uint32_t peer = session.Rotated(job);
      const uint64_t all = vector.send_bytes[peer];
      if (j >= all) continue;
      uint8_t* to = outs[peer] != nullptr ? outs[peer] + j : session.StageOut(peer) + me * room;
      iris::impl::CopyBytes<CacheHint::kDefault>(to, call.in + vector.send_offset_bytes[peer] + j,
                                                 direct ? all : Min(room, all - j), jobs.share);
    }
    if (direct) break;
    if (!session.Meet()) return;
    for (uint32_t step = 1; call.out_offset_bytes == kNotInHeap && step < n; ++step) {
      const uint32_t m = session.Rotated(step);
      const uint64_t all = vector.receive_bytes[m];
      if (j >= all) continue;
      Copy(call.out + vector.receive_offset_bytes[m] + j, session.StageOut(me) + m * room,
           Min(room, all - j), Block{});
    }
    bool any = false;
    if (!session.MeetMore(more, &any)) return;
    if (!any) break;
  }
  if (direct) {
    session.MeetLast(true);
  } else {
    session.Finish();
  }
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void BarrierKernel(Call call) {
  IRIS_SHARED(SharedState, shared);
  Session session(call, &shared, backend::BlockIndex());
  if (session.broken()) return;
  if (session.Exchange(false)) session.Finish();
}

}  // namespace iris::ccl::impl
