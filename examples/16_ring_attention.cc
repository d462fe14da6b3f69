// 16: ring attention. Keys and values travel around a ring of ranks while every rank computes.
//
//   iris-run -n 4 -- bazel-bin/examples/16_ring_attention --tokens 32768 --causal
//
//        rank r - 1                   rank r                        rank r + 1
//     K, V of r - 1 - s  ------>  K, V of rank r - s   ------->  K, V of r + 1 - s     step s
//      put + signal        |      into ring[s % 2]        |
//                          |   Attend: some blocks send what this step computes with on to rank
//                          v   r + 1, all others add it to (o, m, l) of their queries
//                       ring[s % 2] is what step s + 1 computes with and sends
//
// What to see: the kernel Begin, one block before each step, tells rank r - 1 that step s - 1 is
// over here, so that it may overwrite ring[s % 2], and waits for what rank r - 1 has put. So no
// block that computes ("user 1" in a trace) waits. Token t belongs to rank t % n_ranks: with
// --causal, every rank then has about half of the pairs in every step.
#include "examples/attention_data.h"
#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/tile_attention.h"
#include "iris/wait_monitor.h"

using example::MakeLines, iris::Block;
using iris::backend::BlockIndex, iris::backend::ThreadIndex;

constexpr uint32_t kDim = 128;  // of a head
using T = iris::Bfloat16;
using Attention = iris::TileAttention<T, kDim>;
constexpr uint32_t kThreads = Attention::kThreads, kSenders = 8;  // senders: blocks

struct Problem {
  uint32_t heads, tokens, tiles;  // tokens: of each rank; tiles: of a head's queries
  bool causal;
  const T* q;              // [heads][tokens][kDim], of this rank
  const T* home;           // [keys, values][heads][tokens][kDim], of this rank
  T* ring[2];              // the same, of other ranks
  Attention::State found;  // of all queries
  uint64_t *begun, *came;  // signals: steps that the next rank has begun; blocks' puts that came
  iris::WaitReport report;
};

// One block. `step` counts over all rounds, and `puts` is how many have to have come before it.
IRIS_KERNEL void Begin(iris::DeviceContext ctx, Problem p, uint64_t step, uint64_t puts) {
  const uint32_t previous = (ctx.rank + ctx.n_ranks - 1) % ctx.n_ranks;
  if (ThreadIndex() == 0) iris::SignalSet(ctx, previous, p.begun, step + 1);
  (void)iris::AwaitSignal(ctx, previous, p.came, puts, p.report, Block{});
}

// A block's share of the keys and values that this step computes with, to the next rank.
IRIS_DEVICE inline void Send(const iris::DeviceContext& ctx, const Problem& p, const T* from, T* to,
                             uint64_t step) {
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  if (!iris::AwaitSignal(ctx, next, p.begun, step + 1, p.report, Block{})) return;
  const iris::Share lines = iris::ShareOf(uint64_t{2} * p.heads * p.tokens, kSenders, BlockIndex());
  iris::PutSignal(ctx, next, to + lines.begin * kDim, from + lines.begin * kDim, lines.count * kDim,
                  {p.came, 1, iris::SignalOp::kAdd}, Block{});
}

// One step. The first n_senders blocks send; each other one has a tile of the queries of a head,
// whose attention to the keys and values in `from`, those of rank `owner`, it adds to what it has.
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kThreads, 1) void Attend(iris::DeviceContext ctx, Problem p,
                                                        const T* from, T* to, uint64_t step,
                                                        uint32_t owner, uint32_t n_senders) {
  if (BlockIndex() < n_senders) return Send(ctx, p, from, to, step);
  const iris::TraceSpan span(ctx, /*tag=*/1, Block{}, owner);
  const uint32_t block = BlockIndex() - n_senders, head = block / p.tiles;
  const uint32_t row = (p.tiles - 1 - block % p.tiles) * Attention::kRows;  // the longest first
  const uint64_t keys = uint64_t{head} * p.tokens, line = keys + row;
  const uint64_t values = keys + uint64_t{p.heads} * p.tokens;
  const Attention::State mine = {p.found.o + line * kDim, p.found.m + line, p.found.l + line};
  Attention attention(iris::backend::DynamicShared());
  attention.SetQueries(p.q + line * kDim, p.tokens - row);
  if (owner != ctx.rank) attention.Resume(mine);  // this rank's own keys come first
  // With the mask, query i of this rank sees the owner's keys up to i, or those before i.
  const uint32_t seen = p.causal ? row + (owner > ctx.rank ? 0 : 1) : p.tokens;
  attention.Add(from + keys * kDim, from + values * kDim, p.tokens, seen);
  attention.Store(mine, /*divide=*/owner == (ctx.rank + 1) % ctx.n_ranks);  // its keys come last
}

