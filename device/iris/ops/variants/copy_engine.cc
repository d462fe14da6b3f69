// kCopyEngine: all_gather_matmul in which the copy engine sends rows of A while a kernel multiplies
// the rows that have arrived.
//
// The ranks first meet and compare their calls in an opening. Then the stream forks: one branch
// copies, and writes a word after each piece; the kernel on the other branch waits for these words.
// The kernel is that of kPersistent or kFused.
//
// The copies start even if the ranks do not meet. A slower rank may then still read, for an earlier
// call, memory that they overwrite. So it is warned first, and checks for the warning after its
// reads: either it has read everything before the copies came, or that call fails there, too.
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "iris/backend/product_ledger.h"
#include "iris/ops/impl/layout.h"
#include "iris/ops/variant.h"
#include "iris/rounds/protocol.h"
#include "iris/translate.h"

namespace iris::ops {

Result CreateResources(std::unique_ptr<Resources>* out) {
  std::unique_ptr<Resources> made(new (std::nothrow) Resources);
  if (made == nullptr) return {StatusCode::kResourceExhausted, "no memory"};
  Result result = backend::Stream::Create(&made->copies);
  if (result.ok()) result = backend::Event::Create(&made->copies_begin);
  if (result.ok()) result = backend::Event::Create(&made->copies_end);
  if (!result.ok()) return result;
  *out = std::move(made);
  return {};
}

namespace impl {

// Runs in one warp. `workspace_offset_bytes` is the offset of the GEMMs' workspace in every heap.
template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(backend::Traits::kWarpThreads,
                               1) void OpenForCopies(IRIS_PARAM Common common,
                                                     uint64_t workspace_offset_bytes) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  if (common.early != 0) backend::LetNextBegin();
  ccl::impl::Rounds rounds(common, &shared, backend::BlockIndex());
  const bool met = !rounds.broken() && rounds.Exchange(false);
  if (met) rounds.Finish();
  rounds.Conclude();
  if (met) return;
  for (uint32_t m = backend::ThreadIndex(); m < common.size; m += backend::BlockSize()) {
    if (m == common.index) continue;
    const auto word = [&](uint64_t offset_bytes) {
      return iris::AtOffset<uint64_t>(common.context, common.members[m],
                                      workspace_offset_bytes + offset_bytes);
    };
    backend::Store<Scope::kSystem, Order::kRelease>(word(kDisturber * sizeof(uint64_t)),
                                                    uint64_t{1} + common.index);
    backend::Store<Scope::kSystem, Order::kRelease>(
        word(kKeptAtBytes + backend::kProductFailureAtBytes),
        uint64_t{common.index} << backend::kProductStoppedByShift | backend::kProductStopped);
  }
}

template <uint32_t = 0>
IRIS_KERNEL IRIS_KERNEL_BOUNDS(1, 1) void EndReads(IRIS_PARAM Common common,
                                                   uint64_t workspace_offset_bytes) {
  IRIS_SHARED(ccl::impl::SharedState, shared);
  const auto* const words =
      iris::AtOffset<uint64_t>(common.context, common.context.rank, workspace_offset_bytes);
  const uint64_t disturber = backend::Load<Scope::kSystem, Order::kAcquire>(words + kDisturber);
  if (disturber == 0) return;
  const ccl::impl::Header* const header = ccl::impl::HeaderAt(common, common.index);
  if (backend::Load<Scope::kDevice, Order::kRelaxed>(&header->failed) != 0) return;
  const uint32_t finished = backend::Load<Scope::kDevice, Order::kRelaxed>(&header->sequence);
  auto* const state = iris::AtOffset<ccl::impl::BlockState>(common.context, common.context.rank,
                                                            common.sync_offset_bytes);
  ccl::impl::EndOperation(common, StatusCode::kAborted, static_cast<uint32_t>(disturber - 1),
                          finished - 1, state, &shared);
}

Result LaunchOpeningOfCopies(const ccl::Comm& comm, Common common, backend::Stream& stream) {
  common.ends = 0;
  common.early = 1;
  return backend::Launch({1, backend::Traits::kWarpThreads, 0}, stream, &OpenForCopies<>, common,
                         WorkspaceOffset(comm));
}

Result LaunchEndOfReads(const ccl::Comm& comm, const Common& common, backend::Stream& stream) {
  if (comm.products == nullptr || comm.team.size == 1) return {};
  return backend::Launch({1, 1, 0}, stream, &EndReads<>, common, WorkspaceOffset(comm));
}

namespace {

// One of this many blocks is omitted on a shared device, so that kernels that copy have room.
constexpr uint32_t kLeftToCopies = 8;

// With fewer rows a persistent GEMM has one row of tiles, and its own blocks send the rows.
constexpr uint64_t kLeastRows = 65;

bool HasPersistent(const ccl::Comm* comm, const Problem& problem, uint32_t members,
                   const Matmul* call) {
  const char* why = nullptr;
  return problem.m >= kLeastRows && kPersistentRow.supports(comm, problem, members, call, &why);
}

// Returns true if the persistent GEMM runs this call; the same on all members.
bool ByPersistent(const ccl::Comm& comm, const Problem& problem, const Matmul* call) {
  return PartsAreAlignedAlike(problem, comm.team.size, comm.team.index, call) &&
         HasPersistent(&comm, problem, comm.team.size, call);
}

bool Supports(const ccl::Comm* comm, const Problem& problem, uint32_t members, const Matmul*,
              const char** why) {
  *why = "the copy engine brings the rows of all_gather_matmul alone";
  if (problem.operation != Operation::kAllGatherMatmul) return false;
  *why = "the Comm has no stream for copies: give CommOptions::products";
  return comm == nullptr || members == 1 || comm->products != nullptr;
}

uint64_t Bytes(uint32_t members, const ccl::Config& config, const Problem& problem) {
  const uint64_t fused = kFusedRow.workspace_bytes(members, config, problem);
  if (!HasPersistent(nullptr, problem, members, nullptr)) return fused;
  const uint64_t persistent = kPersistentRow.workspace_bytes(members, config, problem);
  return persistent > fused ? persistent : fused;
}

void Complete(const ccl::Comm& comm, const Problem& problem, const Matmul* call, LaunchPlan* plan) {
  if (ByPersistent(comm, problem, call)) {
    return kPersistentRow.plan(comm, problem, call, plan);
  }
  kFusedRow.plan(comm, problem, call, plan);
  if (backend::Traits::kEmulated || comm.team.size == 1) return;
  const uint32_t all = comm.config.max_blocks;
  const uint32_t most = all - (all + kLeftToCopies - 1) / kLeftToCopies;
  if (plan->blocks > most) plan->blocks = most < 1 ? 1 : most;
}

Result Launch(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan,
              backend::Stream& stream) {
  const VariantRow& row = ByPersistent(comm, call.problem, &call) ? kPersistentRow : kFusedRow;
  return row.launch(comm, call, plan, stream);
}

// The other kernels belong to kFused and kPersistent.
Result Prepare() {
  if (Result result = backend::PrepareKernel(&OpenForCopies<>); !result.ok()) return result;
  return backend::PrepareKernel(&EndReads<>);
}

}  // namespace

const VariantRow kCopyEngineRow = {
    Variant::kCopyEngine, &Supports, &Bytes, &Complete, &Launch, &Prepare,
};

}  // namespace impl
}  // namespace iris::ops
