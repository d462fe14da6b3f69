// 14: a halo exchange. Jacobi's method on a grid whose rows are split over the ranks, compared with
// one rank's result bit for bit.
//
//   iris-run -n 4 -- bazel-bin/examples/14_jacobi --rows 8192 --columns 8192 --steps 1000
//
// One step on rank r, which has m rows. Two grids take turns: a step reads one, writes the other.
//
//   row 0            halo            <-- last row of rank r - 1, put with a signal
//   row 1            own, edge       --> into the halo of rank r - 1, with a signal
//   rows 2 .. m - 1  own, interior:      other blocks work on it meanwhile
//   row m            own, edge       --> into the halo of rank r + 1, with a signal
//   row m + 1        halo            <-- first row of rank r + 1, put with a signal
//
// What to see: the first blocks of a launch ("user 1" in a trace) wait for a piece of a halo each,
// compute the same piece of the edge, and send it on. The interior ("user 2") needs no halo, so no
// other block waits. One signal for each piece is enough: a neighbour's signal of a step says that
// its values are there, and also that it has read those of the step before.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "examples/jacobi_data.h"
#include "iris/bench.h"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"
#include "iris/wait_monitor.h"

using iris::Block;

constexpr uint32_t kThreads = 128, kPieces = 8;  // pieces of each edge, one for a block

struct Part {              // what a rank has of the grid
  float* grids[2];         // rows + 2 rows each
  uint64_t* came;          // [above, below][kPieces]: so many steps of the neighbour are there
  uint64_t rows, columns;  // rows: without the halos
  uint64_t neighbours[2];  // rows of the rank above and below; 0: there is none
  iris::WaitReport report;
};

IRIS_DEVICE inline void Relax(const Part& part, uint64_t step, uint64_t row, uint64_t first,
                              uint64_t end) {
  const float* from = part.grids[step % 2] + row * part.columns;
  float* to = part.grids[(step + 1) % 2] + row * part.columns;
  for (uint64_t c = first + iris::backend::ThreadIndex(); c < end; c += kThreads) {
    const bool border = c == 0 || c + 1 == part.columns;  // of the grid: it stays as it is
    const float *above = from + c - part.columns, *below = from + c + part.columns;
    to[c] = border ? from[c] : 0.25f * ((from[c - 1] + from[c + 1]) + (*above + *below));
  }
}

// Steps count from 0. The first 2 kPieces blocks have the edges, the others share the interior.
IRIS_KERNEL void Step(iris::DeviceContext ctx, IRIS_PARAM Part part, uint64_t step) {
  const uint32_t block = iris::backend::BlockIndex();
  const uint32_t side = block / kPieces, piece = block % kPieces;  // side 0: above, 1: below
  const iris::TraceSpan span(ctx, /*tag=*/side > 1 ? 2 : 1, Block{});
  if (side > 1) {
    const uint32_t n_blocks = iris::backend::GridSize() - 2 * kPieces;
    for (uint64_t row = 2 + block - 2 * kPieces; row < part.rows; row += n_blocks) {
      Relax(part, step, row, 0, part.columns);
    }
    return;
  }
  const uint64_t row = side == 0 ? 1 : part.rows;
  const iris::Share mine = iris::ShareOf(part.columns, kPieces, piece);
  if (part.neighbours[side] == 0) return Relax(part, step, row, mine.begin, mine.end());
  const uint32_t neighbour = side == 0 ? ctx.rank - 1 : ctx.rank + 1;
  if (!iris::AwaitSignal(ctx, neighbour, part.came + block, step, part.report, Block{})) return;
  Relax(part, step, row, mine.begin, mine.end());
  iris::backend::BlockSync();  // the piece is whole
  float* const to = part.grids[(step + 1) % 2] + mine.begin;
  const uint64_t halo = side == 0 ? part.neighbours[0] + 1 : 0;
  iris::PutSignal(ctx, neighbour, to + halo * part.columns, to + row * part.columns, mine.count,
                  {part.came + (1 - side) * kPieces + piece, step + 1}, Block{});
}