// Puts a step on the stream: with the ring, or its computing alone.
iris::Status PutStep(iris::Stream& stream, const iris::DeviceContext& ctx, const Problem& p,
                     uint64_t step, bool alone) {
  const uint32_t n = ctx.n_ranks, s = step % n, n_senders = alone || s + 1 == n ? 0 : kSenders;
  const uint64_t puts = (step / n * (n - 1) + s) * kSenders;
  if (!alone) IRIS_RETURN_IF_ERROR(iris::Launch({1, kThreads}, stream, Begin, ctx, p, step, puts));
  const T* const from = s == 0 || alone ? p.home : p.ring[(s - 1) % 2];
  const iris::LaunchConfig all = {n_senders + p.heads * p.tiles, kThreads, Attention::kSharedBytes};
  return iris::Launch(all, stream, Attend, ctx, p, from, p.ring[s % 2], step,
                      (ctx.rank + n - s) % n, n_senders);
}

iris::Status Run(const example::RingOptions& options) {
  const uint64_t all = uint64_t{2} * options.heads * options.tokens * kDim;  // keys and values
  const uint64_t heap_bytes = 2 * all * sizeof(T) + (16 << 20);
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = heap_bytes}));
  const iris::DeviceContext& ctx = context.device_context();
  const uint32_t n_ranks = ctx.n_ranks, tokens = options.tokens / n_ranks;
  IRIS_RETURN_IF_ERROR(example::CheckTokens(options, n_ranks));
  const uint64_t lines = uint64_t{options.heads} * tokens, size = lines * kDim;
  const example::Share share = {kDim, options.heads, options.tokens, tokens, ctx.rank, n_ranks};
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto q, MakeLines<T>(context, stream, example::kQueries, share));
  IRIS_ASSIGN_OR_RETURN(const auto home, MakeLines<T>(context, stream, example::kKeys, share, 2));
  IRIS_ASSIGN_OR_RETURN(const auto ring, context.Allocate<T>(4 * size, "ring"));
  IRIS_ASSIGN_OR_RETURN(const auto signals, context.Allocate<uint64_t>(2, "signals"));
  IRIS_ASSIGN_OR_RETURN(const auto o, iris::DeviceArray<float>::Create(context, size + 2 * lines));
  IRIS_ASSIGN_OR_RETURN(const auto monitor, iris::WaitMonitor::Create(context));
  Problem p;
  p.heads = options.heads, p.tokens = tokens, p.causal = options.causal, p.q = q, p.home = home;
  p.tiles = (tokens + Attention::kRows - 1) / Attention::kRows;
  p.ring[0] = ring.get(), p.ring[1] = ring.get() + 2 * size;
  p.found = {o, o + size, o + size + lines};
  p.begun = signals.get(), p.came = p.begun + 1, p.report = monitor;
  IRIS_RETURN_IF_ERROR(iris::PrepareKernel(Begin));
  IRIS_RETURN_IF_ERROR(iris::PrepareKernel(Attend, Attention::kSharedBytes));
  double us[2];
  for (const bool alone : {true, false}) {
    uint64_t step = 0;
    const auto round = [&]() -> iris::Status {
      for (uint32_t i = 0; i < n_ranks; ++i) {
        IRIS_RETURN_IF_ERROR(PutStep(stream, ctx, p, step++, alone));
      }
      return iris::Status();
    };
    IRIS_ASSIGN_OR_RETURN(
        const auto time,
        iris::DoBench(context, stream, round, {.n_warmup = 1, .n_repeat = options.rounds}));
    us[alone] = time.count();
  }
  IRIS_RETURN_IF_ERROR(monitor.Check());  // names a rank that did not come
  IRIS_RETURN_IF_ERROR(example::CheckRing<T>(stream, o, options, share));
  IRIS_RETURN_IF_ERROR(context.Barrier());
  if (ctx.rank == 0) example::PrintRing(us[false], us[true]);
  return iris::Status();
}

int main(int argc, char** argv) { return example::Report(Run(example::ParseRing(argc, argv))); }
