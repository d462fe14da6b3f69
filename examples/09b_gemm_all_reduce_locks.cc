// 09b: a product whose k is split over the ranks, and its all-reduce in one shot, with locks. Each
// rank makes a part of every element of D, as in 09a, where atomics add the parts.
//
//   iris-run -n 4 -- bazel-bin/examples/09b_gemm_all_reduce_locks [m n k]
//
//   rank 0:  A0 x B0 -- a tile --> parts of 0, unlock --+-- load, add --> D of rank 0
//                                                         X
//   rank 1:  A1 x B1 -- a tile --> parts of 1, unlock --+-- load, add --> D of rank 1
//
// What to see: a lock is a signal that counts rounds, so that nobody has to lock it again. All
// ranks add the parts in the same order, which gives all the same bits in every run. StoreSums
// writes the registers of a block as they are, and AddSums adds them to those of another. In a
// trace (IRIS_TRACE) "user 1" multiplies, "user 2" reduces.
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
using Product = iris::TileProduct<Bfloat16>;

constexpr uint64_t kMultiply = 1, kReduce = 2;  // what the spans are called in a trace
constexpr uint32_t kRepeats = 10;
constexpr uint32_t kTileElements = Product::kRows * Product::kColumns;

// D[m, n] = the sum over the ranks of A[m, k_mine] B[k_mine, n].
struct Problem {
  uint32_t m, n, k, k_mine;
  const Bfloat16* a;        // [m, k_mine]
  const Bfloat16* b;        // [k_mine, n]
  float* d;                 // [m, n], symmetric
  float* parts;             // of this rank, tile behind tile; symmetric
  uint64_t* unlocked;       // [tiles, ranks]: the last round whose part is there
  iris::TileGrid tiles;     // of D
  iris::WaitReport report;  // of locks that are not opened
};

// Gives the part of this rank, and takes those of all.
IRIS_DEVICE inline bool ReduceParts(const iris::DeviceContext& ctx, const Problem& p, uint32_t t,
                                    uint64_t round, Product& product) {
  float* const part = p.parts + uint64_t{t} * kTileElements;
  product.StoreSums(part);
  iris::backend::BlockSync();  // all of the part is written
  for (uint32_t i = iris::backend::ThreadIndex(); i < ctx.n_ranks; i += Product::kThreads) {
    iris::SignalSet(ctx, i, &p.unlocked[t * ctx.n_ranks + ctx.rank], round);
  }
  product.Clear();
  for (uint32_t peer = 0; peer < ctx.n_ranks; ++peer) {
    const uint64_t* const lock = &p.unlocked[t * ctx.n_ranks + peer];
    if (!iris::AwaitSignal(ctx, peer, lock, round, p.report, Block{})) return false;
    product.AddSums(iris::Translate(ctx, peer, part));
  }
  const iris::GridTile tile = p.tiles[t];
  product.ForEachStrip([&](uint32_t below, const float* strip) {
    iris::StoreTile(ctx, ctx.rank, p.d + tile.Offset(below, p.n),
                    tile.Rows(below, Product::kStripRows, p.n), strip, Block{});
  });
  return true;
}

// `round` counts the launches. Between two the ranks meet, because `parts` is used again.
IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product::kThreads, 1) void MultiplyAndReduce(iris::DeviceContext ctx,
                                                                            Problem p,
                                                                            uint64_t round) {
  IRIS_SHARED(Product::Shared, shared);
  Product product(shared);
  for (uint32_t t = iris::backend::BlockIndex(); t < p.tiles.size();
       t += iris::backend::GridSize()) {
    const iris::GridTile tile = p.tiles[t];
    {
      const iris::TraceSpan span(ctx, kMultiply, Block{});
      product.Multiply({p.a + uint64_t{tile.row} * p.k_mine, p.k_mine, tile.rows},
                       {p.b + tile.column, p.n, p.k_mine}, false, tile.columns, p.k_mine);
    }
    const iris::TraceSpan span(ctx, kReduce, Block{});
    if (!ReduceParts(ctx, p, t, round, product)) return;
  }
}

iris::Status Run(Problem p) {
  const uint64_t bytes = (uint64_t{p.m} + 128) * (p.n + 128) * 2 * sizeof(float) + (16 << 20);
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = bytes}));
  const iris::DeviceContext& ctx = context.device_context();
  IRIS_RETURN_IF_ERROR(example::CheckSizes(p.m, p.n, p.k, 'k', ctx.n_ranks));
  p.k_mine = p.k / ctx.n_ranks;
  p.tiles = {p.m, p.n, Product::kRows, Product::kColumns};
  const uint64_t first = uint64_t{ctx.rank} * p.k_mine;
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto a, example::GemmA(context, stream, p.m, p.k_mine, 0, first));
  IRIS_ASSIGN_OR_RETURN(const auto b, example::GemmB(context, stream, p.k_mine, p.n, first));
  IRIS_ASSIGN_OR_RETURN(const auto d, context.Allocate<float>(uint64_t{p.m} * p.n, "d"));
  IRIS_ASSIGN_OR_RETURN(const auto parts,
                        context.Allocate<float>(uint64_t{p.tiles.size()} * kTileElements, "parts"));
  IRIS_ASSIGN_OR_RETURN(const auto unlocked,
                        context.Allocate<uint64_t>(p.tiles.size() * ctx.n_ranks, "unlocked"));
  IRIS_ASSIGN_OR_RETURN(const auto monitor, iris::WaitMonitor::Create(context));
  p.a = a, p.b = b, p.d = d.get(), p.parts = parts.get();
  p.unlocked = unlocked.get(), p.report = monitor;

  uint64_t round = 0;
  const auto multiply = [&] {
    return iris::Launch({iris::backend::MultiprocessorCount(), Product::kThreads}, stream,
                        MultiplyAndReduce, ctx, p, ++round);
  };
  IRIS_ASSIGN_OR_RETURN(const auto time, iris::DoBench(context, stream, multiply,
                                                       {.n_warmup = 1, .n_repeat = kRepeats}));
  IRIS_RETURN_IF_ERROR(monitor.Check());  // names a rank that did not come
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
