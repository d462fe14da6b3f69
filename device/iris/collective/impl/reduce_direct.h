// Reductions by loads from all ranks. N: number of ranks (2, 4, 8), or 0 for any number.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/reduce.h"
#include "iris/memory.h"
#include "iris/rounds/layout.h"
#include "iris/rounds/protocol.h"
#include "iris/rounds/words.h"

namespace iris::ccl::impl {

// Pulls this rank's row from all, reduces it and stores it to its target. Rows of the workspace
// stand for buffers outside the heap. With two_phases, a thread reads all its data before it stores
// to other ranks, if addresses allow. otherwise(op, table) runs after the first round, and returns
// true if it has done the rest.
template <typename T, typename Op, uint32_t N, typename Otherwise>
IRIS_DEVICE inline void PullAndReduce(const Common& common, const ReduceCall& call, bool two_phases,
                                      Rounds& rounds, Otherwise otherwise) {
  IRIS_SHARED(uint8_t * [2 * kMaxTeamRanks], table);
  if (rounds.broken()) return;
  const Op op(call);
  const uint32_t n = N == 0 ? common.size : N;
  const uint32_t me = common.index;
  const uint32_t block = BlockOf(common);
  const bool to_self = call.target == ReduceCall::kSelf;
  const bool to_all = call.target == ReduceCall::kAll;
  const uint32_t n_to = to_all ? n : 1;
  const bool in_staged = common.in_offset_bytes == kNotInHeap;
  const uint64_t room = common.stage_bytes / call.rows / 16 * (16 / sizeof(T));  // of a row
  const uint64_t row_begin = call.row * call.count;
  const uint64_t row_count = RowCount(call, call.row);

  const auto stage_in = [&](uint64_t j) {
    for (uint32_t r = 0; r < call.rows; ++r) {
      const uint64_t count = RowCount(call, r);
      if (j >= count) break;
      Copy(rounds.StageIn(me) + r * room * sizeof(T), call.in + (r * call.count + j) * sizeof(T),
           Min(room, count - j) * sizeof(T), Block{});
    }
  };
  if (in_staged) stage_in(block * room);
  if (!rounds.Exchange(in_staged)) return;
  if (otherwise(op, table)) return;
  const bool direct = rounds.in_direct() && (to_self || rounds.out_direct());
  const uint64_t span = direct ? call.count : GridOf(common) * room;
  for (uint64_t base = 0; base < call.count; base += span) {
    // This block now works on elements j to j + room - 1 of a row, or on its share of all.
    const uint64_t j = direct ? 0 : base + block * room;
    if (base != 0) {
      if (in_staged) stage_in(j);
      if (!rounds.Meet()) return;
    }
    for (uint32_t i = backend::ThreadIndex(); i < n + n_to; i += backend::BlockSize()) {
      uint8_t* p = nullptr;
      if (i < n) {
        uint8_t* in = rounds.In(i);
        p = in != nullptr ? in + (row_begin + j) * sizeof(T)
                          : rounds.StageIn(i) + call.row * room * sizeof(T);
      } else if (to_self) {
        p = call.out + j * sizeof(T);
      } else {
        const uint32_t to = to_all ? rounds.Rotated(i - n) : call.target;
        uint8_t* out = to == me ? call.out : rounds.Out(to);
        p = out != nullptr ? out + (row_begin + j) * sizeof(T)
                           : rounds.StageOut(to) + call.row * room * sizeof(T);
      }
      table[i] = p;
    }
    iris::impl::SyncInsideBlock();
    if (j < row_count) {
      const Share share =
          direct ? Share{block * uint64_t{backend::BlockSize()} + backend::ThreadIndex(),
                         uint64_t{GridOf(common)} * backend::BlockSize(), call.unroll}
                 : Share{backend::ThreadIndex(), backend::BlockSize(), call.unroll};
      const uint64_t count = direct ? row_count : Min(room, row_count - j);
      // If `gives`, a thread stores to this rank first, and then its results to the others.
      const bool gives = direct && to_all && two_phases && Straight(table, n + n_to) &&
                         ((reinterpret_cast<uint64_t>(table[0]) | count * sizeof(T)) & 15) == 0;
      // The only call, because it is inlined and takes most of the kernel's time to compile.
      ReduceRange<T, Op, N>(op, table, n, gives ? 1 : n_to, count, share);
      if (gives) CopyToAll(table + n + 1, n - 1, table[n], count * sizeof(T), share);
    }
    if (direct) break;
    if (!rounds.Meet()) return;
    if (common.out_offset_bytes == kNotInHeap && !to_self && (to_all || call.target == me)) {
      // Copies all rows but this rank's own, which is in `out` already.
      for (uint32_t r = 0; r < call.rows; ++r) {
        const uint64_t count = RowCount(call, r);
        if (j >= count) break;
        if (r == call.row) continue;
        Copy(call.out + (r * call.count + j) * sizeof(T),
             rounds.StageOut(me) + r * room * sizeof(T), Min(room, count - j) * sizeof(T), Block{});
      }
    }
  }
  if (direct) {
    rounds.MeetLast(!to_self);
  } else {
    iris::impl::SyncInsideBlock();
    rounds.Finish();
  }
}

// The kernel of kDirect, kTwoShot and kTwoPhase, and of the sums of kCopyEngine.
template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceDirect(IRIS_PARAM Common common,
                                                                 IRIS_PARAM ReduceCall call,
                                                                 uint32_t two_phases) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, BlockOf(common));
  PullAndReduce<T, Op, N>(common, call, two_phases != 0, rounds,
                          [](const Op&, uint8_t**) { return false; });
  rounds.Conclude();
}

}  // namespace iris::ccl::impl
