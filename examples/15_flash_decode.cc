// 15: flash decode. One step of attention over a cache of keys and values that is too long for one
// device: the sequence is split over the ranks, and each rank gets the whole result.
//
//   iris-run -n 4 -- bazel-bin/examples/15_flash_decode --heads 32 --tokens 65536
//
//            rank 0                        rank 1                ...
//   cache    tokens 0 .. n/2               tokens n/2 .. n           of all heads
//               |  Decode: a block for each head and split of the tokens
//   parts    (o, m, l) of its tokens       (o, m, l) of its tokens
//               |  \______________________ ____/ |   put to all ranks, with a signal each
//               |  ______________________ X____  |
//               v /                            \ v
//            Combine: a block for each head waits, and adds all parts in the order of the tokens
//   output   all heads                     all heads, the same bits
//
// What to see: the part of some tokens (<iris/tile_attention.h>) is a few hundred bytes, and these
// travel instead of the cache. Parts have two slots, used in turn: a rank that is in round r + 2
// has combined round r + 1, so all ranks have begun that, and have combined round r.
#include <algorithm>
#include <cstdio>

#include "examples/attention_data.h"
#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/tile_attention.h"
#include "iris/wait_monitor.h"

using example::MakeLines;
using iris::backend::BlockIndex, iris::backend::ThreadIndex;
template <uint32_t kDim>
using Part = iris::AttentionPart<kDim>;

constexpr uint32_t kThreads = 128;

struct Problem {
  uint32_t shared_by, splits;  // heads that share keys and values; of a rank's tokens
  uint64_t own;                // tokens of this rank
};

// q: [heads][kDim]; k and v: [heads / shared_by][own][kDim]. slots: [heads][ranks][splits] parts,
// and `ready` as many signals.
template <typename T, uint32_t kDim>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kThreads, 1) void Decode(iris::DeviceContext ctx, const T* q,
                                                        const T* k, const T* v, Problem p,
                                                        Part<kDim>* slots, uint64_t* ready,
                                                        uint64_t round) {
  using Attention = iris::RowAttention<T, kDim>;
  static_assert(kThreads == Attention::kThreads);
  IRIS_SHARED(Part<kDim>[Attention::kGroups], shared);
  const uint32_t head = BlockIndex() / p.splits, split = BlockIndex() % p.splits;
  const iris::Share mine = iris::ShareOf(p.own, p.splits, split);
  const uint64_t at = (head / p.shared_by * p.own + mine.begin) * kDim;
  const uint64_t slot = (uint64_t{head} * ctx.n_ranks + ctx.rank) * p.splits + split;
  Attention::Attend(q + head * kDim, k + at, v + at, mine.count, &shared[0], slots + slot);
  iris::backend::BlockSync();  // the part is whole
  if (ThreadIndex() == 0) iris::SignalSet(ctx, ctx.rank, ready + slot, round);
  for (uint32_t i = 1; i < ctx.n_ranks; ++i) {
    iris::PutSignal(ctx, (ctx.rank + i) % ctx.n_ranks, slots + slot, slots + slot, 1,
                    {ready + slot, round}, iris::Block{});
  }
}

// output: [heads][kDim].
template <uint32_t kDim>
IRIS_KERNEL void Combine(iris::DeviceContext ctx, const Part<kDim>* slots, const uint64_t* ready,
                         uint32_t splits, uint64_t round, float* output, iris::WaitReport report) {
  IRIS_SHARED(Part<kDim>[1], all);
  const uint32_t n_parts = ctx.n_ranks * splits;
  const uint64_t first = uint64_t{BlockIndex()} * n_parts;
  for (uint32_t i = ThreadIndex(); i < n_parts; i += kThreads) {
    // If one does not come, the host does not use the output.
    (void)iris::AwaitSignal(ctx, i / splits, ready + first + i, round, report);
  }
  iris::backend::BlockSync();  // the parts are there
  iris::MergeParts(slots + first, n_parts, &all[0]);
  iris::backend::BlockSync();
  const uint32_t d = ThreadIndex();
  if (d < kDim) output[BlockIndex() * kDim + d] = all[0].o[d] / all[0].l;
}

