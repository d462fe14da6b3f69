// kLines and kTwoLines: collectives with lines.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/reduce.h"
#include "iris/impl/mutation.h"
#include "iris/rounds/lines.h"

namespace iris::ccl::impl {

// Receives the lines of a step from the other ranks. *result is the sum of all parts, with this
// rank's `own`, in the order of the ranks. Fails as Receive does.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline bool SumLines(const LineLane& lane, const Op& op, Rounds* rounds, uint64_t step,
                                 uint64_t line_bytes, Bytes16 own, Bytes16* result) {
  using P = Pack<T, 16 / sizeof(T)>;
  const uint32_t me = rounds->index();
  const uint8_t* box = rounds->LineBox(me, 0) + step * LineLane::kStoredBytes;
  Bytes16 parts[N];
  IRIS_UNROLL(8)
  for (uint32_t m = 0; m < N; ++m) {
    parts[m] = m == me ? own : lane.Look(box + m * line_bytes);
  }
  Sum<T, 16 / sizeof(T)> sum;
  IRIS_UNROLL(8)
  for (uint32_t m = 0; m < N; ++m) {
    if (m != me && !lane.Receive(rounds, box + m * line_bytes, m, &parts[m])) return false;
    const P pack = iris::impl::BitCast<P>(parts[m]);
    if (m == 0) {
      sum = Begin(pack);
    } else {
      op.Add(&sum, pack);
    }
  }
  *result = iris::impl::BitCast<Bytes16>(op.Finish(sum));
  return true;
}

// Like ReduceByPackets, but with lines. In each call every rank sends one row to each other rank.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceByLines(const Common& common, const ReduceCall& call,
                                      Rounds& rounds) {
  if (rounds.broken()) return;
  const Op op(call);
  const LineLane lane;
  const uint32_t me = common.index;
  const uint64_t row_bytes = call.count * sizeof(T);
  const LineSteps steps(common, row_bytes);
  const uint8_t* own_row = call.in + (call.rows == 1 ? 0 : me * row_bytes);
  for (uint64_t base = steps.begin; base < steps.end; base += steps.at_once) {
    const uint64_t count = Min(steps.at_once, steps.end - base);
    rounds.Advance();
    const uint64_t flag = rounds.LineFlag();
    for (uint64_t s = backend::WarpIndex(); s < count; s += Warps()) {
      const uint64_t at = (base + s) * LineLane::kStepBytes;
      Bytes16 values[N];
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        if (k > 1 && call.rows == 1) {
          values[k] = values[1];
        } else {
          const uint64_t row = call.rows == 1 ? 0 : rounds.Rotated(k);
          values[k] = lane.Load<T>(call.in + row * row_bytes, at, row_bytes);
        }
      }
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        lane.Send(rounds.LineBox(rounds.Rotated(k), me) + s * LineLane::kStoredBytes, values[k],
                  flag);
      }
    }
    iris::impl::SyncInsideBlock();  // as in ReduceByPackets
    if (common.check != 0) {
      rounds.SendCalls(false);
      if (!rounds.ReceiveCalls()) return;
    }
    for (uint64_t s = backend::WarpIndex(); s < count; s += Warps()) {
      const uint64_t at = (base + s) * LineLane::kStepBytes;
      Bytes16 result;
      if (!SumLines<T, Op, N>(lane, op, &rounds, s, common.line_bytes,
                              lane.Load<T>(own_row, at, row_bytes), &result)) {
        break;
      }
      lane.Store<T>(call.out, at, row_bytes, result);
    }
    if (base + steps.at_once < steps.end) {
      iris::impl::SyncAfterConsume();
      if (!rounds.Settle()) return;
    }
  }
  if (steps.begin == steps.end) iris::impl::SyncInsideBlock();
  rounds.Finish();
}

// Does an all-gather: sends this rank's row to all.
IRIS_DEVICE inline void GatherByLines(const Common& common, const MoveCall& call, Rounds& rounds) {
  if (rounds.broken()) return;
  const LineLane lane;
  const uint32_t n = common.size;
  const uint32_t me = common.index;
  const LineSteps steps(common, call.count);
  for (uint64_t base = steps.begin; base < steps.end; base += steps.at_once) {
    const uint64_t count = Min(steps.at_once, steps.end - base);
    rounds.Advance();
    const uint64_t flag = rounds.LineFlag();
    for (uint64_t s = backend::WarpIndex(); s < count; s += Warps()) {
      const uint64_t at = (base + s) * LineLane::kStepBytes;
      const Bytes16 value = lane.Load<uint8_t>(call.in, at, call.count);
      for (uint32_t k = 1; k < n; ++k) {
        lane.Send(rounds.LineBox(rounds.Rotated(k), me) + s * LineLane::kStoredBytes, value, flag);
      }
      uint8_t* own_row = call.out + me * call.count;
      if (own_row != call.in) lane.Store<uint8_t>(own_row, at, call.count, value);
    }
    iris::impl::SyncInsideBlock();  // as in ReduceByPackets
    if (common.check != 0) {
      rounds.SendCalls(false);
      if (!rounds.ReceiveCalls()) return;
    }
    for (uint64_t s = backend::WarpIndex(); s < count; s += Warps()) {
      const uint64_t at = (base + s) * LineLane::kStepBytes;
      const uint8_t* box = rounds.LineBox(me, 0) + s * LineLane::kStoredBytes;
      Bytes16 parts[kMaxLineMembers];
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < kMaxLineMembers; ++m) {
        if (m < n && m != me) parts[m] = lane.Look(box + m * common.line_bytes);
      }
      bool whole = true;
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < kMaxLineMembers; ++m) {
        if (m >= n || m == me || !whole) continue;
        whole = lane.Receive(&rounds, box + m * common.line_bytes, m, &parts[m]);
        if (whole) lane.Store<uint8_t>(call.out + m * call.count, at, call.count, parts[m]);
      }
      if (!whole) break;
    }
    if (base + steps.at_once < steps.end) {
      iris::impl::SyncAfterConsume();
      if (!rounds.Settle()) return;
    }
  }
  if (steps.begin == steps.end) iris::impl::SyncInsideBlock();
  rounds.Finish();
}

