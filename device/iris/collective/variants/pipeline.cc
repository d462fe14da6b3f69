// kPipeline: members push slices into each other's workspace while they reduce the ones before.
#include <cstdint>

#include "iris/collective/impl/protocol.h"
#include "iris/collective/impl/reduce.h"
#include "iris/collective/impl/reduce_direct.h"
#include "iris/collective/impl/select_kernel.h"
#include "iris/collective/variants/variant.h"

namespace iris::ccl::impl {

extern const VariantRow kPipelineRow;

// A reduction of much, all buffers in the heap: members push chunks of each other's rows into the
// stages, a chunk ahead of what they reduce. Stores use the links better than loads do.
//
// Slots: chunk c goes where c - 4 was. It is pushed after this block has waited for c - 2 of all,
// which they sent after they had reduced c - 4.
inline constexpr uint32_t kPipelineSlots = 4;

template <typename T, typename Op, uint32_t N>
IRIS_DEVICE inline void ReducePushed(const Common& common, const ReduceCall& call, Rounds* rounds,
                                     const Op& op, uint8_t** table) {
  const uint32_t me = common.index;
  const uint32_t n_to = call.target == ReduceCall::kAll ? N : 1;
  const uint64_t chunk = 2 * common.stage_bytes / kPipelineSlots / N / 16 * 16;
  const uint64_t row_bytes = call.count * sizeof(T);
  const uint64_t step = chunk * GridOf(common);
  const auto whole = [&](uint32_t row) { return RowCount(call, row) * sizeof(T) / 16 * 16; };
  // Bytes of a row in the chunk that begins at byte j.
  const auto in_chunk = [&](uint32_t row, uint64_t j) {
    const uint64_t all = whole(row);
    return j < all ? Min(chunk, all - j) : 0;
  };
  const auto slot = [&](uint32_t member, uint32_t k, uint32_t from) {
    return rounds->StageIn(member) + ((k % kPipelineSlots) * N + from) * chunk;
  };
  const auto push = [&](uint32_t k, uint64_t j) {
    constexpr uint32_t kUnroll = 4;
    const uint32_t units = static_cast<uint32_t>(Min(chunk, row_bytes - j) + 15) / 16;
    const uint32_t all = units * (N - 1);
    for (uint32_t first = backend::ThreadIndex(); first < all;
         first += kUnroll * backend::BlockSize()) {
      Bytes16 values[kUnroll];
      uint8_t* to[kUnroll];
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const uint32_t i = first + u * backend::BlockSize();
        const uint32_t peer = rounds->Rotated(1 + i / units);
        const uint64_t at = uint64_t{i % units} * 16;
        to[u] = nullptr;
        if (i < all && at < in_chunk(peer, j)) {
          values[u] = backend::Load16<CacheHint::kDefault>(call.in + peer * row_bytes + j + at);
          to[u] = slot(peer, k, me) + at;
        }
      }
      IRIS_UNROLL(4)
      for (uint32_t u = 0; u < kUnroll; ++u) {
        if (to[u] != nullptr) backend::Store16<CacheHint::kDefault>(to[u], values[u]);
      }
    }
  };

