// 08: a product whose tiles go to all ranks as they are made. Each rank has A and its own columns
// of B; afterwards each has all of D = A B. Of the patterns of overlap it is the sequential one:
// each block multiplies a tile, then sends it. 11a, 11b and 11c have the others.
//
//   iris-run -n 4 -- bazel-bin/examples/08_gemm_all_scatter [m n k]
//
//        rank 0: A  x  B, columns of 0          rank 1: A  x  B, columns of 1
//                |  tile by tile                        |  tile by tile
//                v                                      v
//          +-----------+ ---- store to all ---->  +-----------+
//        D |  0  |  1  |                        D |  0  |  1  |
//          +-----------+ <---- store to all ----  +-----------+
//
// What to see: TileProduct multiplies with the matrix instruction of the device, StoreTile writes
// what a block has in shared memory into any heap. There is no second kernel and no buffer: the
// stores of a tile travel while other blocks multiply. A trace (IRIS_TRACE) shows both: "user 1"
// multiplies, "user 2" stores.
#include <cstdio>

#include "examples/gemm_data.h"
#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/tile_product.h"

using iris::Bfloat16, iris::Block;
using Product = iris::TileProduct<Bfloat16>;

constexpr uint64_t kMultiply = 1, kStore = 2;  // what the spans are called in a trace
constexpr uint32_t kRepeats = 10;

// D[m, n] = A[m, k] B[k, n]. This rank makes n_mine columns, from first_column on.
struct Problem {
  uint32_t m, n, k, n_mine, first_column;
  const Bfloat16* a;     // [m, k]
  const Bfloat16* b;     // [k, n_mine]
  Bfloat16* d;           // [m, n], symmetric
  iris::TileGrid tiles;  // of this rank's columns of D
};

IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product::kThreads,
                               1) void MultiplyAndScatter(iris::DeviceContext ctx, Problem p) {
  IRIS_SHARED(Product::Shared, shared);
  Product product(shared);
  for (uint32_t t = iris::backend::BlockIndex(); t < p.tiles.size();
       t += iris::backend::GridSize()) {
    const iris::GridTile tile = p.tiles[t];
    {
      const iris::TraceSpan span(ctx, kMultiply, Block{});
      product.Multiply({p.a + uint64_t{tile.row} * p.k, p.k, tile.rows},
                       {p.b + tile.column, p.n_mine, p.k}, false, tile.columns, p.k);
    }
    const iris::TraceSpan span(ctx, kStore, Block{});
    product.ForEachStrip<Bfloat16>([&](uint32_t below, const Bfloat16* strip) {
      const iris::Tile rows = tile.Rows(below, Product::kStripRows, p.n);
      Bfloat16* const to = p.d + p.first_column + tile.Offset(below, p.n);
      for (uint32_t i = 0; i < ctx.n_ranks; ++i) {  // each begins with its own heap
        iris::StoreTile(ctx, (ctx.rank + i) % ctx.n_ranks, to, rows, strip, Block{});
      }
    });
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
  p.a = a, p.b = b, p.d = d.get();

  const auto multiply = [&] {
    return iris::Launch({iris::backend::MultiprocessorCount(), Product::kThreads}, stream,
                        MultiplyAndScatter, ctx, p);
  };
  IRIS_ASSIGN_OR_RETURN(const auto time, iris::DoBench(context, stream, multiply,
                                                       {.n_warmup = 1, .n_repeat = kRepeats}));
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
