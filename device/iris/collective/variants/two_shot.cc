// kTwoShot: each member reduces its slice and stores it to all, or to the root; in a broadcast it
// fetches its slice from the root and stores it to the others. kTwoPhase: the same of an
// all-reduce, but each thread reads all that it needs before it gives the others anything.
#include <cstdint>

#include "iris/collective/impl/patterns.h"
#include "iris/collective/impl/reduce.h"
#include "iris/collective/variants/variant.h"
#include "iris/memory.h"
#include "iris/rounds/protocol.h"

namespace iris::ccl::impl {

// A large broadcast: each member but the root fetches a slice from it and gives it to the others,
// so that no link carries more than the whole once. For buffers outside the heap: by chunks, from
// the root to all.
IRIS_DEVICE inline void BroadcastBySlices(const Common& common, const MoveCall& call,
                                          Rounds& rounds) {
  IRIS_SHARED(uint8_t* [kMaxTeamRanks], table);
  if (rounds.broken()) return;
  const uint32_t n = common.size;
  const uint32_t me = common.index;
  const uint32_t block = BlockOf(common);
  const uint32_t grid = GridOf(common);
  const bool root = me == call.root;
  if (!rounds.Exchange(false)) return;
  if (rounds.in_direct() && rounds.out_direct()) {
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
      uint8_t* from = rounds.In(call.root) + begin;
      for (uint32_t k = backend::ThreadIndex(); k + 1 < n; k += backend::BlockSize()) {
        // The others in turn, without the root: this member first.
        const uint32_t other = (call.root + 1 + (place + k) % (n - 1)) % n;
        table[k] = rounds.Out(other) + begin;
      }
      iris::impl::SyncInsideBlock();
      CopyToAll(table, n - 1, from, bytes, share);
    }
    rounds.MeetLast(true);
    return;
  }
  // Broadcasts in chunks through the stages of members that need them.
  for (uint64_t base = 0; base < call.count; base += grid * common.stage_bytes) {
    const uint64_t j = base + block * common.stage_bytes;
    const uint64_t bytes = j < call.count ? Min(common.stage_bytes, call.count - j) : 0;
    if (base != 0 && !rounds.Meet()) return;
    if (root) {
      for (uint32_t k = backend::ThreadIndex(); k < n; k += backend::BlockSize()) {
        const uint32_t peer = rounds.Rotated(k);
        uint8_t* out = peer == me ? call.out : rounds.Out(peer);
        table[k] = out != nullptr ? out + j : rounds.StageOut(peer);
      }
      iris::impl::SyncInsideBlock();
      CopyToAll(table, n, call.in + j, bytes,
                Share{backend::ThreadIndex(), backend::BlockSize(), call.unroll});
    }
    if (!rounds.Meet()) return;
    if (!root && common.out_offset_bytes == kNotInHeap) {
      Copy(call.out + j, rounds.StageOut(me), bytes, Block{});
    }
  }
  iris::impl::SyncInsideBlock();
  rounds.Finish();
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void BroadcastSlices(IRIS_PARAM Common common,
                                                                    IRIS_PARAM MoveCall call) {
  IRIS_SHARED(SharedState, shared);
  Rounds rounds(common, &shared, BlockOf(common));
  BroadcastBySlices(common, call, rounds);
  rounds.Conclude();
}

namespace {

bool Supports(const Shape& shape, uint32_t members) {
  return shape.operation != Operation::kBroadcast || members > 2;
}

// The reductions' kernels are those of kDirect.
Result Prepare() { return backend::PrepareKernel(&BroadcastSlices<>); }

Result Launch(const Start& start, backend::Stream& stream) {
  if (start.request.operation == Operation::kBroadcast) {
    return LaunchKernel(start, "BroadcastSlices", stream, &BroadcastSlices<>, CommonOf(start),
                        Rows(start));
  }
  return LaunchReduceDirect(start, CommonOf(start), Slices(start), false, stream);
}

Result PrepareNothing() { return {}; }

Result LaunchTwoPhase(const Start& start, backend::Stream& stream) {
  return LaunchReduceDirect(start, CommonOf(start), Slices(start), true, stream);
}

}  // namespace

const VariantRow kTwoShotRow = {
    Variant::kTwoShot, kAllReduceBit | kReduceBit | Bit(Operation::kBroadcast),
    &Supports,         &FitUnits,
    &Prepare,          &Launch,
};
const VariantRow kTwoPhaseRow = {
    Variant::kTwoPhase, kAllReduceBit, nullptr, &FitUnits, &PrepareNothing, &LaunchTwoPhase,
};

}  // namespace iris::ccl::impl