  const uint64_t signals = rounds->Signals();  // so far
  const uint64_t begin = BlockOf(common) * chunk;
  if (begin < row_bytes) {
    push(0, begin);
    iris::impl::SyncBeforePublish();
    rounds->Signal(signals + 1);
  }
  uint32_t k = 0;
  for (uint64_t j = begin; j < row_bytes; j += step, ++k) {
    if (j + step < row_bytes) push(k + 1, j + step);
    iris::impl::SyncBeforePublish();  // and all have reduced the chunk before
    if (j + step < row_bytes) rounds->Signal(signals + k + 2);
    for (uint32_t i = backend::ThreadIndex(); i < N + n_to; i += backend::BlockSize()) {
      if (i < N) {
        table[i] =
            i == me ? const_cast<uint8_t*>(call.in) + call.row * row_bytes + j : slot(me, k, i);
      } else {
        table[i] = n_to == 1 ? call.out + j
                             : rounds->Out(rounds->Rotated(i - N)) + call.row * row_bytes + j;
      }
    }
    rounds->AwaitSignal(signals + k + 1);
    iris::impl::SyncAfterConsume();
    if (!rounds->Settle()) return;
    ReduceUnits<T, Op, N>(op, table, N, n_to, 0, in_chunk(call.row, j),
                          Share{backend::ThreadIndex(), backend::BlockSize(), call.unroll});
  }
  if (k != 0) rounds->KeepSignals(signals + k);
  // Elements behind the last 16 bytes of this member's row: by one block, as ReduceDirect.
  if (BlockOf(common) != 0 || whole(call.row) == RowCount(call, call.row) * sizeof(T)) return;
  iris::impl::SyncInsideBlock();
  for (uint32_t i = backend::ThreadIndex(); i < N + n_to; i += backend::BlockSize()) {
    if (i < N) {
      table[i] = rounds->In(i) + call.row * row_bytes;
    } else {
      table[i] = n_to == 1 ? call.out : rounds->Out(rounds->Rotated(i - N)) + call.row * row_bytes;
    }
  }
  iris::impl::SyncInsideBlock();
  for (uint64_t at = whole(call.row) + backend::ThreadIndex() * sizeof(T);
       at < RowCount(call, call.row) * sizeof(T); at += backend::BlockSize() * sizeof(T)) {
    ReduceUnit<T, Op, T>(op, table, N, n_to, at);
  }
}

// Whether everything that ReducePushed touches is in the heap and aligned: the same on all members.
IRIS_DEVICE inline bool CanPush(const Common& common, const Rounds& rounds, uint64_t row_bytes) {
  uint64_t bits = row_bytes;
  for (uint32_t m = 0; m < common.size; ++m) {
    bits |= reinterpret_cast<uint64_t>(rounds.In(m)) | reinterpret_cast<uint64_t>(rounds.Out(m));
  }
  return rounds.in_direct() && rounds.out_direct() && (bits & 15) == 0;
}

// Buffers that are not all in the heap and aligned to 16 bytes are reduced in the way of
// ReduceDirect: all members see alike where they lie, in the first round.
template <typename T, typename Op, uint32_t N>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kMaxThreads, 1) void ReducePipeline(IRIS_PARAM Common common,
                                                                   IRIS_PARAM ReduceCall call) {
  IRIS_SHARED(SharedState, shared);
  Rounds rounds(common, &shared, BlockOf(common));
  PullAndReduce<T, Op, N>(common, call, false, rounds, [&](const Op& op, uint8_t** table) {
    if (!CanPush(common, rounds, call.count * sizeof(T))) return false;
    ReducePushed<T, Op, N>(common, call, &rounds, op, table);
    iris::impl::SyncInsideBlock();
    if (rounds.Settle()) rounds.MeetLast(call.target != ReduceCall::kSelf);
    return true;
  });
  rounds.Conclude();
}

namespace {

struct Kernels {
  template <typename T, typename Op, uint32_t N>
  static auto Of() {
    return &ReducePipeline<T, Op, N>;
  }
};

bool Supports(const Shape& shape, uint32_t members) {
  return HasFixedKernel(shape.type, shape.op, members);
}

Result Launch(const Start& start, backend::Stream& stream) {
  const bool scatter = start.request.operation == Operation::kReduceScatter;
  return LaunchKernel(start, kPipelineRow, "ReducePipeline", start.plan.blocks, start.plan.threads,
                      stream, SelectFixed<Kernels>(start.request.type, start.comm.team.size),
                      CommonOf(start), scatter ? WholeRows(start) : Slices(start));
}

}  // namespace

const VariantRow kPipelineRow = {
    Variant::kPipeline,     "pipeline", kAllReduceBit | kReduceScatterBit, &Supports, &FitUnits,
    &PrepareFixed<Kernels>, &Launch,
};

}  // namespace iris::ccl::impl
