// The kernels of the collectives. Each block works on its own part of the data with the blocks of
// the same index elsewhere.
#pragma once

#include <cstdint>

#include "device/backend/select.h"
#include "device/collective/impl/layout.h"
#include "device/collective/impl/protocol.h"
#include "device/collective/impl/reduce.h"
#include "device/iris/memory.h"

namespace iris::ccl::impl {

IRIS_HOST_DEVICE inline uint64_t Min(uint64_t a, uint64_t b) { return a < b ? a : b; }

// What of the whole this block works on: elements [begin, begin + count).
struct Part {
  uint64_t begin;
  uint64_t count;
};

IRIS_DEVICE inline Part PartOfBlock(const Call& call) {
  const uint64_t begin = backend::BlockIndex() * call.part_count;
  return {begin, Min(call.part_count, call.count - begin)};
}

// Push everything to everyone, one round, then each member reduces from its own memory.
template <typename T, ReduceOp Op>
IRIS_KERNEL void AllReduceOneShot(Call call) {
  Session session(call);
  if (session.broken()) return;
  const Part part = PartOfBlock(call);
  const T* in = reinterpret_cast<const T*>(call.in) + part.begin;
  T* out = reinterpret_cast<T*>(call.out) + part.begin;
  const uint64_t chunk = call.config.one_shot_chunk_bytes / sizeof(T);
  const uint32_t me = session.index();
  for (uint64_t done = 0; done < part.count; done += chunk) {
    const uint64_t count = Min(chunk, part.count - done);
    for (uint32_t step = 1; step < session.size(); ++step) {
      const uint32_t peer = session.Rotated(step);
      Copy(session.Inbox(peer, me, 1), in + done, count * sizeof(T), Block{});
    }
    if (!(done == 0 ? session.Open() : session.Round())) return;
    const T* inbox = reinterpret_cast<const T*>(session.Inbox(me, 0, 0));
    ReduceRange<T, Op>(
        0, count, session.size(),
        [=](uint32_t m) { return m == me ? in + done : inbox + m * chunk; }, 1,
        [=](uint32_t) { return out + done; });
  }
}

// Each member reduces its slice of every part and writes the result to all.
template <typename T, ReduceOp Op>
IRIS_KERNEL void AllReduceTwoShot(Call call) {
  // Element 0 of the part of each member: sources, then destinations.
  IRIS_SHARED(T * [2 * kMaxTeamRanks], bases);
  Session session(call);
  if (session.broken()) return;
  const Part part = PartOfBlock(call);
  const T* in = reinterpret_cast<const T*>(call.in) + part.begin;
  T* out = reinterpret_cast<T*>(call.out) + part.begin;
  const uint32_t n = session.size();
  const uint32_t me = session.index();
  const uint64_t stage = call.config.stage_bytes / sizeof(T);
  const bool in_staged = call.note.in_offset_bytes == kNotInHeap;
  const bool out_staged = call.note.out_offset_bytes == kNotInHeap;

  // Whether the others' buffers are in the heap is not known yet, so the first chunk is staged
  // before that.
  if (in_staged) {
    Copy(session.StageIn(me), in, Min(stage, part.count) * sizeof(T), Block{});
  }
  if (!session.Open()) return;
  const uint64_t chunk = session.all_direct() ? part.count : stage;
  for (uint64_t done = 0; done < part.count; done += chunk) {
    const uint64_t count = Min(chunk, part.count - done);
    if (done != 0) {
      if (in_staged) Copy(session.StageIn(me), in + done, count * sizeof(T), Block{});
      if (!session.Round()) return;
    }
    for (uint32_t m = backend::ThreadIndex(); m < n; m += backend::BlockSize()) {
      T* direct_in = reinterpret_cast<T*>(session.In(m));
      T* direct_out = reinterpret_cast<T*>(session.Out(m));
      bases[m] = direct_in != nullptr ? direct_in + part.begin + done
                                      : reinterpret_cast<T*>(session.StageIn(m));
      bases[n + m] = direct_out != nullptr ? direct_out + part.begin + done
                                           : reinterpret_cast<T*>(session.StageOut(m));
    }
    iris::impl::SyncInsideBlock();
    const uint64_t slice = RoundUp((count + n - 1) / n, 16 / sizeof(T));
    const uint64_t begin = Min(count, me * slice);
    const uint64_t end = Min(count, begin + slice);
    T* const* table = bases;
    ReduceRange<T, Op>(
        begin, end, n, [=](uint32_t m) { return table[m]; }, n,
        [=](uint32_t k) { return table[n + (me + k < n ? me + k : me + k - n)]; });
    if (!session.Round()) return;
    if (out_staged) Copy(out + done, session.StageOut(me), count * sizeof(T), Block{});
  }
}

// Each member writes its data to all. Counts are bytes.
IRIS_KERNEL inline void AllGatherKernel(Call call) {
  Session session(call);
  if (session.broken()) return;
  const Part part = PartOfBlock(call);
  const uint8_t* in = call.in + part.begin;
  const uint32_t n = session.size();
  const uint32_t me = session.index();
  const uint64_t stage = call.config.stage_bytes / n / 16 * 16;
  if (!session.Open()) return;
  bool all_direct = true;  // only the destinations matter
  for (uint32_t m = 0; m < n; ++m) all_direct = all_direct && session.Out(m) != nullptr;
  const uint64_t chunk = all_direct ? part.count : stage;
  for (uint64_t done = 0; done < part.count; done += chunk) {
    const uint64_t count = Min(chunk, part.count - done);
    if (done != 0 && !session.Round()) return;
    for (uint32_t step = 0; step < n; ++step) {
      const uint32_t m = session.Rotated(step);
      uint8_t* to = m == me ? call.out : session.Out(m);
      to = to != nullptr ? to + me * call.count + part.begin + done
                         : session.StageOut(m) + me * stage;
      if (to != in + done) Copy(to, in + done, count, Block{});
    }
    if (!session.Round()) return;
    if (call.note.out_offset_bytes != kNotInHeap) continue;
    for (uint32_t step = 1; step < n; ++step) {
      const uint32_t m = session.Rotated(step);
      Copy(call.out + m * call.count + part.begin + done, session.StageOut(me) + m * stage, count,
           Block{});
    }
  }
}

// The root writes its data to all. Counts are bytes.
IRIS_KERNEL inline void BroadcastKernel(Call call) {
  Session session(call);
  if (session.broken()) return;
  const Part part = PartOfBlock(call);
  const uint32_t n = session.size();
  const uint32_t me = session.index();
  const bool root = me == call.root_index;
  if (!session.Open()) return;
  bool all_direct = true;  // only the destinations matter, and the root's own is not one
  for (uint32_t m = 0; m < n; ++m) {
    all_direct = all_direct && (m == call.root_index || session.Out(m) != nullptr);
  }
  const uint64_t chunk = all_direct ? part.count : call.config.stage_bytes;
  for (uint64_t done = 0; done < part.count; done += chunk) {
    const uint64_t count = Min(chunk, part.count - done);
    const uint64_t at = part.begin + done;
    if (done != 0 && !session.Round()) return;
    if (root) {
      for (uint32_t step = 1; step < n; ++step) {
        const uint32_t m = session.Rotated(step);
        uint8_t* to = session.Out(m);
        Copy(to != nullptr ? to + at : session.StageOut(m), call.in + at, count, Block{});
      }
      if (call.out != call.in) Copy(call.out + at, call.in + at, count, Block{});
    }
    if (!session.Round()) return;
    if (!root && call.note.out_offset_bytes == kNotInHeap) {
      Copy(call.out + at, session.StageOut(me), count, Block{});
    }
  }
}

IRIS_KERNEL inline void BarrierKernel(Call call) {
  Session session(call);
  if (session.broken()) return;
  (void)session.Open();
}

}  // namespace iris::ccl::impl