// Takes the steps, and puts what becomes of `values` there. Gives the microseconds of a step.
iris::StatusOr<double> Solve(iris::Context& context, iris::Stream& stream, Part part,
                             uint64_t steps, std::vector<float>& values) {
  const uint64_t bytes = values.size() * sizeof(float);
  for (float* to : part.grids) IRIS_RETURN_IF_ERROR(stream.Copy(to, values.data(), bytes));
  IRIS_RETURN_IF_ERROR(iris::PrepareKernel(Step));
  IRIS_ASSIGN_OR_RETURN(const auto monitor, iris::WaitMonitor::Create(context));
  part.report = monitor;
  const uint64_t interior = std::min<uint64_t>(part.rows, 8 * iris::backend::MultiprocessorCount());
  const uint32_t grid = 2 * kPieces + static_cast<uint32_t>(interior);
  const auto take_steps = [&]() -> iris::Status {
    for (uint64_t step = 0; step < steps; ++step) {
      IRIS_RETURN_IF_ERROR(iris::Launch({.grid = grid, .block = kThreads}, stream, Step,
                                        context.device_context(), part, step));
    }
    return iris::Status();
  };
  // Once: the steps cannot be taken back. All ranks have their first values before any begins.
  IRIS_ASSIGN_OR_RETURN(const auto time,
                        iris::DoBench(context, stream, take_steps, {.n_warmup = 0, .n_repeat = 1}));
  IRIS_RETURN_IF_ERROR(monitor.Check());  // names a rank whose halo did not come
  IRIS_ASSIGN_OR_RETURN(values, stream.Read(part.grids[steps % 2], values.size()));
  return time.count() / static_cast<double>(steps);
}

iris::Status Run(const example::JacobiOptions& options) {
  const uint64_t columns = options.columns, points = (options.rows + 2) * columns;
  const uint64_t heap_bytes = 2 * points * sizeof(float) + (16 << 20);
  IRIS_ASSIGN_OR_RETURN(iris::Context context, iris::Context::Create({.heap_bytes = heap_bytes}));
  const uint32_t rank = context.rank(), n_ranks = context.n_ranks();
  IRIS_RETURN_IF_ERROR(example::CheckJacobi(options, n_ranks));
  const auto rows_of = [&](uint32_t r) { return iris::ShareOf(options.rows, n_ranks, r); };
  const uint64_t first_row = rows_of(rank).begin;
  const uint64_t most = ((options.rows + n_ranks - 1) / n_ranks + 2) * columns;
  IRIS_ASSIGN_OR_RETURN(const auto grids, context.Allocate<float>(2 * most, "grids"));
  IRIS_ASSIGN_OR_RETURN(const auto came, context.Allocate<uint64_t>(2 * kPieces, "came"));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  Part mine = {{grids.get(), grids.get() + most}, came.get(), rows_of(rank).count, columns, {}, {}};
  if (rank > 0) mine.neighbours[0] = rows_of(rank - 1).count;
  if (rank + 1 < n_ranks) mine.neighbours[1] = rows_of(rank + 1).count;
  std::vector<float> got = example::JacobiValues(first_row, mine.rows + 2, columns);
  IRIS_ASSIGN_OR_RETURN(const double us, Solve(context, stream, mine, options.steps, got));
  // The whole grid on this rank alone, to compare with.
  IRIS_ASSIGN_OR_RETURN(const auto all, iris::DeviceArray<float>::Create(context, 2 * points));
  const Part whole = {{all, all + points}, mine.came, options.rows, columns, {}, {}};
  std::vector<float> want = example::JacobiValues(0, options.rows + 2, columns);
  IRIS_ASSIGN_OR_RETURN(const double us_alone, Solve(context, stream, whole, options.steps, want));
  const float* const expected = &want[(first_row + 1) * columns];
  if (std::memcmp(&got[columns], expected, mine.rows * columns * sizeof(float)) != 0) {
    return {iris::StatusCode::kInternal, "the result differs from that of one rank"};
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());  // all have compared
  if (rank == 0) example::PrintJacobi(options, n_ranks, us, us_alone);
  return iris::Status();
}

int main(int argc, char** argv) {
  const iris::Status status = Run(example::ParseJacobi(argc, argv));
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", status.message().c_str());
    std::printf("result failed %s\n", status.message().c_str());
  }
  return status.ok() ? 0 : 1;
}
