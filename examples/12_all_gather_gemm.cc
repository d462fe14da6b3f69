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

constexpr uint32_t kRepeats = 10;

struct Problem {
  uint32_t m, n, k, rows, panels;  // `rows` of a rank, in so many panels of Product::kRows
  const Bfloat16* a;               // [rows, k], symmetric
  const Bfloat16* b;               // [k, n]
  Bfloat16* d;                     // [m, n], in this rank's heap
  Bfloat16* gathered;              // [m, k], symmetric; of push alone
  uint64_t* ready;                 // [ranks, panels]: how often a panel has come
  uint32_t* failed;                // set if a signal did not come
};

// Makes the tiles of `owner`'s rows that are this block's. `rows`: the first of them, here.
IRIS_DEVICE inline bool MultiplyRows(const iris::DeviceContext& ctx, const Problem& p, void* shared,
                                     uint32_t owner, const Bfloat16* rows, uint64_t round) {
  Product product(shared);
  const uint32_t tiles = p.panels * ((p.n + Product::kColumns - 1) / Product::kColumns);
  for (uint32_t t = BlockIndex(); t < tiles; t += GridSize()) {
    const uint32_t panel = t % p.panels, column = t / p.panels * Product::kColumns;
    const uint32_t row = panel * Product::kRows;
    // A round of 0: nothing to wait for.
    if (iris::WaitUntil(ctx, &p.ready[owner * p.panels + panel], iris::Compare::kGe, round,
                        Block{}) != iris::WaitResult::kOk) {
      if (iris::backend::ThreadIndex() == 0) *p.failed = 1;
      return false;
    }
    const iris::TraceSpan span(ctx, /*tag=*/1, Block{}, owner);
    product.Multiply({rows + uint64_t{row} * p.k, p.k, p.rows - row}, {p.b + column, p.n, p.k},
                     false, p.n - column, p.k);
    product.ForEachStrip<Bfloat16>([&](uint32_t below, const Bfloat16* strip) {
      const uint32_t at = row + below, rest = at < p.rows ? p.rows - at : 0;
      iris::StoreTile(ctx, ctx.rank, p.d + (uint64_t{owner} * p.rows + at) * p.n + column,
                      {Product::kStripRows, Product::kColumns, p.n, 1, rest, p.n - column}, strip,
                      Block{});
    });
  }
  return true;
}

// `round`: 0 pulls. Else it pushes, and it is the number of the launch; between two of them the
// ranks meet, because `gathered` is used again.
IRIS_KERNEL IRIS_KERNEL_BOUNDS(Product::kThreads, 1) void GatherAndMultiply(iris::DeviceContext ctx,
                                                                            Problem p,
                                                                            uint64_t round) {
  IRIS_SHARED(iris::Bytes16[Product::kSharedBytes / sizeof(iris::Bytes16)], shared);
  for (uint32_t panel = BlockIndex(); round > 0 && panel < p.panels; panel += GridSize()) {
    const uint32_t row = panel * Product::kRows, rest = p.rows - row;
    const uint64_t count = uint64_t{rest < Product::kRows ? rest : Product::kRows} * p.k;
    Bfloat16* const to = p.gathered + (uint64_t{ctx.rank} * p.rows + row) * p.k;
    const iris::SignalTo ready = {&p.ready[ctx.rank * p.panels + panel], round};
    for (uint32_t i = 1; i < ctx.n_ranks; ++i) {
      iris::PutSignal(ctx, (ctx.rank + ctx.n_ranks - i) % ctx.n_ranks, to,
                      p.a + uint64_t{row} * p.k, count, ready, Block{});
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
  p.panels = (p.rows + Product::kRows - 1) / Product::kRows;
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  IRIS_ASSIGN_OR_RETURN(const auto a, context.Allocate<Bfloat16>(uint64_t{p.rows} * p.k, "a"));
  const auto values = example::GemmValues(example::kMatrixA, p.rows, p.k, ctx.rank * p.rows, 0);
  IRIS_RETURN_IF_ERROR(stream.Copy(a.get(), values.data(), a.bytes));
  IRIS_ASSIGN_OR_RETURN(const auto b, example::GemmB(context, stream, p.k, p.n, 0, first));
  IRIS_ASSIGN_OR_RETURN(const auto d, context.Allocate<Bfloat16>(uint64_t{p.m} * p.n, "d"));
  IRIS_ASSIGN_OR_RETURN(const auto gathered,
                        context.Allocate<Bfloat16>(uint64_t{p.m} * p.k, "gathered"));
  IRIS_ASSIGN_OR_RETURN(const auto ready,
                        context.Allocate<uint64_t>(p.panels * ctx.n_ranks, "ready"));
  IRIS_ASSIGN_OR_RETURN(const auto failed, iris::HostArray<uint32_t>::Create(context));
  p.a = a.get(), p.b = b, p.d = d.get(), p.gathered = gathered.get();
  p.ready = ready.get(), p.failed = failed;

  const iris::LaunchConfig all = {iris::backend::MultiprocessorCount(), Product::kThreads};
  double best_us = 0;
  for (uint32_t repeat = 0; repeat <= kRepeats; ++repeat) {
    IRIS_RETURN_IF_ERROR(context.Barrier());
    const auto start = std::chrono::steady_clock::now();
    IRIS_RETURN_IF_ERROR(
        iris::Launch(all, stream, GatherAndMultiply, ctx, p, push ? repeat + 1 : 0));
    IRIS_RETURN_IF_ERROR(stream.Synchronize());
    IRIS_RETURN_IF_ERROR(context.Barrier());  // all have read what is to be overwritten
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
    if (*failed != 0) {
      IRIS_RETURN_IF_ERROR(context.Health());  // a peer that died is named here
      return {iris::StatusCode::kDeadlineExceeded, "a panel did not come in time"};
    }
    if (repeat == 0) IRIS_RETURN_IF_ERROR(example::CheckGemm(stream, p.d, p.m, p.n, p.k, first));
    if (repeat == 1 || (repeat > 1 && us.count() < best_us)) best_us = us.count();
  }
  if (ctx.rank == 0) std::printf("result ok figure %.1f us\n", best_us);
  return iris::OkStatus();
}

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const example::GemmWords words = example::ParseGemm(argc, argv, {"pull", "push"});
  const iris::Status status = Run(words.pattern == "push", {words.m, words.n, words.k});
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
