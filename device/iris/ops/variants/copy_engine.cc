// kCopyEngine: all_gather_matmul whose rows of A are brought by the copy engine, beside a kernel
// that multiplies those that are there.
//
// First an opening, in which the members meet and compare their calls. Behind it the stream forks:
// one branch copies, each piece followed by a word of which the kernel on the other branch knows
// that the piece is there. What makes the products is the kernel of kPersistent, or that of kFused.
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "iris/ops/impl/layout.h"
#include "iris/ops/variant.h"

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
namespace {

// What is left of a device to the kernels of copies: one block's place of so many.
constexpr uint32_t kLeftToCopies = 8;

// A persistent product of fewer rows is one row of tiles, and sends by blocks.
constexpr uint64_t kLeastRows = 65;

bool ByPersistent(const ccl::Comm* comm, const Problem& problem, uint32_t members,
                  const Matmul* call) {
  const char* why = nullptr;
  return problem.m >= kLeastRows && kPersistentRow.supports(comm, problem, members, call, &why);
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
  if (!ByPersistent(nullptr, problem, members, nullptr)) return fused;
  const uint64_t persistent = kPersistentRow.workspace_bytes(members, config, problem);
  return persistent > fused ? persistent : fused;
}

void Complete(const ccl::Comm& comm, const Problem& problem, const Matmul* call, Plan* plan) {
  if (ByPersistent(&comm, problem, comm.team.size, call)) {
    return kPersistentRow.plan(comm, problem, call, plan);
  }
  kFusedRow.plan(comm, problem, call, plan);
  if (backend::Traits::kEmulated || comm.team.size == 1) return;
  const uint32_t all = comm.config.max_blocks;
  const uint32_t most = all - (all + kLeftToCopies - 1) / kLeftToCopies;
  if (plan->blocks > most) plan->blocks = most < 1 ? 1 : most;
}

Result Launch(const ccl::Comm& comm, const Matmul& call, const Plan& plan,
              backend::Stream& stream) {
  if (ByPersistent(&comm, call.problem, comm.team.size, &call)) {
    return LaunchPersistent(comm, call, plan, true, stream);
  }
  return LaunchFused(comm, call, plan, comm.team.size > 1, stream);
}

// Its kernels are those of the others.
Result Prepare() { return {}; }

}  // namespace

const VariantRow kCopyEngineRow = {
    Variant::kCopyEngine, &Supports, &Bytes, &Complete, &Launch, &Prepare,
};

}  // namespace impl
}  // namespace iris::ops
