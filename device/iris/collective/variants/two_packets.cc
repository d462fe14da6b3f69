// kTwoPackets: slices as packets, and then each rank's reduced slice as packets.
#include <cstdint>

#include "iris/collective/impl/reduce.h"
#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/operations.h"
#include "iris/rounds/protocol.h"
#include "iris/rounds/words.h"

namespace iris::ccl::impl {

// Makes an all-reduce in two rounds of packets: each rank receives its slice from all, and then all
// reduced slices. Slices are sent with full length, so every block receives from all in both.
template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReduceByTwoPackets(const Common& common, const ReduceCall& call,
                                           Rounds& rounds) {
  if (rounds.broken()) return;
  const Op op(call);
  const uint32_t me = common.index;
  const uint64_t capacity = common.packet_bytes / 8;
  const uint64_t row_bytes = call.count * sizeof(T);  // a multiple of 16
  const uint64_t words = row_bytes / 8;
  const uint64_t per_block = (words + GridOf(common) - 1) / GridOf(common);
  const uint64_t begin = Min(words, BlockOf(common) * per_block);
  const uint64_t end = Min(words, begin + per_block);
  const uint64_t limit = call.limit * sizeof(T);
  const auto left = [&](uint32_t row, uint64_t at) {
    const uint64_t from = row * row_bytes + at;
    return from < limit ? limit - from : 0;
  };

  for (uint64_t base = begin; base < end; base += capacity) {
    const uint64_t count = Min(capacity, end - base);
    rounds.Advance();
    for (uint64_t w = backend::ThreadIndex(); w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      uint64_t values[N];
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        const uint32_t peer = rounds.Rotated(k);
        values[k] = LoadWord<T>(call.in + peer * row_bytes + at, left(peer, at));
      }
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        backend::Store16<CacheHint::kVolatile>(rounds.Inbox(rounds.Rotated(k), me) + w,
                                               rounds.Packet(values[k]));
      }
    }
    iris::impl::SyncInsideBlock();  // as in ReduceByPackets
    if (common.check != 0) {
      rounds.SendCalls(false);
      if (!rounds.ReceiveCalls()) return;
    }
    const uint64_t stride = common.packet_bytes / 8;
    bool whole = true;
    const Bytes16* rows = rounds.Inbox(me, 0);
    Rounds second = rounds;
    second.Advance();
    for (uint64_t w = backend::ThreadIndex(); whole && w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      using P = Pack<T, 8 / sizeof(T)>;
      const uint64_t own = LoadWord<T>(call.in + me * row_bytes + at, left(me, at));
      Bytes16 packets[N];
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        packets[m] = m == me ? rounds.Packet(own)
                             : backend::Load16<CacheHint::kVolatile>(rows + m * stride + w);
      }
      Sum<T, 8 / sizeof(T)> sum;
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        uint64_t word = 0;
        whole = whole && rounds.Receive(rows + m * stride + w, packets[m], m, &word);
        const P pack = iris::impl::BitCast<P>(word);
        if (m == 0) {
          sum = Begin(pack);
        } else {
          op.Add(&sum, pack);
        }
      }
      if (!whole) break;
      const uint64_t result = iris::impl::BitCast<uint64_t>(op.Finish(sum));
      IRIS_UNROLL(8)
      for (uint32_t k = 1; k < N; ++k) {
        backend::Store16<CacheHint::kVolatile>(second.Inbox(second.Rotated(k), me) + w,
                                               second.Packet(result));
      }
      StoreWord<T>(call.out + me * row_bytes + at, left(me, at), result);
    }
    rounds.Advance();
    rows = rounds.Inbox(me, 0);
    for (uint64_t w = backend::ThreadIndex(); whole && w < count; w += backend::BlockSize()) {
      const uint64_t at = (base + w) * 8;
      Bytes16 packets[N];
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        if (m != me) packets[m] = backend::Load16<CacheHint::kVolatile>(rows + m * stride + w);
      }
      IRIS_UNROLL(8)
      for (uint32_t m = 0; m < N; ++m) {
        if (m == me) continue;
        uint64_t word = 0;
        whole = whole && rounds.Receive(rows + m * stride + w, packets[m], m, &word);
        if (whole) StoreWord<T>(call.out + m * row_bytes + at, left(m, at), word);
      }
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
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReduceTwoPackets(IRIS_PARAM Common common,
                                                                     IRIS_PARAM ReduceCall call) {
  IRIS_SHARED(SharedState, shared);
  Enter(common);
  Rounds rounds(common, &shared, BlockOf(common));
  ReduceByTwoPackets<T, Op, N>(common, call, rounds);
  rounds.Conclude();
}

namespace {

IRIS_REDUCTION_KERNELS(Kernels, ReduceTwoPackets<T, Op, N>);

bool Supports(const Shape& shape, uint32_t members) {
  return HasFixedKernel(shape.type, shape.op, members);
}

void Fit(const Comm& comm, const Shape&, uint64_t bytes, Plan* plan) {
  FitWords(comm, (bytes / comm.team.size + 7) / 8, plan);
}

Result Launch(const Start& start, backend::Stream& stream) {
  return LaunchEarly(start, "ReduceTwoPackets", stream,
                     SelectFixed<Kernels>(start.request.type, start.comm.team.size),
                     CommonOf(start), Slices(start));
}

}  // namespace

const VariantRow kTwoPacketsRow = {
    Variant::kTwoPackets, kAllReduceBit, &Supports, &Fit, &PrepareFixed<Kernels>, &Launch,
};

}  // namespace iris::ccl::impl
