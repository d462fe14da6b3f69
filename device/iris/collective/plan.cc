// Plans of calls, by the rules of their Comm and the rows of the variants. They are final.
#include <cstdint>

#include "iris/collective/collective.h"
#include "iris/collective/impl/request.h"
#include "iris/collective/table.h"
#include "iris/collective/variants/variant.h"
#include "iris/rounds/layout.h"

namespace iris::ccl {
namespace {

using Row = ResolvedRules::Row;

uint64_t Clamp(uint64_t value, uint64_t low, uint64_t high) {
  return value < low ? low : value > high ? high : value;
}

// Bytes of the larger of in and out.
uint64_t BytesOf(const Shape& shape, uint32_t members) {
  const uint64_t bytes = shape.count * DTypeBytes(shape.type);
  switch (shape.operation) {
    case Operation::kReduceScatter:
    case Operation::kAllGather:
    case Operation::kAllToAll:
    case Operation::kGather:
    case Operation::kScatter:
      return bytes * members;
    case Operation::kAllToAllV:
      return 4 << 20;  // sizes differ from member to member: the grid must not
    default:
      return bytes;
  }
}

bool Has(Variant variant, const Shape& shape, uint32_t members) {
  const impl::VariantRow* row = impl::FindRow(impl::kRows, variant);
  return row != nullptr && (row->operations & impl::Bit(shape.operation)) != 0 &&
         (row->supports == nullptr || row->supports(shape, members));
}

// Returns true if a Comm has the variant for this shape.
bool Has(const Comm& comm, Variant variant, const Shape& shape) {
  const bool lines = variant == Variant::kLines || variant == Variant::kTwoLines;
  return !(lines && comm.config.without_lines) && Has(variant, shape, comm.team.size);
}

// Returns the variant that supports every call of an operation.
Variant Usual(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ? Variant::kTwoShot
                                                                               : Variant::kDirect;
}

// The variant and its rule. Rules of a variant that does not have the call are skipped.
Plan FollowRules(const Comm& comm, const Shape& shape, uint64_t bytes) {
  Variant wanted = shape.variant;
  if (wanted != Variant::kAuto && !Has(comm, wanted, shape)) wanted = Usual(shape.operation);
  const uint32_t operation = static_cast<uint32_t>(shape.operation);
  if (operation < kOperationCount) {
    const uint32_t begin = operation == 0 ? 0 : comm.rules.end[operation - 1];
    for (uint32_t i = begin; i < comm.rules.end[operation]; ++i) {
      const Row& row = comm.rules.rows[i];
      if (bytes > row.max_bytes) continue;
      if (wanted != Variant::kAuto && row.variant != wanted) continue;
      if (wanted == Variant::kAuto) {
        if (row.variant == Variant::kCopyEngine && !comm.config.symmetric) continue;
        if (!Has(comm, row.variant, shape)) continue;
      }
      return {row.variant, row.blocks, row.threads, row.unroll};
    }
  }
  if (wanted == Variant::kAuto) {
    wanted = Has(comm, Variant::kDirect, shape) ? Variant::kDirect : Usual(shape.operation);
  }
  return {wanted, 0, 0, 0};
}

}  // namespace

bool HasVariant(Operation operation, Variant variant) {
  if (operation > Operation::kSendRecv || operation == Operation::kBarrier) return false;
  const impl::VariantRow* row = impl::FindRow(impl::kRows, variant);
  return row != nullptr && (row->operations & impl::Bit(operation)) != 0;
}

Plan Choose(const Comm& comm, const Shape& shape) {
  if (comm.team.size == 1 && shape.operation != Operation::kBarrier) {
    return {Variant::kCopyEngine, 0, 0};
  }
  const Config& config = comm.config;
  const uint64_t bytes = BytesOf(shape, comm.team.size);
  Plan plan = FollowRules(comm, shape, bytes);
  if (config.block_threads != 0) plan.threads = config.block_threads;
  if (config.blocks != 0) plan.blocks = config.blocks;
  if (config.unroll != 0) plan.unroll = config.unroll;
  plan.unroll = static_cast<uint32_t>(Clamp(plan.unroll, 1, kMaxUnroll));
  impl::FindRow(impl::kRows, plan.variant)->fit(comm, shape, bytes, &plan);
  return plan;
}

namespace impl {

void FitWords(const Comm& comm, uint64_t words, Plan* plan) {
  const Config& config = comm.config;
  if (plan->threads == 0) {
    plan->threads =
        static_cast<uint32_t>(Clamp(RoundUp(words, 32), 32, backend::Traits::kEmulated ? 64 : 256));
  }
  if (plan->blocks == 0) {
    plan->blocks = static_cast<uint32_t>(
        Clamp((words + plan->threads - 1) / plan->threads, 1, config.packet_blocks));
  }
  if (plan->blocks > config.packet_blocks) plan->blocks = config.packet_blocks;
  if (words == 0) return;
  // No thread without a word, as far as whole warps allow.
  if (config.blocks == 0) {
    const uint64_t threads = RoundUp(words, 32);
    if (plan->threads > threads) plan->threads = static_cast<uint32_t>(threads);
    const uint64_t blocks = (words + plan->threads - 1) / plan->threads;
    if (plan->blocks > blocks) plan->blocks = static_cast<uint32_t>(blocks);
  }
  // No block without a word.
  if (plan->blocks > words) plan->blocks = static_cast<uint32_t>(words);
  const uint64_t per_block = (words + plan->blocks - 1) / plan->blocks;
  plan->blocks = static_cast<uint32_t>((words + per_block - 1) / per_block);
}

void FitLines(const Comm& comm, uint64_t row_bytes, Plan* plan) {
  const Config& config = comm.config;
  const uint32_t lanes = backend::WarpSize();
  const uint64_t step_bytes = lanes / kLineLanes * kLineDataBytes;
  const uint64_t steps = (row_bytes + step_bytes - 1) / step_bytes;
  // Whole warps.
  if (plan->threads == 0) plan->threads = backend::Traits::kEmulated ? 64 : 256;
  plan->threads = static_cast<uint32_t>(RoundUp(plan->threads, lanes));
  const uint64_t most_blocks = plan->blocks == 0 ? config.line_blocks : plan->blocks;
  if (config.block_threads == 0) {
    plan->threads =
        static_cast<uint32_t>(Clamp(RoundUp(steps * lanes, lanes), lanes, plan->threads));
  }
  const uint64_t warps = plan->threads / lanes;
  if (plan->blocks == 0) plan->blocks = static_cast<uint32_t>((steps + warps - 1) / warps);
  plan->blocks = static_cast<uint32_t>(
      Clamp(plan->blocks, 1, most_blocks < config.line_blocks ? most_blocks : config.line_blocks));
  if (steps == 0) return;
  // No block without a step.
  const uint64_t per_block = (steps + plan->blocks - 1) / plan->blocks;
  plan->blocks = static_cast<uint32_t>((steps + per_block - 1) / per_block);
}

void FitUnits(const Comm& comm, const Shape&, uint64_t bytes, Plan* plan) {
  const bool emu = backend::Traits::kEmulated;
  if (plan->threads == 0) plan->threads = emu ? 64 : kMaxThreads;
  if (plan->blocks == 0) {
    const uint64_t units = bytes / comm.team.size / 16;
    plan->blocks = static_cast<uint32_t>(
        Clamp(units / (plan->threads * (emu ? 16 : 1)) + 1, 1, comm.config.max_blocks));
  }
  if (plan->blocks > comm.config.max_blocks) plan->blocks = comm.config.max_blocks;
}

void FitRound(const Comm& comm, Plan* plan) {
  plan->blocks = 1;
  plan->threads =
      static_cast<uint32_t>(RoundUp(comm.team.size * CallWords::kCount, backend::WarpSize()));
}

}  // namespace impl

}  // namespace iris::ccl
