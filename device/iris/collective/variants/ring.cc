// kRing: slices go around from neighbour to neighbour.
#include <cstdint>

#include "iris/collective/impl/reduce.h"
#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/operations.h"
#include "iris/memory.h"
#include "iris/rounds/protocol.h"
#include "iris/rounds/words.h"

namespace iris::ccl::impl {

// Makes an all-reduce around a ring. Row r begins at rank r and goes from neighbour to neighbour,
// each of which adds its own part; then the complete sum goes around once more to all. Each rank
// only stores into the stage of the next one, so buffers may be anywhere. Patarasuk and Yuan,
// "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
//
// Step s of a chunk takes the result that step s - 1 of the previous rank has stored, and stores
// its result for the next rank in the slot that step s - kRingSlots used, once the next rank has
// read that slot. The count of steps continues from chunk to chunk. A step signals to the next rank
// that data has arrived, and to the previous rank that its slot is free.
inline constexpr uint32_t kRingSlots = 4;

template <typename T, typename Op>
IRIS_DEVICE inline void ReduceAroundRing(const Common& common, const ReduceCall& call,
                                         Rounds& rounds) {
  IRIS_SHARED(uint8_t* [4], table);
  if (rounds.broken()) return;
  const Op last(call);
  Op hop = last;
  hop.divide = 1;
  const uint32_t n = common.size;
  const uint32_t next = rounds.Rotated(1);
  const uint32_t previous = rounds.Rotated(n - 1);
  const uint32_t n_steps = 2 * n - 2;
  const uint64_t chunk = 2 * common.stage_bytes / kRingSlots / 16 * 16;
  const uint64_t row_bytes = call.count * sizeof(T);
  const Share share = {backend::ThreadIndex(), backend::BlockSize()};
  const uint64_t signals = rounds.Signals();  // so far
  uint64_t sent = 0;
  if (!rounds.Exchange(false)) return;

  for (uint64_t j = BlockOf(common) * chunk; j < row_bytes; j += chunk * GridOf(common)) {
    for (uint32_t s = 0; s <= n_steps; ++s) {
      const bool takes = s != 0;
      const bool gives = s != n_steps;
      const uint32_t row = (common.index + 2 * n - s) % n;
      const uint64_t in_row = RowCount(call, row) * sizeof(T);
      const uint64_t bytes = j < in_row ? Min(chunk, in_row - j) : 0;
      const uint64_t at = row * row_bytes + j;
      uint8_t* const from =
          rounds.StageIn(common.index) + (sent + kRingSlots - 1) % kRingSlots * chunk;
      uint8_t* const to = rounds.StageIn(next) + sent % kRingSlots * chunk;
      uint8_t* const own = const_cast<uint8_t*>(call.in) + at;
      uint8_t* const out = call.out + at;
      // A reducing step sums `from` and `own` to `to`, the last one also to `out`. A copying step
      // copies `from` to `out` and `to`.
      for (uint32_t i = backend::ThreadIndex(); i < 4; i += backend::BlockSize()) {
        const bool reduces = s < n;
        table[i] = i == 0   ? (reduces ? from : out)
                   : i == 1 ? (reduces ? own : to)
                   : i == 2 ? (s == n - 1 ? out : to)
                            : to;
      }
      for (uint32_t i = backend::ThreadIndex(); i < 2; i += backend::BlockSize()) {
        if (i == 0 && takes && !rounds.AwaitSignalOf(previous, signals + sent)) break;
        if (i == 1 && gives && sent + 2 > kRingSlots &&
            !rounds.AwaitSignalOf(next, signals + sent + 2 - kRingSlots)) {
          break;
        }
      }
      iris::impl::SyncAfterConsume();
      if (!rounds.Settle()) return;
      if (s == 0) {
        iris::impl::CopyBytes<CacheHint::kDefault>(to, own, bytes, share);
      } else if (s < n) {
        ReduceRange<T, Op, 2>(s == n - 1 ? last : hop, table, 2, s == n - 1 ? 2 : 1,
                              bytes / sizeof(T), share);
      } else {
        CopyToAll(table, gives ? 2 : 1, from, bytes, share);
      }
      iris::impl::SyncBeforePublish();  // and all have read the table
      if (!gives) continue;
      ++sent;
      for (uint32_t i = backend::ThreadIndex(); i < 2; i += backend::BlockSize()) {
        rounds.SignalTo(i == 0 ? next : previous, signals + sent);
      }
    }
  }
  iris::impl::SyncInsideBlock();
  if (sent != 0) rounds.KeepSignals(signals + sent);
  rounds.Finish();
}

template <typename T, typename Op>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceRing(IRIS_PARAM Common common,
                                                               IRIS_PARAM ReduceCall call) {
  IRIS_SHARED(SharedState, shared);
  Rounds rounds(common, &shared, BlockOf(common));
  ReduceAroundRing<T, Op>(common, call, rounds);
  rounds.Conclude();
}

namespace {

IRIS_REDUCTION_KERNELS(Kernels, ReduceRing<T, Op>);

bool Supports(const Shape& shape, uint32_t) {
  // Partial sums travel as elements, so those of u8 wrap; kAvg divides a sum that does not.
  return shape.type != DType::kU8 || shape.op != ReduceOp::kAvg;
}

Result Launch(const Start& start, backend::Stream& stream) {
  return LaunchKernel(start, "ReduceRing", stream, SelectGeneral<Kernels>(start.request.type),
                      CommonOf(start), Slices(start));
}

}  // namespace

const VariantRow kRingRow = {
    Variant::kRing, kAllReduceBit, &Supports, &FitUnits, &PrepareGeneral<Kernels>, &Launch,
};

}  // namespace iris::ccl::impl