// Does an all-reduce in two rounds of lines, as ReduceByTwoPackets does with packets.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceByTwoLines(const Common& common, const ReduceCall& call,
                                         Rounds& rounds) {
  if (rounds.broken()) return;
  const Op op(call);
  const LineLane lane;
  const uint32_t me = common.index;
  const uint64_t row_bytes = call.count * sizeof(T);  // a multiple of 16
  const uint64_t limit = call.limit * sizeof(T);
  const LineSteps steps(common, row_bytes);
  const auto bytes_of = [&](uint32_t row) {
    const uint64_t from = row * row_bytes;
    return from < limit ? Min(row_bytes, limit - from) : 0;
  };
  for (uint64_t base = steps.begin; base < steps.end; base += steps.at_once) {
    const uint64_t count = Min(steps.at_once, steps.end - base);
    rounds.Advance();
    const uint64_t flag = rounds.LineFlag();
    for (uint64_t s = backend::WarpIndex(); s < count; s += Warps()) {
      const uint64_t at = (base + s) * LineLane::kStepBytes;
      Bytes16 values[N];
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        const uint32_t peer = rounds.Rotated(k);
        values[k] = lane.Load<T>(call.in + peer * row_bytes, at, bytes_of(peer));
      }
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        lane.Send(rounds.LineBox(rounds.Rotated(k), me) + s * LineLane::kStoredBytes, values[k],
                  flag);
      }
    }
    iris::impl::SyncInsideBlock();  // as in ReduceByPackets
    if (common.check != 0) {
      rounds.SendCalls(false);
      if (!rounds.ReceiveCalls()) return;
    }
    bool whole = true;
    Rounds second = rounds;
    second.Advance();
    for (uint64_t s = backend::WarpIndex(); whole && s < count; s += Warps()) {
      const uint64_t at = (base + s) * LineLane::kStepBytes;
      const Bytes16 own = lane.Load<T>(call.in + me * row_bytes, at, bytes_of(me));
      Bytes16 result;
      whole = SumLines<T, Op, N>(lane, op, &rounds, s, common.line_bytes, own, &result);
      if (!whole) break;
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        lane.Send(second.LineBox(second.Rotated(k), me) + s * LineLane::kStoredBytes, result,
                  second.LineFlag());
      }
      lane.Store<T>(call.out + me * row_bytes, at, bytes_of(me), result);
    }
    rounds.Advance();
    for (uint64_t s = backend::WarpIndex(); whole && s < count; s += Warps()) {
      const uint64_t at = (base + s) * LineLane::kStepBytes;
      const uint8_t* box = rounds.LineBox(me, 0) + s * LineLane::kStoredBytes;
      Bytes16 parts[N];
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        if (m != me) parts[m] = lane.Look(box + m * common.line_bytes);
      }
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        if (m == me || !whole) continue;
        whole = lane.Receive(&rounds, box + m * common.line_bytes, m, &parts[m]);
        if (whole) lane.Store<T>(call.out + m * row_bytes, at, bytes_of(m), parts[m]);
      }
    }
    if (base + steps.at_once < steps.end) {
      iris::impl::SyncAfterConsume();
      if (!rounds.Settle()) return;
    }
  }
  if (steps.begin == steps.end) iris::impl::SyncInsideBlock();
  rounds.Finish();
}

// The kernels are empty on platforms without the variant.
template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceLines(IRIS_PARAM Common common,
                                                                IRIS_PARAM ReduceCall call) {
  if constexpr (kHasLines) {
    IRIS_SHARED(SharedState, shared);
    Enter(common);
    Rounds rounds(common, &shared, BlockOf(common));
    rounds.AwaitReadersOfLines();
    ReduceByLines<T, Op, N>(common, call, rounds);
    rounds.Conclude();
  }
}

template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceTwoLines(IRIS_PARAM Common common,
                                                                   IRIS_PARAM ReduceCall call) {
  if constexpr (kHasLines) {
    IRIS_SHARED(SharedState, shared);
    Enter(common);
    Rounds rounds(common, &shared, BlockOf(common));
    rounds.AwaitReadersOfLines();
    ReduceByTwoLines<T, Op, N>(common, call, rounds);
    rounds.Conclude();
  }
}

// A template, since a kernel cannot be inline on every platform.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void GatherLines(IRIS_PARAM Common common,
                                                                IRIS_PARAM MoveCall call) {
  if constexpr (kHasLines) {
    IRIS_SHARED(SharedState, shared);
    Enter(common);
    Rounds rounds(common, &shared, BlockOf(common));
    rounds.AwaitReadersOfLines();
    GatherByLines(common, call, rounds);
    rounds.Conclude();
  }
}

}  // namespace iris::ccl::impl
