// 09a: a product whose k is split over the ranks, and its all-reduce by atomics in the same kernel.
// Each rank has its columns of A and its rows of B, and makes a part of every element of D; the sum
// of the parts is D, which all get. 09b does the same with locks.
//
//   iris-run -n 4 -- bazel-bin/examples/09a_gemm_all_reduce_atomics [m n k]
//
//   rank 0:  A0 x B0 -- adds each tile --+--> D of rank 0
//                                          X
//   rank 1:  A1 x B1 -- adds each tile --+--> D of rank 1
//
// What to see: AtomicAdd to a peer's heap whose answer nobody uses is a message without a reply. No
// block waits for another. Floats are added in any order, so the last bits may differ from run to
// run and from rank to rank (here they do not: the values are whole numbers). In a trace
// (IRIS_TRACE) "user 1" multiplies, "user 2" adds.
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

constexpr uint64_t kMultiply = 1, kReduce = 2;  // what the spans are called in a trace
constexpr uint32_t kRepeats = 10;

// D[m, n] = the sum over the ranks of A[m, k_mine] B[k_mine, n].
struct Problem {
  uint32_t m, n, k, k_mine;
  const Bfloat16* a;     // [m, k_mine]
  const Bfloat16* b;     // [k_mine, n]
  float* d;              // [m, n], symmetric
  iris::TileGrid tiles;  // of D
};

// Adds the tile that `product` has to D on all ranks.
IRIS_DEVICE inline void AddToAll(const iris::DeviceContext& ctx, const Problem& p,
                                 const iris::GridTile& tile, const Product& product) {
  product.ForEachStrip([&](uint32_t below, const float* strip) {
    for (uint32_t i = iris::backend::ThreadIndex(); i < Product::kStripRows * Product::kColumns;
         i += iris::backend::BlockSize()) {
      const uint32_t r = below + i / Product::kColumns, c = i % Product::kColumns;
      for (uint32_t peer = 0; r < tile.rows && c < tile.columns && peer < ctx.n_ranks; ++peer) {
        iris::AtomicAdd<iris::Scope::kSystem, iris::Order::kRelaxed>(
            ctx, (ctx.rank + peer) % ctx.n_ranks, &p.d[tile.Offset(r, p.n) + c], strip[i]);
      }
    }
  });
}

IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product::kThreads, 1) void MultiplyAndReduce(iris::DeviceContext ctx,
                                                                            Problem p) {
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
    AddToAll(ctx, p, tile, product);
  }
}

iris::Status Run(Problem p) {
  const uint64_t bytes = (16 << 20) + uint64_t{p.m} * p.n * sizeof(float);
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
  p.a = a, p.b = b, p.d = d.get();

  const auto clear = [&] { return stream.Fill(p.d, 0, d.bytes); };
  const auto multiply = [&] {
    return iris::Launch({iris::backend::MultiprocessorCount(), Product::kThreads}, stream,
                        MultiplyAndReduce, ctx, p);
  };
  IRIS_ASSIGN_OR_RETURN(const auto time,
                        iris::DoBench(context, stream, multiply,
                                      {.n_warmup = 1, .n_repeat = kRepeats, .before = clear}));
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
