// 11a: a product and its communication in two kernels: one after the other, or at the same time on
// two streams. 08, 11b and 11c do both in one kernel; docs/taxonomy.md compares the five patterns.
//
//   iris-run -n 4 -- bazel-bin/examples/11a_overlap_streams bulk|streams [m n k]
//
// The product is that of 08: each rank makes its columns of D, and all get them. Time runs right:
//
//   bulk      a stream    | M0 M1 M2 M3 | S0 S1 S2 S3 |     all tiles are made, then all are sent
//
//   streams   a stream    | M0 M1 M2 M3 |                   the producer signals each tile,
//             another     |    S0 S1 S2 S3 |                and the consumer waits for it
//
// What to see: the kernels of both patterns are the same. On one stream the signals are there when
// the second kernel begins. On two, both kernels must have room on the device at once, so each
// gets a part of its multiprocessors. In a trace (IRIS_TRACE) "user 1" multiplies, "user 2" sends.
#include <cstdio>

#include "examples/gemm_data.h"
#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/tile_product.h"
#include "iris/wait_monitor.h"

using iris::Bfloat16, iris::Block;
using iris::backend::BlockIndex, iris::backend::GridSize;
using Product = iris::TileProduct<Bfloat16>;

constexpr uint64_t kMultiply = 1, kSend = 2;  // what the spans are called in a trace
constexpr uint32_t kRepeats = 10;

// D[m, n] = A[m, k] B[k, n]. This rank makes n_mine columns, from first_column on.
struct Problem {
  uint32_t m, n, k, n_mine, first_column;
  const Bfloat16* a;        // [m, k]
  const Bfloat16* b;        // [k, n_mine]
  Bfloat16* d;              // [m, n], symmetric
  uint64_t* ready;          // a signal for each tile: how often it has been made
  iris::TileGrid tiles;     // of this rank's columns of D
  iris::WaitReport report;  // of signals that do not come
};

IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product::kThreads, 1) void Multiply(iris::DeviceContext ctx,
                                                                   Problem p, uint64_t round) {
  IRIS_SHARED(Product::Shared, shared);
  for (uint32_t t = BlockIndex(); t < p.tiles.size(); t += GridSize()) {
    const iris::TraceSpan span(ctx, kMultiply, Block{});
    const iris::GridTile tile = p.tiles[t];
    Product product(shared);
    product.Multiply({p.a + uint64_t{tile.row} * p.k, p.k, tile.rows},
                     {p.b + tile.column, p.n_mine, p.k}, false, tile.columns, p.k);
    product.ForEachStrip<Bfloat16>([&](uint32_t below, const Bfloat16* strip) {
      iris::StoreTile(ctx, ctx.rank, p.d + p.first_column + tile.Offset(below, p.n),
                      tile.Rows(below, Product::kStripRows, p.n), strip, Block{});
    });
    iris::backend::BlockSync();  // all of the tile is written
    if (iris::backend::ThreadIndex() == 0) iris::SignalSet(ctx, ctx.rank, &p.ready[t], round);
  }
}

IRIS_KERNEL IRIS_KERNEL_BOUNDS(256, 1) void Scatter(iris::DeviceContext ctx, Problem p,
                                                    uint64_t round) {
  for (uint32_t t = BlockIndex(); t < p.tiles.size(); t += GridSize()) {
    if (!iris::AwaitSignal(ctx, ctx.rank, &p.ready[t], round, p.report, Block{})) return;
    const iris::TraceSpan span(ctx, kSend, Block{});
    const iris::GridTile tile = p.tiles[t];
    Bfloat16* const from = p.d + p.first_column + tile.Offset(0, p.n);
    for (uint32_t i = 1; i < ctx.n_ranks; ++i) {
      iris::PutTile(ctx, (ctx.rank + i) % ctx.n_ranks, from, tile.Rows(0, Product::kRows, p.n),
                    from, {p.n}, Block{});
    }
  }
}

iris::Status Run(bool two_streams, Problem p) {
  IRIS_ASSIGN_OR_RETURN(
      iris::Context context,
      iris::Context::Create({.heap_bytes = (16 << 20) + uint64_t{p.m} * p.n * sizeof(Bfloat16)}));
  const iris::DeviceContext& ctx = context.device_context();
  IRIS_RETURN_IF_ERROR(example::CheckSizes(p.m, p.n, p.k, 'n', ctx.n_ranks));
  p.n_mine = p.n / ctx.n_ranks;
  p.first_column = ctx.rank * p.n_mine;
  p.tiles = {p.m, p.n_mine, Product::kRows, Product::kColumns};
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto a, example::GemmA(context, stream, p.m, p.k));
  IRIS_ASSIGN_OR_RETURN(const auto b,
                        example::GemmB(context, stream, p.k, p.n_mine, 0, p.first_column));
  IRIS_ASSIGN_OR_RETURN(const auto d, context.Allocate<Bfloat16>(uint64_t{p.m} * p.n, "d"));
  IRIS_ASSIGN_OR_RETURN(const auto ready, context.Allocate<uint64_t>(p.tiles.size(), "ready"));
  IRIS_ASSIGN_OR_RETURN(const auto monitor, iris::WaitMonitor::Create(context));
  p.a = a, p.b = b, p.d = d.get(), p.ready = ready.get(), p.report = monitor;
  IRIS_ASSIGN_OR_RETURN(iris::Stream other, iris::Stream::Create(context));
  iris::Stream& second = two_streams ? other : stream;
  IRIS_RETURN_IF_ERROR(iris::PrepareKernel(Scatter));  // it is launched beside another kernel
  // Of two kernels at once, an eighth of the multiprocessors sends. One after the other has all.
  const uint32_t all = iris::backend::MultiprocessorCount();
  const uint32_t senders = two_streams ? all / 8 + 1 : all;
  const uint32_t makers = two_streams && all > senders ? all - senders : all;

  IRIS_ASSIGN_OR_RETURN(iris::Event sent, iris::Event::Create(context));
  uint64_t round = 0;
  const auto both = [&]() -> iris::Status {
    IRIS_RETURN_IF_ERROR(
        iris::Launch({makers, Product::kThreads}, stream, Multiply, ctx, p, ++round));
    IRIS_RETURN_IF_ERROR(iris::Launch({senders, 256}, second, Scatter, ctx, p, round));
    IRIS_RETURN_IF_ERROR(sent.Record(second));
    return stream.Wait(sent);  // whose work is measured
  };
  IRIS_ASSIGN_OR_RETURN(
      const auto time, iris::DoBench(context, stream, both, {.n_warmup = 1, .n_repeat = kRepeats}));
  IRIS_RETURN_IF_ERROR(monitor.Check());  // says which signal did not come
  IRIS_RETURN_IF_ERROR(example::CheckGemm(stream, p.d, p.m, p.n, p.k));
  if (ctx.rank == 0) std::printf("result ok figure %.1f us\n", time.count());
  return iris::OkStatus();
}

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const example::GemmWords words = example::ParseGemm(argc, argv, {"bulk", "streams"});
  const iris::Status status = Run(words.pattern == "streams", {words.m, words.n, words.k});
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
