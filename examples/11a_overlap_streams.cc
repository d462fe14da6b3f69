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
#include <chrono>
#include <cstdio>

#include "examples/gemm_data.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/tile_product.h"

using iris::Bfloat16, iris::Block;
using iris::backend::BlockIndex, iris::backend::GridSize;
using Product = iris::TileProduct<Bfloat16>;

constexpr uint64_t kMultiply = 1, kSend = 2;  // what the spans are called in a trace
constexpr uint32_t kRepeats = 10;

// D[m, n] = A[m, k] B[k, n]. This rank makes n_mine columns, from first_column on.
struct Problem {
  uint32_t m, n, k, n_mine, first_column, down, tiles;  // `tiles` of this rank, `down` in a column
  const Bfloat16* a;                                    // [m, k]
  const Bfloat16* b;                                    // [k, n_mine]
  Bfloat16* d;                                          // [m, n], symmetric
  uint64_t* ready;   // a signal for each tile: how often it has been made
  uint32_t* failed;  // set if a signal did not come

  IRIS_DEVICE uint32_t Row(uint32_t t) const { return t % down * Product::kRows; }
  IRIS_DEVICE uint32_t Column(uint32_t t) const { return t / down * Product::kColumns; }
  // Rows of tile t of D, from `below` on, and where they begin.
  IRIS_DEVICE iris::Tile Rows(uint32_t t, uint32_t below, uint32_t rows, Bfloat16** first) const {
    const uint32_t row = Row(t) + below;
    *first = d + uint64_t{row} * n + first_column + Column(t);
    return {rows, Product::kColumns, n, 1, row < m ? m - row : 0u, n_mine - Column(t)};
  }
};

IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product::kThreads, 1) void Multiply(iris::DeviceContext ctx,
                                                                   Problem p, uint64_t round) {
  IRIS_SHARED(iris::Bytes16[Product::kSharedBytes / sizeof(iris::Bytes16)], shared);
  for (uint32_t t = BlockIndex(); t < p.tiles; t += GridSize()) {
    const iris::TraceSpan span(ctx, kMultiply, Block{});
    Product product(shared);
    product.Multiply({p.a + uint64_t{p.Row(t)} * p.k, p.k, p.m - p.Row(t)},
                     {p.b + p.Column(t), p.n_mine, p.k}, false, p.n_mine - p.Column(t), p.k);
    product.ForEachStrip<Bfloat16>([&](uint32_t below, const Bfloat16* strip) {
      Bfloat16* to;
      const iris::Tile rows = p.Rows(t, below, Product::kStripRows, &to);
      iris::StoreTile(ctx, ctx.rank, to, rows, strip, Block{});
    });
    iris::backend::BlockSync();  // all of the tile is written
    if (iris::backend::ThreadIndex() == 0) iris::SignalSet(ctx, ctx.rank, &p.ready[t], round);
  }
}

IRIS_KERNEL IRIS_KERNEL_BOUNDS(256, 1) void Scatter(iris::DeviceContext ctx, Problem p,
                                                    uint64_t round) {
  for (uint32_t t = BlockIndex(); t < p.tiles; t += GridSize()) {
    if (iris::WaitUntil(ctx, &p.ready[t], iris::Compare::kGe, round, Block{}) !=
        iris::WaitResult::kOk) {
      if (iris::backend::ThreadIndex() == 0) *p.failed = 1;
      return;
    }
    const iris::TraceSpan span(ctx, kSend, Block{});
    Bfloat16* from;
    const iris::Tile tile = p.Rows(t, 0, Product::kRows, &from);
    for (uint32_t i = 1; i < ctx.n_ranks; ++i) {
      iris::PutTile(ctx, (ctx.rank + i) % ctx.n_ranks, from, tile, from, {p.n}, Block{});
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
  p.down = (p.m + Product::kRows - 1) / Product::kRows;
  p.tiles = p.down * ((p.n_mine + Product::kColumns - 1) / Product::kColumns);
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto a, example::GemmA(context, stream, p.m, p.k));
  IRIS_ASSIGN_OR_RETURN(const auto b,
                        example::GemmB(context, stream, p.k, p.n_mine, 0, p.first_column));
  IRIS_ASSIGN_OR_RETURN(const auto d, context.Allocate<Bfloat16>(uint64_t{p.m} * p.n, "d"));
  IRIS_ASSIGN_OR_RETURN(const auto ready, context.Allocate<uint64_t>(p.tiles, "ready"));
  IRIS_ASSIGN_OR_RETURN(const auto failed, iris::HostArray<uint32_t>::Create(context));
  p.a = a, p.b = b, p.d = d.get(), p.ready = ready.get(), p.failed = failed;
  IRIS_ASSIGN_OR_RETURN(iris::Stream other, iris::Stream::Create(context));
  iris::Stream& second = two_streams ? other : stream;
  IRIS_RETURN_IF_ERROR(iris::PrepareKernel(Scatter));  // it is launched beside another kernel
  // Of two kernels at once, an eighth of the multiprocessors sends. One after the other has all.
  const uint32_t all = iris::backend::MultiprocessorCount();
  const uint32_t senders = two_streams ? all / 8 + 1 : all;
  const uint32_t makers = two_streams && all > senders ? all - senders : all;

  double best_us = 0;
  for (uint32_t repeat = 0; repeat <= kRepeats; ++repeat) {
    IRIS_RETURN_IF_ERROR(context.Barrier());
    const auto start = std::chrono::steady_clock::now();
    IRIS_RETURN_IF_ERROR(
        iris::Launch({makers, Product::kThreads}, stream, Multiply, ctx, p, repeat + 1));
    IRIS_RETURN_IF_ERROR(iris::Launch({senders, 256}, second, Scatter, ctx, p, repeat + 1));
    IRIS_RETURN_IF_ERROR(stream.Synchronize());
    IRIS_RETURN_IF_ERROR(second.Synchronize());
    IRIS_RETURN_IF_ERROR(context.Barrier());  // the tiles of all ranks are there
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
    if (*failed != 0) {
      IRIS_RETURN_IF_ERROR(context.Health());  // a peer that died is named here
      return {iris::StatusCode::kDeadlineExceeded, "a tile was not made in time"};
    }
    if (repeat == 0) IRIS_RETURN_IF_ERROR(example::CheckGemm(stream, d.get(), p.m, p.n, p.k));
    if (repeat == 1 || (repeat > 1 && us.count() < best_us)) best_us = us.count();
  }
  if (ctx.rank == 0) std::printf("result ok figure %.1f us\n", best_us);
  return iris::OkStatus();
}

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const example::GemmWords words = example::ParseGemm(argc, argv, {"bulk", "streams"});
  const iris::Status status = Run(words.pattern == "streams", {words.m, words.n, words.k});
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
