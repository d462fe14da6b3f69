// The launcher of norms: checks and plans.
#include "iris/norm/norm.h"

#include <cstdint>

#include "iris/nodes/impl/launch.h"
#include "iris/norm/call_record.h"
#include "iris/norm/impl/row.h"
#include "iris/norm/variant.h"
#include "iris/rounds/launch.h"

namespace iris::norm {
namespace {

using ccl::Operation;
using ccl::impl::FindRow;
using ccl::impl::Ranks;
using impl::Invalid;
using impl::kRows;
using impl::VariantRow;

bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBf16;
}
bool IsFp8(DType type) { return type == DType::kF8E4M3 || type == DType::kF8E5M2; }

uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }
uint64_t Most(uint64_t a, uint64_t b) { return a < b ? b : a; }
uint64_t Ceil(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

// Returns the threads of a block that has part_bytes of a row, if a thread has at most `kept` units
// of unit_bytes. Returns at most `most` if that many suffice.
uint32_t ThreadsFor(uint64_t part_bytes, uint64_t unit_bytes, uint64_t most, uint32_t kept) {
  const uint64_t warp = backend::WarpSize();
  const uint64_t units = Ceil(part_bytes, unit_bytes);
  const uint64_t wanted = Most(Least(units, most), Ceil(units, kept));
  return static_cast<uint32_t>(ccl::impl::RoundUp(wanted, warp));
}

// Makes the plan of a problem for one variant. Returns false and sets `*why` if the variant does
// not support the problem.
bool PlanBy(const VariantRow* row, const ccl::Comm& comm, const Problem& problem, Plan* plan,
            const char** why) {
  if (row->plan != nullptr) return row->plan(comm, problem, plan, why);
  const ccl::Config& config = comm.config;
  const uint64_t warp = backend::WarpSize();
  const uint64_t element_bytes = DTypeBytes(problem.in);
  // Lines carry 15 bytes of data in each 16.
  const bool by_lines = row->variant == Variant::kLines || row->variant == Variant::kTwoLines;
  const uint64_t unit_bytes = by_lines ? ccl::impl::LineLane::kStepBytes / warp : uint64_t{16};
  uint64_t most_threads = backend::Traits::kEmulated ? uint64_t{64} : uint64_t{impl::kMaxThreads};
  uint64_t part_bytes = row->part_bytes(comm, problem, why);
  if (part_bytes == 0) return false;
  if (config.block_threads != 0) {
    most_threads = ccl::impl::RoundUp(config.block_threads, warp);
    part_bytes = Least(part_bytes, most_threads * unit_bytes * row->kept);
  }
  *why =
      "a row is too long for the blocks of this Comm: make it with more max_blocks or "
      "stage_bytes";
  uint64_t columns = part_bytes / element_bytes;
  if (columns < problem.hidden) columns = columns / kGroupColumns * kGroupColumns;
  if (columns == 0) return false;
  uint64_t max_blocks = row->max_blocks(comm);
  if (config.blocks != 0) max_blocks = Least(max_blocks, config.blocks);
  // Blocks that share a row have room for kMaxParts words, one for each part of a row. In kTwoLines
  // they work on one row of each member at a time.
  const uint64_t rows_at_once =
      row->variant == Variant::kTwoLines ? impl::RowsOfTwoLines(comm.team.size) : 1;
  const uint64_t most_parts = Least(impl::kMaxParts / rows_at_once, max_blocks);
  const uint64_t least_parts = Ceil(problem.hidden, columns);
  if (least_parts > most_parts) return false;
  // A few rows are divided among many blocks, so that many blocks send.
  const uint64_t rows = Most(row->rows(comm, problem), 1);
  constexpr uint64_t kBytesForABlock = backend::Traits::kEmulated ? 4096 : 2048;
  const uint64_t parts =
      Most(Least(Least(max_blocks / rows, Ceil(problem.hidden * element_bytes, kBytesForABlock)),
                 most_parts),
           least_parts);
  const uint64_t part_columns = impl::PartColumns(problem.hidden, static_cast<uint32_t>(parts));
  plan->variant = row->variant;
  plan->parts = static_cast<uint32_t>(Ceil(problem.hidden, part_columns));
  plan->blocks = static_cast<uint32_t>(Least(rows, max_blocks / plan->parts) * plan->parts);
  plan->threads = ThreadsFor(Least(part_columns, problem.hidden) * element_bytes, unit_bytes,
                             most_threads, row->kept);
  return true;
}

// One-shot variants are expected to be the fastest if a member sends at most this many bytes.
constexpr uint64_t kPacketBytes = backend::Traits::kEmulated ? 8 << 10 : 96 << 10;
constexpr uint64_t kLineBytes = backend::Traits::kEmulated ? 64 << 10 : 3 << 20;

// Thresholds on GPUs: the saved bytes that are worth a second transfer; the size from which it is
// faster that each member reduces only its share; and the size up to which sums are expected to
// travel faster as lines than by the rounds of kTwoShot.
constexpr uint64_t kSecondWayBytes = 1 << 20;
constexpr uint64_t kShareBytes = 1 << 20;
constexpr uint64_t kTwoLinesBytes = 6 << 20;

Variant Preferred(const ccl::Comm& comm, const Problem& problem) {
  const uint64_t n = comm.team.size;
  if (n == 1) return Variant::kAlone;
  const uint64_t all_bytes = problem.rows * problem.hidden * DTypeBytes(problem.in);
  const uint64_t bytes = all_bytes * (n - 1);
  // GPUs with lines use them even for a few rows: a unit takes one store and one load as a line,
  // but two of each as packets.
  const bool takes_lines = !backend::Traits::kEmulated && impl::HasLines(comm);
  if (bytes <= kPacketBytes && !takes_lines) return Variant::kPackets;
  const bool has_sums_as_lines =
      problem.scaling == Scaling::kNone || problem.scaling == Scaling::kStatic;
  if (takes_lines && has_sums_as_lines && all_bytes <= kTwoLinesBytes &&
      (all_bytes > kShareBytes || bytes - bytes / n * 2 > kSecondWayBytes)) {
    return Variant::kTwoLines;
  }
  return bytes <= kLineBytes ? Variant::kLines : Variant::kTwoShot;
}

struct Buffer {
  const void* first;
  uint64_t rows;  // 0: this member has none
  uint64_t row_bytes;
  uint64_t stride_bytes;
  uint64_t element_bytes;

  uint64_t bytes() const { return rows == 0 ? 0 : (rows - 1) * stride_bytes + row_bytes; }
};

struct Buffers {
  Buffer in, residual, residual_out, weight, out, scale, scales;
};

Buffers BuffersOf(const Ranks& ranks, const Norm& call) {
  const Problem& p = call.problem;
  const uint64_t each = DTypeBytes(p.in);
  const uint64_t residual_rows = !p.residual ? 0
                                 : p.operation == Operation::kAllReduceRmsNorm
                                     ? p.rows
                                     : iris::ShareOf(p.rows, ranks.size(), ranks.index()).count;
  const auto rows_of = [&p](const void* first, uint64_t rows, uint64_t stride, uint64_t bytes) {
    return Buffer{first, rows, p.hidden * bytes, stride * bytes, bytes};
  };
  const auto one = [](const void* first, uint64_t elements, uint64_t bytes) {
    return Buffer{first, elements == 0 ? 0u : 1u, elements * bytes, elements * bytes, bytes};
  };
  const uint64_t scales = p.scaling == Scaling::kPerRow     ? p.rows
                          : p.scaling == Scaling::kPerGroup ? p.rows * Ceil(p.hidden, kGroupColumns)
                                                            : 0;
  Buffers all;
  all.in = rows_of(call.in, p.rows, call.in_stride, each);
  all.residual = rows_of(call.residual, residual_rows, call.residual_stride, each);
  all.residual_out = rows_of(call.residual_out, residual_rows, call.residual_out_stride, each);
  const uint64_t weight_bytes = p.weight == DType::kNone ? 1 : DTypeBytes(p.weight);
  all.weight = one(call.weight, p.weight == DType::kNone ? 0 : p.hidden, weight_bytes);
  all.out = rows_of(call.out, p.rows, call.out_stride, DTypeBytes(p.out));
  all.scale = one(call.scale, p.scaling == Scaling::kStatic ? 1 : 0, sizeof(float));
  all.scales = one(call.scales, scales, sizeof(float));
  return all;
}

bool Touch(const Buffer& x, const Buffer& y) {
  if (x.rows == 0 || y.rows == 0) return false;
  if (!ccl::impl::Overlap(x.first, x.bytes(), y.first, y.bytes())) return false;
  if (x.stride_bytes != y.stride_bytes) return true;
  // With the same stride, the rows do not overlap if those of one buffer lie in the gaps of the
  // other.
  const uint64_t distance =
      reinterpret_cast<uint64_t>(y.first) - reinterpret_cast<uint64_t>(x.first);
  const uint64_t stride = x.stride_bytes;
  const uint64_t at = reinterpret_cast<uint64_t>(y.first) >= reinterpret_cast<uint64_t>(x.first)
                          ? distance % stride
                          : (stride - (0 - distance) % stride) % stride;
  return at < x.row_bytes || at + y.row_bytes > stride;
}

// The offsets of buffers in the heap, or kNotInHeap.
struct Offsets {
  uint64_t in = 0;
  uint64_t residual_out = 0;
  uint64_t out = 0;
};

Result CheckBuffers(const Ranks& ranks, const Norm& call, Offsets* at) {
  const Buffers all = BuffersOf(ranks, call);
  uint64_t unused = 0;
  const struct {
    const Buffer& buffer;
    uint64_t* offset_bytes;
    const char* missing;
    const char* misaligned;
  } checks[] = {
      {all.in, &at->in, "in is null", "in is not aligned to its elements"},
      {all.residual, &unused, "the residual is null",
       "the residual is not aligned to its elements"},
      {all.residual_out, &at->residual_out, "residual_out is null: it may be the residual itself",
       "residual_out is not aligned to its elements"},
      {all.weight, &unused, "the weight is null: without one, its type is kNone",
       "the weight is not aligned to its elements"},
      {all.out, &at->out, "out is null", "out is not aligned to its elements"},
      {all.scale, &unused, "the scale is null, which static scaling reads",
       "the scale is not aligned to 4 bytes"},
      {all.scales, &unused, "the scales are null, which this scaling writes",
       "the scales are not aligned to 4 bytes"}};
  for (const auto& check : checks) {
    if (check.buffer.rows == 0) continue;
    if (check.buffer.first == nullptr) return Invalid(check.missing);
    if (reinterpret_cast<uint64_t>(check.buffer.first) % check.buffer.element_bytes != 0) {
      return Invalid(check.misaligned);
    }
    const Result result = ccl::impl::CheckBuffer(ranks, check.buffer.first, check.buffer.bytes(),
                                                 check.buffer.element_bytes, check.offset_bytes);
    if (!result.ok()) return result;
  }
  const bool out_is_in = call.out == call.in && call.problem.out == call.problem.in &&
                         call.out_stride == call.in_stride;
  if ((Touch(all.out, all.in) && !out_is_in) || Touch(all.out, all.residual) ||
      Touch(all.out, all.residual_out) || Touch(all.out, all.weight) || Touch(all.out, all.scale) ||
      Touch(all.out, all.scales)) {
    return Invalid(
        "out overlaps with another buffer: it may be `in` itself, with the same type and stride, "
        "and nothing else");
  }
  const bool in_place =
      call.residual_out == call.residual && call.residual_out_stride == call.residual_stride;
  if ((Touch(all.residual_out, all.residual) && !in_place) || Touch(all.residual_out, all.in) ||
      Touch(all.residual_out, all.weight) || Touch(all.residual_out, all.scale) ||
      Touch(all.residual_out, all.scales)) {
    return Invalid(
        "residual_out overlaps with another buffer: it may be the residual itself, with the same "
        "stride, and nothing else");
  }
  if (Touch(all.scales, all.in) || Touch(all.scales, all.residual) ||
      Touch(all.scales, all.weight)) {
    return Invalid("the scales overlap with what the operation reads");
  }
  return {};
}

// Checks the buffers of a call that has rows, and sets its strides.
Result Complete(const Ranks& ranks, Norm* call, Offsets* at) {
  const Problem& problem = call->problem;
  // Otherwise a buffer that the problem does not mention would be ignored silently.
  if (!problem.residual && (call->residual != nullptr || call->residual_out != nullptr)) {
    return Invalid(
        "a residual is given, and the call says that it has none: set `residual` of the shape "
        "(`has_residual` in C), or give none");
  }
  if (problem.weight == DType::kNone && call->weight != nullptr) {
    return Invalid(
        "a weight is given without its type: set `weight` of the shape (`weight_dtype` in C), or "
        "give none");
  }
  for (uint64_t* stride :
       {&call->in_stride, &call->residual_stride, &call->residual_out_stride, &call->out_stride}) {
    if (*stride == 0) *stride = problem.hidden;
    if (*stride < problem.hidden || *stride > kMaxDimension) {
      return Invalid("a stride is hidden to 2^31 - 1 columns, or 0: as hidden");
    }
  }
  return CheckBuffers(ranks, *call, at);
}

const char* NeedsMapping(Variant variant) {
#define IRIS_WHY(Name, number, text) \
  if (variant == Variant::k##Name) return IRIS_NEEDS_MAPPING(text);
  IRIS_NORM_VARIANTS(IRIS_WHY)
#undef IRIS_WHY
  return "there is no such variant";
}

}  // namespace

Result CheckProblem(const Problem& problem) {
  if (!ccl::IsNorm(problem.operation)) return Invalid("the operation is no norm of sums");
  if (problem.hidden == 0) return Invalid("hidden is at least 1: a row has to have columns");
  if (problem.rows > kMaxDimension || problem.hidden > kMaxDimension) {
    return Invalid("rows and hidden are at most 2^31 - 1");
  }
  constexpr uint64_t kMaxElements = 1ull << 42;
  if (problem.rows * problem.hidden > kMaxElements) {
    return Invalid("there are more than 2^42 elements");
  }
  if (!IsFloat(problem.in)) return Invalid("the type of `in` is f32, f16 or bf16");
  if (problem.out != problem.in && !IsFp8(problem.out) &&
      !(problem.in == DType::kF32 && IsFloat(problem.out))) {
    return Invalid(
        "the type of `out` is that of `in`, f8e4m3 or f8e5m2, or for an `in` of f32 also f16 or "
        "bf16");
  }
  if (problem.weight != DType::kNone && !IsFloat(problem.weight)) {
    return Invalid("the type of the weight is f32, f16 or bf16");
  }
  if (static_cast<uint32_t>(problem.scaling) >= kScalingCount) return Invalid("no such scaling");
  if (IsFp8(problem.out) != (problem.scaling != Scaling::kNone)) {
    return Invalid("an `out` of fp8 has a scaling, and no other has one");
  }
  if (!(problem.epsilon >= 0) || problem.epsilon > 3.4e38f) {
    return Invalid("epsilon is a finite number that is not negative");
  }
  if (!(problem.weight_offset >= -3.4e38f && problem.weight_offset <= 3.4e38f)) {
    return Invalid("weight_offset is a finite number");
  }
  if (problem.weight == DType::kNone && problem.weight_offset != 0) {
    return Invalid("weight_offset is added to a weight, of which there is none");
  }
  if (static_cast<uint32_t>(problem.variant) >= kVariantCount) return Invalid("no such variant");
  return {};
}

Result Choose(const ccl::Comm& comm, const Problem& problem, Plan* out) {
  if (Result result = CheckProblem(problem); !result.ok()) return result;
  if (comm.team.size == 0) return Invalid("the Comm was not made by CreateComm");
  const char* why = nullptr;
  Plan plan;
  if (problem.variant != Variant::kAuto) {
    if (!PlanBy(FindRow(kRows, problem.variant), comm, problem, &plan, &why)) {
      return {StatusCode::kUnimplemented, why};
    }
    *out = plan;
    return {};
  }
  if (PlanBy(FindRow(kRows, Preferred(comm, problem)), comm, problem, &plan, &why)) {
    *out = plan;
    return {};
  }
  // The reason of the variant that supports the longest rows: kTwoShot for several members,
  // kPackets, the last one that is tried, for one member.
  const char* longest_why = nullptr;
  for (const VariantRow* row : kRows) {
    if (PlanBy(row, comm, problem, &plan, &why)) {
      *out = plan;
      return {};
    }
    if (longest_why == nullptr || comm.team.size == 1) longest_why = why;
  }
  return {StatusCode::kResourceExhausted, longest_why};
}

impl::NormCall impl::ArgumentsOf(const Norm& call, const Plan& plan) {
  const Problem& problem = call.problem;
  NormCall norm = {};
  norm.in = static_cast<const uint8_t*>(call.in);
  if (problem.residual) {
    norm.residual = static_cast<const uint8_t*>(call.residual);
    norm.residual_out = static_cast<uint8_t*>(call.residual_out);
    // A member without a row of its own may pass no residual.
    if (norm.residual == nullptr) norm.residual = norm.in;
  }
  if (problem.weight != DType::kNone) norm.weight = static_cast<const uint8_t*>(call.weight);
  norm.out = static_cast<uint8_t*>(call.out);
  norm.scale = call.scale;
  norm.scales = call.scales;
  norm.in_stride = call.in_stride;
  norm.residual_stride = call.residual_stride;
  norm.residual_out_stride = call.residual_out_stride;
  norm.out_stride = call.out_stride;
  norm.rows = static_cast<uint32_t>(problem.rows);
  norm.hidden = static_cast<uint32_t>(problem.hidden);
  norm.blocks = plan.blocks;
  norm.parts = plan.parts;
  norm.part_columns = static_cast<uint32_t>(PartColumns(problem.hidden, plan.parts));
  norm.epsilon = problem.epsilon;
  norm.weight_offset = problem.weight_offset;
  norm.out_type = problem.out;
  norm.weight_type = problem.weight;
  norm.scaling = problem.scaling;
  return norm;
}

Result Launch(const ccl::Comm& comm, const Norm& given, backend::Stream& stream) {
  const Problem& problem = given.problem;
  Plan plan;
  if (Result result = Choose(comm, problem, &plan); !result.ok()) return result;
  if (Result result = ccl::impl::CheckComm(comm); !result.ok()) return result;
  if (problem.rows == 0) return {};
  Norm call = given;
  Offsets at;
  if (Result result = Complete({comm}, &call, &at); !result.ok()) return result;
  // The addresses that other members read and write in kTwoShot. They do not know this member's
  // strides: a buffer with gaps is announced as outside the heap, and goes through the stages.
  const bool gives_sums = problem.operation == Operation::kAllReduceRmsNorm && problem.residual;
  const auto reached = [&problem](uint64_t offset_bytes, uint64_t stride) {
    return stride == problem.hidden || problem.rows == 1 ? offset_bytes : ccl::impl::kNotInHeap;
  };
  impl::Common common = ccl::impl::CommonOf(comm, Pack({problem, plan, comm.config.check_calls}),
                                            plan.blocks, ccl::impl::BeginsEarly(comm, plan.blocks));
  common.in_offset_bytes = reached(at.in, call.in_stride);
  common.out_offset_bytes = gives_sums ? reached(at.residual_out, call.residual_out_stride)
                                       : reached(at.out, call.out_stride);
  impl::NormCall norm = impl::ArgumentsOf(call, plan);
  norm.partners_offset_bytes =
      comm.workspace_offset_bytes + ccl::impl::OffsetsOf(comm.team.size, comm.config).partner_bytes;
  norm.lets_next_begin = comm.config.early;
  const VariantRow* const row = FindRow(kRows, plan.variant);
  // Blocks that wait for no other block need no reserved room on the device, unless the kernel
  // begins early: then it waits for the previous kernel, which may wait for others.
  if (row->plan != nullptr && common.early == 0) {
    return row->launch(common, norm, problem.in, {plan.blocks, plan.threads}, stream);
  }
  return ccl::impl::InPieces(comm, {plan.blocks, plan.threads, 0, common.early != 0}, plan.parts,
                             common, stream,
                             [&](const LaunchConfig& piece, const impl::Common& its) {
                               return row->launch(its, norm, problem.in, piece, stream);
                             });
}

Result ChooseOnNodes(const ccl::NodesComm& comm, const Problem& problem, Plan* out) {
  if (Result result = CheckProblem(problem); !result.ok()) return result;
  if (comm.size == 0) return Invalid("the NodesComm was not made by CreateNodesComm");
  if (problem.variant != Variant::kAuto && problem.variant != Variant::kPair) {
    return {StatusCode::kUnimplemented, NeedsMapping(problem.variant)};
  }
  return impl::PlanPair(comm, problem, out);
}

Result LaunchOnNodes(const ccl::NodesComm& comm, const Norm& given, backend::Stream& stream) {
  Plan plan;
  if (Result result = ChooseOnNodes(comm, given.problem, &plan); !result.ok()) return result;
  if (Result result = ccl::impl::CheckNodesComm(comm); !result.ok()) return result;
  if (given.problem.rows == 0) return {};
  Norm call = given;
  Offsets at;
  if (Result result = Complete({comm.local, &comm}, &call, &at); !result.ok()) return result;
  return impl::LaunchPair(comm, call, stream);
}

Result Prepare() { return ccl::impl::PrepareRows(kRows); }

}  // namespace iris::norm
