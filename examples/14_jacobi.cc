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
// What to see: the first blocks of a launch wait for a piece of a halo each, compute the same piece
// of the edge, and send it on. The interior needs no halo, so no other block waits. One signal for
// each piece is enough: a neighbour's signal of a step says that its values are there, and also
// that it has read those of the step before, which may then be overwritten.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "CLI/CLI.hpp"
#include "iris/context.h"
#include "iris/device.h"
#include "iris/launch.h"
#include "iris/stream.h"

using iris::Block;
using iris::Compare;
using iris::WaitResult;

constexpr uint32_t kThreads = 128;
constexpr uint32_t kPieces = 8;  // of each edge: one for a block

struct Part {              // what a rank has of the grid
  float* grids[2];         // rows + 2 rows each
  uint64_t* came;          // [above, below][kPieces]: so many steps of the neighbour are there
  uint64_t* failed;        // not 0: a halo did not come in time
  uint64_t rows, columns;  // rows: without the halos
  uint64_t neighbours[2];  // rows of the rank above and below; 0: there is none
};

IRIS_DEVICE inline void Relax(const Part& part, uint64_t step, uint64_t row, uint64_t first,
                              uint64_t end) {
  const float* from = part.grids[step % 2] + row * part.columns;
  float* to = part.grids[(step + 1) % 2] + row * part.columns;
  for (uint64_t c = first + iris::backend::ThreadIndex(); c < end; c += kThreads) {
    if (c == 0 || c + 1 == part.columns) {
      to[c] = from[c];  // the border of the grid stays as it is
    } else {
      to[c] = 0.25f *
              ((from[c - 1] + from[c + 1]) + (*(from + c - part.columns) + from[c + part.columns]));
    }
  }
}

// Steps count from 0. The first 2 kPieces blocks have the edges, the others share the interior.
IRIS_KERNEL void Step(iris::DeviceContext ctx, IRIS_PARAM Part part, uint64_t step) {
  const uint32_t block = iris::backend::BlockIndex();
  const uint32_t side = block / kPieces, piece = block % kPieces;  // side 0: above, 1: below
  if (side > 1) {
    const uint32_t n_blocks = iris::backend::GridSize() - 2 * kPieces;
    for (uint64_t row = 2 + block - 2 * kPieces; row < part.rows; row += n_blocks) {
      Relax(part, step, row, 0, part.columns);
    }
    return;
  }
  const uint64_t row = side == 0 ? 1 : part.rows;
  const uint64_t first = part.columns * piece / kPieces, end = part.columns * (piece + 1) / kPieces;
  const bool has_neighbour = part.neighbours[side] > 0;
  if (has_neighbour) {
    if (iris::Test(part.failed, Compare::kNe, 0)) return;
    if (iris::WaitUntil(ctx, part.came + block, Compare::kGe, step, Block{}) != WaitResult::kOk) {
      if (iris::backend::ThreadIndex() == 0) iris::SignalSet(ctx, ctx.rank, part.failed, 1);
      return;
    }
  }
  Relax(part, step, row, first, end);
  if (!has_neighbour) return;
  iris::backend::BlockSync();  // the piece is whole
  float* const to = part.grids[(step + 1) % 2] + first;
  const uint64_t halo = side == 0 ? part.neighbours[0] + 1 : 0;
  iris::PutSignal(ctx, side == 0 ? ctx.rank - 1 : ctx.rank + 1, to + halo * part.columns,
                  to + row * part.columns, end - first,
                  {part.came + (1 - side) * kPieces + piece, step + 1}, Block{});
}

// Fills both grids, takes the steps, and gives the time of one in microseconds.
iris::StatusOr<double> Solve(iris::Context& context, iris::Stream& stream, const Part& part,
                             uint64_t first_row, uint64_t steps) {
  std::vector<float> values((part.rows + 2) * part.columns);
  for (uint64_t i = 0; i < values.size(); ++i) {
    const uint64_t at = first_row * part.columns + i;
    values[i] = at < part.columns ? 1.0f : static_cast<float>(at * 2654435761u % 1024) / 4096;
  }
  for (float* grid : part.grids) {
    IRIS_RETURN_IF_ERROR(stream.Copy(grid, values.data(), values.size() * sizeof(float)));
  }
  IRIS_ASSIGN_OR_RETURN(iris::Event begin, iris::Event::Create(context));
  IRIS_ASSIGN_OR_RETURN(iris::Event end, iris::Event::Create(context));
  IRIS_RETURN_IF_ERROR(iris::PrepareKernel(Step));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Barrier());  // all have their first values
  const uint64_t interior = std::min<uint64_t>(part.rows, 8 * iris::backend::MultiprocessorCount());
  const uint32_t grid = 2 * kPieces + static_cast<uint32_t>(interior);
  IRIS_RETURN_IF_ERROR(begin.Record(stream));
  for (uint64_t step = 0; step < steps; ++step) {
    IRIS_RETURN_IF_ERROR(iris::Launch({.grid = grid, .block = kThreads}, stream, Step,
                                      context.device_context(), part, step));
  }
  IRIS_RETURN_IF_ERROR(end.Record(stream));
  uint64_t failed = 0;
  IRIS_RETURN_IF_ERROR(stream.Copy(&failed, part.failed, sizeof(failed)));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  IRIS_RETURN_IF_ERROR(context.Health());  // a rank that died is named here
  if (failed != 0) return iris::Status(iris::StatusCode::kDeadlineExceeded, "a halo did not come");
  IRIS_ASSIGN_OR_RETURN(const auto time, end.Since(begin));
  return time.count() / 1e3 / static_cast<double>(steps);
}

