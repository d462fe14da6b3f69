// 11b: a product and its communication in one kernel, whose blocks are specialized: most multiply,
// the first ones send. docs/taxonomy.md compares it with the patterns of 08, 11a and 11c.
//
//   iris-run -n 4 -- bazel-bin/examples/11b_overlap_blocks [m n k]
//
// The product is that of 08: each rank makes its columns of D, and all get them. Time runs right:
//
//   blocks that multiply       M0    M1    M2    M3         into this rank's heap
//                                 |     |     |     |       a signal for each tile
//   blocks that send              v S0  v S1  v S2  v S3    from there to all other ranks
//
// What to see: SignalSet and AwaitSignal hand a tile from one block to another, as they do between
// ranks. Blocks that multiply never wait; how many send is a choice (here an eighth). All blocks
// must be on the device at once. In a trace (IRIS_TRACE) "user 1" multiplies, "user 2" sends.
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

// Sends what the other blocks make, tile by tile.
IRIS_DEVICE inline void SendTiles(const iris::DeviceContext& ctx, const Problem& p,
                                  uint32_t senders, uint64_t round) {
  for (uint32_t t = BlockIndex(); t < p.tiles.size(); t += senders) {
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

// `round` counts the launches.
IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product::kThreads,
                               1) void MultiplyAndScatter(iris::DeviceContext ctx, Problem p,
                                                          uint32_t senders, uint64_t round) {
  IRIS_SHARED(Product::Shared, shared);
  if (BlockIndex() < senders) return SendTiles(ctx, p, senders, round);
  Product product(shared);
  for (uint32_t t = BlockIndex() - senders; t < p.tiles.size(); t += GridSize() - senders) {
    const iris::TraceSpan span(ctx, kMultiply, Block{});
    const iris::GridTile tile = p.tiles[t];
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

iris::Status Run(Problem p) {
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
  const uint32_t all = iris::backend::MultiprocessorCount();
  const uint32_t senders = all / 8 + 1;
  const uint32_t grid = all > senders ? all : senders + 1;

  uint64_t round = 0;
  const auto multiply = [&] {
    return iris::Launch({grid, Product::kThreads}, stream, MultiplyAndScatter, ctx, p, senders,
                        ++round);
  };
  IRIS_ASSIGN_OR_RETURN(const auto time, iris::DoBench(context, stream, multiply,
                                                       {.n_warmup = 1, .n_repeat = kRepeats}));
  IRIS_RETURN_IF_ERROR(monitor.Check());  // says which signal did not come
  IRIS_RETURN_IF_ERROR(example::CheckGemm(stream, p.d, p.m, p.n, p.k));
  if (ctx.rank == 0) std::printf("result ok figure %.1f us\n", time.count());
  return iris::OkStatus();
}

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const example::GemmWords words = example::ParseGemm(argc, argv);
  const iris::Status status = Run({words.m, words.n, words.k});
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