template <typename T, uint32_t kDim>
iris::Status Run(const example::DecodeOptions& options) {
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = 64 << 20}));
  const iris::DeviceContext& ctx = context.device_context();
  const uint32_t n_ranks = ctx.n_ranks, heads = options.heads, kv_heads = options.kv_heads;
  if (heads % kv_heads != 0) {
    return {iris::StatusCode::kInvalidArgument, "--kv-heads must divide --heads"};
  }
  // As many blocks as four on each multiprocessor, unless they get too few tokens.
  const uint32_t blocks = 4 * iris::backend::MultiprocessorCount();
  const uint64_t fit = std::min<uint64_t>(blocks / heads, options.tokens / n_ranks / 64);
  IRIS_ASSIGN_OR_RETURN(const uint64_t chosen, context.BroadcastValue(fit, /*root=*/0));
  const uint32_t splits = options.splits ? options.splits : std::max<uint32_t>(1, chosen);
  const iris::Share mine = iris::ShareOf(options.tokens, n_ranks, ctx.rank);
  const Problem p = {heads / kv_heads, splits, mine.count};
  const uint32_t slots_each = heads * n_ranks * splits;

  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto slots, context.Allocate<Part<kDim>>(2 * slots_each, "parts"));
  IRIS_ASSIGN_OR_RETURN(const auto ready, context.Allocate<uint64_t>(2 * slots_each, "ready"));
  const example::Share one = {kDim, heads, 1, 1, 0, 1};  // of each head
  const example::Share share = {kDim, kv_heads, options.tokens, mine.count, mine.begin, 1};
  IRIS_ASSIGN_OR_RETURN(const auto q, MakeLines<T>(context, stream, example::kQueries, one));
  IRIS_ASSIGN_OR_RETURN(const auto k, MakeLines<T>(context, stream, example::kKeys, share));
  IRIS_ASSIGN_OR_RETURN(const auto v, MakeLines<T>(context, stream, example::kValues, share));
  IRIS_ASSIGN_OR_RETURN(const auto out, iris::HostArray<float>::Create(context, heads * kDim));
  IRIS_ASSIGN_OR_RETURN(const auto monitor, iris::WaitMonitor::Create(context));

  uint64_t round = 0;
  const auto decode = [&]() -> iris::Status {
    ++round;
    Part<kDim>* const parts = slots.get() + round % 2 * slots_each;
    uint64_t* const signals = ready.get() + round % 2 * slots_each;
    IRIS_RETURN_IF_ERROR(iris::Launch({heads * splits, kThreads}, stream, Decode<T, kDim>, ctx, q,
                                      k, v, p, parts, signals, round));
    return iris::Launch({heads, kThreads}, stream, Combine<kDim>, ctx, parts, signals, splits,
                        round, out, monitor);
  };
  IRIS_ASSIGN_OR_RETURN(
      const auto time,
      iris::DoBench(context, stream, decode, {.n_warmup = 1, .n_repeat = options.rounds}));
  IRIS_RETURN_IF_ERROR(monitor.Check());  // names a rank that did not come

  for (uint32_t head = ctx.rank; head < heads; head += n_ranks) {  // the ranks share the heads
    const uint64_t line = head / p.shared_by * options.tokens;
    IRIS_RETURN_IF_ERROR(example::CheckAttention<T>(head, line, options.tokens, kDim,
                                                    out + head * kDim, /*bound=*/1e-4));
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());
  if (ctx.rank == 0) {
    std::printf("%u heads of %u in %s on %u ranks, %u splits on each\n", heads, kDim,
                options.dtype.c_str(), n_ranks, splits);
    std::printf("result ok figure %.1f us\n", time.count());
  }
  return iris::Status();
}

int main(int argc, char** argv) {
  const example::DecodeOptions options = example::ParseDecode(argc, argv);
  const bool half = options.dtype == "f16", wide = options.dim == 128;
  return example::Report(
      half ? (wide ? Run<iris::Half, 128>(options) : Run<iris::Half, 64>(options))
           : (wide ? Run<iris::Bfloat16, 128>(options) : Run<iris::Bfloat16, 64>(options)));
}