struct Options {
  uint64_t rows = 8192, columns = 8192, steps = 1000;
};

iris::Status Run(const Options& options) {
  const uint64_t grid_bytes = (options.rows + 2) * options.columns * sizeof(float);
  IRIS_ASSIGN_OR_RETURN(iris::Context context,
                        iris::Context::Create({.heap_bytes = 2 * grid_bytes + (16 << 20)}));
  const uint32_t rank = context.rank(), n_ranks = context.n_ranks();
  if (options.rows < 2 * n_ranks || options.columns < 3) {
    return {iris::StatusCode::kInvalidArgument,
            "the grid is too small: it needs 2 rows for each of the " + std::to_string(n_ranks) +
                " ranks, and 3 columns; give more --rows or --columns"};
  }
  const auto first_row = [&](uint64_t r) { return options.rows * r / n_ranks; };
  const auto rows_of = [&](uint64_t r) { return first_row(r + 1) - first_row(r); };
  const uint64_t most = ((options.rows + n_ranks - 1) / n_ranks + 2) * options.columns;
  IRIS_ASSIGN_OR_RETURN(const auto grids, context.Allocate<float>(2 * most, "grids"));
  IRIS_ASSIGN_OR_RETURN(const auto came, context.Allocate<uint64_t>(2 * kPieces + 1, "came"));
  IRIS_ASSIGN_OR_RETURN(iris::Stream stream, iris::Stream::Create(context));
  const Part mine = {
      {grids.get(), grids.get() + most},
      came.get(),
      came.get() + 2 * kPieces,
      rows_of(rank),
      options.columns,
      {rank > 0 ? rows_of(rank - 1) : 0, rank + 1 < n_ranks ? rows_of(rank + 1) : 0}};
  IRIS_ASSIGN_OR_RETURN(const double us,
                        Solve(context, stream, mine, first_row(rank), options.steps));

  // The whole grid on this rank alone, to compare with.
  IRIS_ASSIGN_OR_RETURN(const auto whole_grids,
                        iris::DeviceArray<float>::Create(context, 2 * grid_bytes / sizeof(float)));
  const Part whole = {{whole_grids.get(), whole_grids.get() + whole_grids.size() / 2},
                      mine.came,
                      mine.failed,
                      options.rows,
                      options.columns,
                      {0, 0}};
  IRIS_ASSIGN_OR_RETURN(const double us_alone, Solve(context, stream, whole, 0, options.steps));
  std::vector<float> got(mine.rows * mine.columns), want(got.size());
  const uint64_t bytes = got.size() * sizeof(float);
  const float* from = mine.grids[options.steps % 2] + mine.columns;
  IRIS_RETURN_IF_ERROR(stream.Copy(got.data(), from, bytes));
  from = whole.grids[options.steps % 2] + (first_row(rank) + 1) * mine.columns;
  IRIS_RETURN_IF_ERROR(stream.Copy(want.data(), from, bytes));
  IRIS_RETURN_IF_ERROR(stream.Synchronize());
  if (std::memcmp(got.data(), want.data(), bytes) != 0) {
    return {iris::StatusCode::kInternal, "the result differs from that of one rank"};
  }
  IRIS_RETURN_IF_ERROR(context.Barrier());  // all have compared
  if (rank == 0) {
    std::printf("%llu steps on %llu x %llu points: the same bits on %u ranks and on one\n",
                static_cast<unsigned long long>(options.steps),
                static_cast<unsigned long long>(options.rows),
                static_cast<unsigned long long>(options.columns), n_ranks);
    std::printf("a step takes %.1f us, and %.1f us on one rank\n", us, us_alone);
    std::printf("result ok figure %.1f us\n", us);
  }
  return iris::Status();
}

int main(int argc, char** argv) {
  CLI::App app("Jacobi's method on a grid whose rows are split over the ranks.", "14_jacobi");
  Options options;
  app.add_option("--rows", options.rows, "Of the grid, all ranks together [8192]")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--columns", options.columns, "Of the grid [8192]")->check(CLI::Range(1, 1 << 20));
  app.add_option("--steps", options.steps, "To take [1000]")->check(CLI::Range(1, 1 << 30));
  CLI11_PARSE(app, argc, argv);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const iris::Status status = Run(options);
  if (!status.ok()) {
    std::fprintf(stderr, "error: %s\n", status.message().c_str());
    std::printf("result failed %s\n", status.message().c_str());
  }
  return status.ok() ? 0 : 1;
}
