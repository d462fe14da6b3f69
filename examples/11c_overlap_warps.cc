// 11c: a product and its communication in one kernel, whose warps are specialized: in each block
// most multiply a tile, the last ones send the tile before. docs/taxonomy.md compares the patterns.
//
//   iris-run -n 4 -- bazel-bin/examples/11c_overlap_warps [m n k]
//
// The product is that of 08: each rank makes its columns of D, and all get them. Time runs right:
//
//   a block:   warps that multiply    M0 | M1 | M2 | M3 |        into this rank's heap
//              warps that send           | S0 | S1 | S2 | S3     from there to all other ranks
//                                        ^    ^    ^    ^
//                                    BlockSync: the tile is complete
//
// What to see: no signal is needed, since it is one block's tile. A multiplication syncs its block
// many times; Accompany makes these syncs in the warps that send, and calls them for a part of the
// rows in between. In a trace (IRIS_TRACE) "user 1" multiplies, "user 2" sends.
#include <cstdio>

#include "examples/gemm_data.h"
#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/tile_product.h"

using iris::Bfloat16;
using iris::backend::BlockIndex, iris::backend::GridSize;
using iris::backend::WarpIndex;
using Product = iris::TileProduct<Bfloat16>;

constexpr uint64_t kMultiply = 1, kSend = 2;  // what the spans are called in a trace
constexpr uint32_t kRepeats = 10;
constexpr uint32_t kWarps = Product::kThreads / iris::backend::Traits::kWarpThreads;
constexpr uint32_t kSendWarps = 2;  // beside those that multiply

// D[m, n] = A[m, k] B[k, n]. This rank makes n_mine columns, from first_column on.
struct Problem {
  uint32_t m, n, k, n_mine, first_column;
  const Bfloat16* a;     // [m, k]
  const Bfloat16* b;     // [k, n_mine]
  Bfloat16* d;           // [m, n], symmetric
  iris::TileGrid tiles;  // of this rank's columns of D
};

// By the warps that multiply.
IRIS_DEVICE inline void MakeTile(const iris::DeviceContext& ctx, const Problem& p, Product& product,
                                 uint32_t t) {
  const iris::TraceSpan span(ctx, kMultiply, iris::Block{});
  const iris::GridTile tile = p.tiles[t];
  product.Multiply({p.a + uint64_t{tile.row} * p.k, p.k, tile.rows},
                   {p.b + tile.column, p.n_mine, p.k}, false, tile.columns, p.k);
  product.ForEachStrip<Bfloat16>([&](uint32_t below, const Bfloat16* strip) {
    constexpr uint32_t kEach = Product::kStripRows / kWarps;  // rows of a warp
    const uint32_t first = below + WarpIndex() * kEach;
    iris::StoreTile(ctx, ctx.rank, p.d + p.first_column + tile.Offset(first, p.n),
                    tile.Rows(first, kEach, p.n), strip + WarpIndex() * kEach * Product::kColumns,
                    iris::Warp{});
  });
}

// By the others: all of tile t in `steps` steps, of which this is one.
IRIS_DEVICE inline void SendPart(const iris::DeviceContext& ctx, const Problem& p, uint32_t t,
                                 uint32_t step, uint32_t steps) {
  const iris::Share part =
      iris::ShareOf(Product::kRows, steps * kSendWarps, step * kSendWarps + WarpIndex() - kWarps);
  const auto first = static_cast<uint32_t>(part.begin), n = static_cast<uint32_t>(part.count);
  const iris::GridTile tile = p.tiles[t];
  Bfloat16* const from = p.d + p.first_column + tile.Offset(first, p.n);
  for (uint32_t i = 1; i < ctx.n_ranks; ++i) {
    iris::PutTile(ctx, (ctx.rank + i) % ctx.n_ranks, from, tile.Rows(first, n, p.n), from, {p.n},
                  iris::Warp{});
  }
}

constexpr uint32_t kThreads = (kWarps + kSendWarps) * iris::backend::Traits::kWarpThreads;
IRIS_KERNEL IRIS_KERNEL_BOUNDS(kThreads, 1) void MultiplyAndScatter(iris::DeviceContext ctx,
                                                                    Problem p) {
  IRIS_SHARED(Product::Shared, shared);
  Product product(shared);
  const uint32_t tiles = p.tiles.size();
  uint32_t made = tiles;  // the tile that this block made last: none yet
  for (uint32_t t = BlockIndex(); t < tiles || made < tiles; t += GridSize()) {
    if (WarpIndex() < kWarps) {
      if (t < tiles) MakeTile(ctx, p, product, t);
    } else {
      const iris::TraceSpan span(ctx, kSend, iris::Warp{});
      const auto send = [&](uint32_t step, uint32_t steps) {
        if (made < tiles) SendPart(ctx, p, made, step, steps);
      };
      if (t < tiles) {
        Product::Accompany(p.k, send);
      } else {
        send(0, 1);  // the last tile
      }
    }
    iris::backend::BlockSync();  // tile t is complete
    made = t;
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
    return iris::Launch({iris::backend::MultiprocessorCount(), kThreads}, stream,
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
