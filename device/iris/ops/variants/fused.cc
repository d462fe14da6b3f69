// kFused: the kernel of impl/fused.h.
#include "iris/ops/impl/fused.h"

#include <cstdint>

#include "iris/collective/impl/request.h"
#include "iris/collective/variants/variant.h"
#include "iris/ops/variant.h"

namespace iris::ops::impl {
namespace {

// Tiles of the member that has most, the same on all members but where n differs.
uint64_t MostTiles(const Problem& problem, uint32_t members) {
  const uint32_t m = static_cast<uint32_t>(problem.m);
  const uint32_t n = static_cast<uint32_t>(problem.n);
  const uint32_t own = CountOwned(problem.operation, m, n, members, 0);
  return problem.operation == Operation::kAllGatherMatmul ? uint64_t{own} * members : own;
}

uint32_t BlocksOf(const Problem& problem, uint32_t members, const ccl::Config& config) {
  if (config.blocks != 0) return config.blocks;
  // n may differ, and the grid must not.
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

void Complete(const ccl::Comm& comm, const Problem& problem, Plan* plan) {
  plan->multiplier = "iris";
  plan->blocks = BlocksOf(problem, comm.team.size, comm.config);
  plan->threads = kTile.threads;
  plan->tile_rows = kTile.rows;
  plan->tile_columns = kTile.columns;
}

Result LaunchFused(const ccl::Comm& comm, const Matmul& call, const Plan& plan,
                   backend::Stream& stream) {
  const Problem& problem = call.problem;
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
  if (operation == Operation::kAllGatherMatmul && comm.team.size > 1) {
    const Result counted = backend::Launch({1, 1, 0}, stream, &CountGather<>, common, matmul);
    if (!counted.ok()) return counted;
  }
  // Tiles wait for the rows of any block.
  const uint32_t together = operation == Operation::kAllGatherMatmul ? plan.blocks : 1;
  return ccl::impl::InPieces(
      comm, {plan.blocks, plan.threads}, together, common, stream,
      [&](const LaunchConfig& piece, const Common& its) {
        return problem.in == DType::kF16
                   ? backend::Launch(piece, stream, &FusedMatmul<Half>, its, matmul)
                   : backend::Launch(piece, stream, &FusedMatmul<Bfloat16>, its, matmul);
      });
}

Result PrepareFused() {
  if (Result result = backend::PrepareKernel(&CountGather<>); !result.ok()) return result;
  if (Result result = backend::PrepareKernel(&FusedMatmul<Half>); !result.ok()) return result;
  return backend::PrepareKernel(&FusedMatmul<Bfloat16>);
}

bool SupportsAll(const ccl::Comm*, const Problem&, uint32_t, const Matmul*, const char**) {
  return true;
}

}  // namespace

const VariantRow kFusedRow = {
    Variant::kFused, &SupportsAll, &Bytes, &Complete, &LaunchFused, &PrepareFused,
};

}  // namespace iris::ops::impl
