// kFused: the kernel of impl/fused.h; for kCopyEngine, the same kernel with copies.
#include "iris/ops/impl/fused.h"

#include <cstdint>

#include "iris/ops/variant.h"
#include "iris/rounds/launch.h"
#include "iris/translate.h"

namespace iris::ops::impl {
namespace {

// Returns the tiles of the member that has most, the same on all members unless n differs.
uint64_t MostTiles(const Problem& problem, uint32_t members) {
  const uint32_t m = static_cast<uint32_t>(problem.m);
  const uint32_t n = static_cast<uint32_t>(problem.n);
  const uint32_t own = CountOwned(problem.operation, m, n, members, 0);
  return problem.operation == Operation::kAllGatherMatmul ? uint64_t{own} * members : own;
}

uint32_t BlocksOf(const Problem& problem, uint32_t members, const ccl::Config& config) {
  if (config.blocks != 0) return config.blocks;
  // n may differ between members, but the grid must not.
  if (problem.operation == Operation::kAllGatherMatmul) {
    const uint64_t rows = (problem.m + kTile.rows - 1) / kTile.rows + members;
    return static_cast<uint32_t>(ccl::impl::Min(rows * 4, config.max_blocks));
  }
  return static_cast<uint32_t>(ccl::impl::Min(MostTiles(problem, members), config.max_blocks));
}

uint64_t Bytes(uint32_t members, const ccl::Config& config, const Problem& problem) {
  if (members == 1) return 0;
  if (problem.operation == Operation::kAllGatherMatmul) {
    return problem.m * GatheredStride(static_cast<uint32_t>(problem.k)) * 2;
  }
  if (!IsSum(problem.operation)) return 0;
  return uint64_t{BlocksOf(problem, members, config)} * 2 * (members - 1) * kGroup * kSlotBytes;
}

void Complete(const ccl::Comm& comm, const Problem& problem, const Matmul*, LaunchPlan* plan) {
  plan->multiplier = "iris";
  plan->blocks = BlocksOf(problem, comm.team.size, comm.config);
  plan->threads = kTile.threads;
  plan->tile_rows = kTile.rows;
  plan->tile_columns = kTile.columns;
}

// Copies this member's rows of A to the others on a separate stream that forks from `stream`. Each
// piece goes to one member after another, because simultaneous copies to several members are
// slower. The branch ends with copies_end, also after a failure.
//
// Copies wait only for work that precedes them on `stream`. So even a device that executes all work
// in the order in which it was enqueued finishes, and nothing hangs where the hardware has fewer
// queues than the program has streams.
Result StartCopies(const ccl::Comm& comm, const Common& common, const Matmul& call,
                   const MatmulCall& matmul, backend::Stream& stream) {
  backend::Stream& copies = comm.products->copies;
  Result result = backend::Record(comm.products->copies_begin, stream);
  if (result.ok()) result = backend::WaitEvent(copies, comm.products->copies_begin);
  if (!result.ok()) return result;
  const uint32_t members = comm.team.size;
  const Share mine = ShareOf(matmul.m, members, comm.team.index);
  const uint64_t in_bytes = DTypeBytes(call.problem.in);
  const uint32_t panel_rows = PanelRows(matmul.m, members);
  const uint32_t panels = CountPanels(static_cast<uint32_t>(mine.count), panel_rows);
  const uint32_t each = (panels + kCopiedPieces - 1) / kCopiedPieces;  // panels of a piece
  RowsToCopy rows;
  rows.row_bytes = matmul.k * in_bytes;
  rows.src_pitch_bytes = matmul.lda * in_bytes;
  rows.dst_pitch_bytes = GatheredStride(matmul.k) * in_bytes;
  for (uint32_t panel = 0; panel < panels; panel += each) {
    const uint32_t count = panels - panel < each ? panels - panel : each;
    const uint64_t first = uint64_t{panel} * panel_rows;
    rows.rows = ccl::impl::Min(uint64_t{count} * panel_rows, mine.count - first);
    const uint64_t there =
        matmul.workspace_offset_bytes + kArrivalBytes + (mine.begin + first) * rows.dst_pitch_bytes;
    for (uint32_t step = 1; result.ok() && step < members; ++step) {
      const uint32_t member = (comm.team.index + step) % members;
      result = backend::CopyRowsAsync(
          iris::AtOffset<uint8_t>(comm.context, comm.team.members[member], there),
          matmul.a + first * rows.src_pitch_bytes, rows, copies);
      if (!result.ok()) break;
      result = backend::Launch({1, backend::Traits::kWarpThreads, 0}, copies, &TellPanels<>, common,
                               matmul, member, panel, count);
    }
  }
  const Result ended = backend::Record(comm.products->copies_end, copies);
  return result.ok() ? ended : result;
}

Result Launch(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan,
              backend::Stream& stream) {
  const Problem& problem = call.problem;
  const bool copies = plan.variant == Variant::kCopyEngine && comm.team.size > 1;
  const Operation operation = problem.operation;
  const Common common = CommonOf(comm, call, plan);
  MatmulCall matmul = {};
  matmul.a = static_cast<const uint8_t*>(call.a);
  matmul.b = static_cast<const uint8_t*>(call.b);
  matmul.bias = problem.bias == DType::kNone ? nullptr : static_cast<const uint8_t*>(call.bias);
  matmul.d = static_cast<uint8_t*>(call.d);
  matmul.lda = call.lda;
  matmul.ldb = call.ldb;
  matmul.ldd = call.ldd;
  matmul.workspace_offset_bytes = WorkspaceOffset(comm);
  matmul.m = static_cast<uint32_t>(problem.m);
  matmul.n = static_cast<uint32_t>(problem.n);
  matmul.k = static_cast<uint32_t>(problem.k);
  matmul.out = problem.out;
  matmul.bias_type = problem.bias;
  matmul.activation = problem.activation;
  matmul.transposed_b = problem.transposed_b ? 1 : 0;
  matmul.copied = copies ? 1 : 0;
  Result result;
  // The members meet before one of them writes into the workspace of another.
  if (copies) result = LaunchOpeningOfCopies(comm, common, stream);
  if (result.ok() && operation == Operation::kAllGatherMatmul && comm.team.size > 1) {
    result = backend::Launch({1, 1, 0}, stream, &CountGather<>, common, matmul);
  }
  if (!result.ok()) return result;
  if (copies) result = StartCopies(comm, common, call, matmul, stream);
  if (result.ok()) {
    // Tiles may wait for rows of any block.
    const uint32_t together = operation == Operation::kAllGatherMatmul ? plan.blocks : 1;
    result = ccl::impl::InPieces(
        comm, {plan.blocks, plan.threads}, together, common, stream,
        [&](const LaunchConfig& piece, const Common& its) {
          return problem.in == DType::kF16
                     ? backend::Launch(piece, stream, &FusedMatmul<Half>, its, matmul)
                     : backend::Launch(piece, stream, &FusedMatmul<Bfloat16>, its, matmul);
        });
  }
  if (copies) {
    const Result joined = backend::WaitEvent(stream, comm.products->copies_end);
    if (result.ok()) result = joined;
  }
  const bool reads = IsSum(operation) || operation == Operation::kAllGatherMatmul;
  return result.ok() && reads ? LaunchEndOfReads(comm, common, stream) : result;
}

Result PrepareFused() {
  if (Result result = backend::PrepareKernel(&CountGather<>); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&TellPanels<>); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&FusedMatmul<Half>); !result.ok()) return result;
  return backend::PrepareKernel(&FusedMatmul<Bfloat16>);
}

bool SupportsAll(const ccl::Comm*, const Problem&, uint32_t, const Matmul*, const char**) {
  return true;
}

}  // namespace

const VariantRow kFusedRow = {
    Variant::kFused, &SupportsAll, &Bytes, &Complete, &Launch, &PrepareFused,
};

}  // namespace iris::ops::impl
