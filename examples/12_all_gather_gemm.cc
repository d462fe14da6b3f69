// 12: a product whose rows come from all ranks, by pull and by push. Each rank has a share of the
// rows of A, and its own B; afterwards it has D = A B for all rows of A.
//
//   iris-run -n 4 -- bazel-bin/examples/12_all_gather_gemm pull|push [m n k]
//
//   pull   rank 0    [A0]--------------------\          a block loads the rows that it multiplies
//          rank 1    [A1]-- load, slice by    > x B     right out of their owner's heap:
//          rank 2    [A2]--   slice of k ----/          no buffer, no signal, each row many times
//
//   push   rank 0    [A0]-- put, signal -->  +----+     each rank puts its rows, panel by panel, to
//          rank 1    [A1]-- put, signal -->  | A  | x B all others, and signals each: a row travels
//          rank 2    [A2]-- put, signal -->  +----+     once, and tiles wait for their panel alone
//
// What to see: TileProduct loads from any memory, so the address of a peer's rows (Translate) is
// all that pulling takes. Both begin with the own rows, then take those of the next rank. In a
// trace (IRIS_TRACE) "user 1" multiplies, "put_signal" pushes.
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

constexpr uint32_t kRepeats = 10;

struct Problem {
  uint32_t m, n, k, rows;   // `rows` of a rank
  const Bfloat16* a;        // [rows, k], symmetric
  const Bfloat16* b;        // [k, n]
  Bfloat16* d;              // [m, n], in this rank's heap
  Bfloat16* gathered;       // [m, k], symmetric; of push alone
  uint64_t* ready;          // [ranks, panels]: how often a panel has come
  iris::TileGrid tiles;     // of the rows of a rank in D: panels are its rows of tiles
  iris::WaitReport report;  // of signals that do not come
};

// Makes the tiles of `owner`'s rows that are this block's. `rows`: the first of them, here.
IRIS_DEVICE inline bool MultiplyRows(const iris::DeviceContext& ctx, const Problem& p, void* shared,
                                     uint32_t owner, const Bfloat16* rows, uint64_t round) {
  Product product(shared);
  Bfloat16* const d = p.d + uint64_t{owner} * p.rows * p.n;
  for (uint32_t t = BlockIndex(); t < p.tiles.size(); t += GridSize()) {
    const iris::GridTile tile = p.tiles[t];
    const uint64_t* const ready = &p.ready[owner * p.tiles.down() + tile.row / Product::kRows];
    // A round of 0: nothing to wait for.
    if (!iris::AwaitSignal(ctx, owner, ready, round, p.report, Block{})) return false;
    const iris::TraceSpan span(ctx, /*tag=*/1, Block{}, owner);
    product.Multiply({rows + uint64_t{tile.row} * p.k, p.k, tile.rows},
                     {p.b + tile.column, p.n, p.k}, false, tile.columns, p.k);
    product.ForEachStrip<Bfloat16>([&](uint32_t below, const Bfloat16* strip) {
      iris::StoreTile(ctx, ctx.rank, d + tile.Offset(below, p.n),
                      tile.Rows(below, Product::kStripRows, p.n), strip, Block{});
    });
  }
  return true;
}

// `round`: 0 pulls. Else it pushes, and it is the number of the launch; between two of them the
// ranks meet, because `gathered` is used again.
IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product::kThreads, 1) void GatherAndMultiply(iris::DeviceContext ctx,
                                                                            Problem p,
                                                                            uint64_t round) {
  IRIS_SHARED(Product::Shared, shared);
  const uint32_t panels = p.tiles.down();
  for (uint32_t panel = BlockIndex(); round > 0 && panel < panels; panel += GridSize()) {
    const iris::GridTile tile = p.tiles[panel];  // the first one of the panel
    const uint64_t at = uint64_t{tile.row} * p.k, count = uint64_t{tile.rows} * p.k;
    Bfloat16* const to = p.gathered + uint64_t{ctx.rank} * p.rows * p.k + at;
    const iris::SignalTo ready = {&p.ready[ctx.rank * panels + panel], round};
    for (uint32_t i = 1; i < ctx.n_ranks; ++i) {
      iris::PutSignal(ctx, (ctx.rank + ctx.n_ranks - i) % ctx.n_ranks, to, p.a + at, count, ready,
                      Block{});
    }
  }
  for (uint32_t i = 0; i < ctx.n_ranks; ++i) {
    const uint32_t owner = (ctx.rank + i) % ctx.n_ranks;
    const Bfloat16* const rows = round == 0 || i == 0 ? iris::Translate(ctx, owner, p.a)
                                                      : p.gathered + uint64_t{owner} * p.rows * p.k;
    if (!MultiplyRows(ctx, p, shared, owner, rows, i == 0 ? 0 : round)) return;
  }
}

iris::Status Run(bool push, Problem p) {
  const uint64_t bytes = uint64_t{p.m} * (uint64_t{p.k} * 4 + p.n * 2) + (16 << 20);
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = bytes}));
  const iris::DeviceContext& ctx = context.device_context();
  IRIS_RETURN_IF_ERROR(example::CheckSizes(p.m, p.n, p.k, 'm', ctx.n_ranks));
  const uint64_t first = uint64_t{ctx.rank} * p.n;  // of this rank's columns in all of B
  p.rows = p.m / ctx.n_ranks;
  p.tiles = {p.rows, p.n, Product::kRows, Product::kColumns};
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto a, context.Allocate<Bfloat16>(uint64_t{p.rows} * p.k, "a"));
  const auto values = example::GemmValues(example::kMatrixA, p.rows, p.k, ctx.rank * p.rows, 0);
  IRIS_RETURN_IF_ERROR(stream.Copy(a.get(), values.data(), a.bytes));
  IRIS_ASSIGN_OR_RETURN(const auto b, example::GemmB(context, stream, p.k, p.n, 0, first));
  IRIS_ASSIGN_OR_RETURN(const auto d, context.Allocate<Bfloat16>(uint64_t{p.m} * p.n, "d"));
  IRIS_ASSIGN_OR_RETURN(const auto gathered,
                        context.Allocate<Bfloat16>(uint64_t{p.m} * p.k, "gathered"));
  IRIS_ASSIGN_OR_RETURN(const auto ready,
                        context.Allocate<uint64_t>(p.tiles.down() * ctx.n_ranks, "ready"));
  IRIS_ASSIGN_OR_RETURN(const auto monitor, iris::WaitMonitor::Create(context));
  p.a = a.get(), p.b = b, p.d = d.get(), p.gathered = gathered.get();
  p.ready = ready.get(), p.report = monitor;

  const iris::LaunchConfig all = {iris::backend::MultiprocessorCount(), Product::kThreads};
  uint64_t round = 0;
  const auto multiply = [&] {
    return iris::Launch(all, stream, GatherAndMultiply, ctx, p, push ? ++round : 0);
  };
  IRIS_ASSIGN_OR_RETURN(const auto time, iris::DoBench(context, stream, multiply,
                                                       {.n_warmup = 1, .n_repeat = kRepeats}));
  IRIS_RETURN_IF_ERROR(monitor.Check());  // names a rank that did not come
  IRIS_RETURN_IF_ERROR(example::CheckGemm(stream, p.d, p.m, p.n, p.k, first));
  if (ctx.rank == 0) std::printf("result ok figure %.1f us\n", time.count());
  return iris::OkStatus();
}

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const example::GemmWords words = example::ParseGemm(argc, argv, {"pull", "push"});
  const iris::Status status = Run(words.pattern == "push", {words.m, words.n, words.k});
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
