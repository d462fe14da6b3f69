// The launcher of GEMMs: checks, plans and openings.
#include "iris/ops/ops.h"

#include <cstdint>

#include "iris/backend/library_product.h"
#include "iris/nodes/impl/launch.h"
#include "iris/ops/call_record.h"
#include "iris/ops/impl/layout.h"
#include "iris/ops/rules.h"
#include "iris/ops/variant.h"
#include "iris/rounds/launch.h"
#include "iris/translate.h"

namespace iris::ops {
namespace impl {

uint64_t WorkspaceOffset(const ccl::Comm& comm) {
  return comm.workspace_offset_bytes +
         ccl::impl::OffsetsOf(comm.team.size, comm.config).total_bytes;
}

bool IsOnSharedDevice(const ccl::Comm& comm) {
  return comm.config.max_blocks < backend::MultiprocessorCount() &&
         comm.config.max_blocks < ccl::kMaxBlocks;
}

namespace {

// The unit in which CallRecord has D's offset.
constexpr uint64_t kPlaceBytes = 2;

}  // namespace

bool PartsAreAlignedAlike(const Problem& problem, uint32_t members, uint32_t member,
                          const Matmul* call) {
  const uint64_t aligned = 16 / DTypeBytes(problem.in);
  const auto is_even = [&](uint64_t whole) { return whole % (aligned * members) == 0; };
  uint64_t length = 0;
  switch (problem.operation) {
    case Operation::kMatmulAllScatter:
      return problem.transposed_b || is_even(problem.n);
    case Operation::kMatmulAllReduce:
    case Operation::kMatmulReduceScatter:
      length = problem.k;
      break;
    case Operation::kAllGatherMatmul:
      if (problem.transposed_b) return true;
      length = problem.n;
      break;
    default:
      return true;
  }
  if (call == nullptr) return true;
  const auto fits = [&](uint64_t ld) {
    // If the shares are even, members before this one have no shorter part, and members after it
    // may have one element less.
    const uint64_t behind = members - 1 - member;
    if (ld < length * members - behind) return true;  // a row has no room for other parts
    // Slices: if one has such a length, the next ones are aligned, and all have the same length.
    return length % aligned == 0 && ld >= length * members;
  };
  return (!IsSum(problem.operation) || fits(call->lda)) &&
         ((IsSum(problem.operation) && !problem.transposed_b) || fits(call->ldb));
}

Common CommonOf(const ccl::Comm& comm, const Matmul& call, const LaunchPlan& plan) {
  const Problem& problem = call.problem;
  const Operation operation = problem.operation;
  const bool to_all = IsToAll(operation);
  const bool own_product = operation == Operation::kAllGatherMatmul;  // each rank has its own D
  const uint64_t d_offset_bytes =
      to_all && comm.team.size > 1 ? OffsetBytes(comm.context, call.d) : 0;
  CallRecord record;
  record.operation = operation;
  record.type = problem.in;
  record.m = static_cast<uint32_t>(problem.m);
  record.variant = plan.variant;
  record.blocks = plan.blocks;
  // Members may differ in the fields that are left out.
  if (!own_product) {
    record.n = static_cast<uint32_t>(problem.n);
    record.out_type = problem.out;
    record.bias = problem.bias != DType::kNone;
    record.transposed_b = problem.transposed_b;
    record.activation = problem.activation;
  }
  if (!IsSum(operation)) record.k = static_cast<uint32_t>(problem.k);
  if (to_all) record.ldd = static_cast<uint32_t>(call.ldd);
  if (to_all && plan.variant == Variant::kPersistent) {
    record.d_place = static_cast<uint32_t>(d_offset_bytes / kPlaceBytes);
  }
  Common common = ccl::impl::CommonOf(comm, Pack(record), plan.blocks,
                                      ccl::impl::BeginsEarly(comm, plan.blocks));
  common.out_offset_bytes = d_offset_bytes;
  return common;
}

}  // namespace impl
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

bool IsAutomatic(const VariantRow* row) {
  if (row->variant == Variant::kPersistent) return true;
  if (row->variant == Variant::kCopyEngine) return backend::HasPersistentProduct();
  const Variant usual = backend::LibraryProductName() != nullptr ? Variant::kPair : Variant::kFused;
  return row->variant == usual;
}

// Returns true if a persistent GEMM, if the device has one, is expected to be faster than kPair
// with the vendor's library, by the figures of docs/ops.md.
constexpr uint64_t kFewRows = 64;
bool PersistentIsFaster(const Problem& problem) {
  return problem.m > kFewRows || problem.operation == Operation::kAllGatherMatmul ||
         problem.operation == Operation::kMatmulAllScatter;
}

// Returns true if the copy engine is expected to send rows to a persistent GEMM faster than its
// blocks do, by the figures of docs/ops.md, which have no smaller shares or copies within a device.
bool CopyEngineIsFaster(const ccl::Comm* comm, uint32_t members, const Problem& problem) {
  constexpr uint64_t kLeastShareBytes = 14 << 20;
  if (problem.operation != Operation::kAllGatherMatmul || problem.m <= kFewRows) return false;
  if (comm != nullptr && impl::IsOnSharedDevice(*comm)) return false;
  return problem.m / members * problem.k * DTypeBytes(problem.in) >= kLeastShareBytes;
}

// Returns the bytes of workspace that a row needs for a problem, beyond those of collectives.
uint64_t BytesOf(const Ranks& ranks, const VariantRow& row, const Problem& problem) {
  return impl::kArrivalBytes + row.workspace_bytes(ranks.size(), ranks.comm.config, problem);
}

bool HasWorkspace(const ccl::Comm& comm, uint64_t bytes) {
  const uint64_t begin = impl::WorkspaceOffset(comm) - comm.workspace_offset_bytes;
  return comm.workspace_bytes >= begin && comm.workspace_bytes - begin >= bytes;
}

// Returns the row that the rules of the Comm name; null if the rules name none, or one that some
// rank may not support.
const VariantRow* RowByRules(const ccl::Comm& comm, const Problem& problem, const Matmul* call) {
  if (comm.products == nullptr) return nullptr;
  const std::vector<Rule>& rules = comm.products->rules;
  const uint32_t members = comm.team.size;
  const VariantRow* row =
      FindRow(kRows, ChooseByRules(rules.data(), rules.size(), problem, members));
  const char* why = nullptr;
  if (row == nullptr || !row->supports(&comm, problem, members, call, &why)) return nullptr;
  const bool alike = row != &impl::kPersistentRow ||
                     impl::PartsAreAlignedAlike(problem, members, comm.team.index, call);
  return alike && HasWorkspace(comm, BytesOf({comm}, *row, problem)) ? row : nullptr;
}

bool RunsOnNodes(const Problem& problem) {
  return problem.variant == Variant::kAuto || problem.variant == Variant::kPair;
}

// Says why a variant other than kPair does not run GEMMs of ranks on several nodes.
const char* NeedsMapping(Variant variant) {
#define IRIS_WHY(Name, number, text) \
  if (variant == Variant::k##Name) return IRIS_NEEDS_MAPPING(text);
  IRIS_OPS_VARIANTS(IRIS_WHY)
#undef IRIS_WHY
  return "there is no such variant";
}

// Returns the row that runs a valid problem; null if none does, and `*why` says why. `call` is null
// if only the shape is known.
const VariantRow* RowOf(const Ranks& ranks, const Problem& problem, const Matmul* call,
                        const char** why) {
  if (ranks.nodes != nullptr) {
    *why = NeedsMapping(problem.variant);
    return RunsOnNodes(problem) ? &impl::kPairRow : nullptr;
  }
  const ccl::Comm& comm = ranks.comm;
  const uint32_t members = comm.team.size;
  const uint32_t member = comm.team.index;
  if (problem.variant != Variant::kAuto) {
    const VariantRow* row = FindRow(kRows, problem.variant);
    *why = "there is no such variant";
    return row != nullptr && row->supports(&comm, problem, members, call, why) ? row : nullptr;
  }
  if (const VariantRow* row = RowByRules(comm, problem, call); row != nullptr) return row;
  const bool library = backend::LibraryProductName() != nullptr;
  if ((!library || PersistentIsFaster(problem)) &&
      impl::PartsAreAlignedAlike(problem, members, member, call) &&
      impl::kPersistentRow.supports(&comm, problem, members, call, why)) {
    if (CopyEngineIsFaster(&comm, members, problem) &&
        impl::kCopyEngineRow.supports(&comm, problem, members, call, why)) {
      return &impl::kCopyEngineRow;
    }
    return &impl::kPersistentRow;
  }
  // The vendor's library is faster than our kernels by more than fusion gains.
  return library ? &impl::kPairRow : &impl::kFusedRow;
}

// A matrix of a call: `rows` of `columns`, `ld` elements apart.
struct Matrix {
  const void* first;
  uint64_t rows;
  uint64_t columns;
  uint64_t ld;
  uint64_t element_bytes;

  uint64_t bytes() const {
    return rows == 0 || columns == 0 ? 0 : ((rows - 1) * ld + columns) * element_bytes;
  }
};

Result CheckMatrix(const Ranks& ranks, const Matrix& matrix, const char* too_narrow, bool to_all) {
  if (matrix.ld < matrix.columns) return Invalid(too_narrow);
  if (matrix.ld > kMaxDimension) return Invalid("a leading dimension is larger than 2^31 - 1");
  // No overflow: dimensions are below 2^31.
  if (matrix.bytes() == 0 && !to_all) return {};  // this member has no part of the matrix
  uint64_t offset_bytes = 0;
  const uint64_t bytes = matrix.bytes() == 0 ? matrix.element_bytes : matrix.bytes();
  const Result result =
      ccl::impl::CheckBuffer(ranks, matrix.first, bytes, matrix.element_bytes, &offset_bytes);
  if (!result.ok()) return result;
  if (to_all && offset_bytes == ccl::impl::kNotInHeap) {
    return Invalid("D is not in the symmetric heap: all members write into it");
  }
  return {};
}

// The matrices of a call, with the sizes that the operation gives them.
struct Matrices {
  Matrix a;
  Matrix b;
  Matrix bias;
  Matrix d;
  bool to_all;
};

Matrices MatricesOf(const Ranks& ranks, const Matmul& call) {
  const Problem& p = call.problem;
  const uint64_t row_share = ShareOf(p.m, ranks.size(), ranks.index()).count;
  const uint64_t column_share = ShareOf(p.n, ranks.size(), ranks.index()).count;
  const bool own_rows =
      p.operation == Operation::kAllGatherMatmul || p.operation == Operation::kMatmulAllGather;
  const bool own_columns = p.operation == Operation::kMatmulAllScatter;
  const uint64_t columns = own_columns ? column_share : p.n;
  const uint64_t in_bytes = DTypeBytes(p.in);
  Matrices all;
  all.a = {call.a, own_rows ? row_share : p.m, p.k, call.lda, in_bytes};
  all.b = p.transposed_b ? Matrix{call.b, columns, p.k, call.ldb, in_bytes}
                         : Matrix{call.b, p.k, columns, call.ldb, in_bytes};
  all.bias = {call.bias, p.bias == DType::kNone ? uint64_t{0} : uint64_t{1}, columns, columns,
              p.bias == DType::kNone ? uint64_t{1} : DTypeBytes(p.bias)};
  all.d = {call.d, p.operation == Operation::kMatmulReduceScatter ? row_share : p.m, p.n, call.ldd,
           DTypeBytes(p.out)};
  all.to_all = impl::IsToAll(p.operation);
  return all;
}

bool Touch(const Matrix& x, const Matrix& y) {
  return x.bytes() != 0 && y.bytes() != 0 &&
         ccl::impl::Overlap(x.first, x.bytes(), y.first, y.bytes());
}

Result Choose(const Ranks& ranks, const Matmul& call, LaunchPlan* out) {
  const Problem& problem = call.problem;
  // A rank without a part of a matrix may pass null for it.
  const bool shape_only = call.a == nullptr && call.b == nullptr && call.d == nullptr;
  const Matmul* const matrices = shape_only ? nullptr : &call;
  if (Result result = CheckProblem(problem); !result.ok()) return result;
  if (ranks.size() == 0) return Invalid("the Comm was not made by CreateComm");
  const char* why = nullptr;
  const VariantRow* row = RowOf(ranks, problem, matrices, &why);
  if (row == nullptr) return {StatusCode::kUnimplemented, why};
  LaunchPlan plan;
  plan.variant = row->variant;
  row->plan(ranks.comm, problem, matrices, &plan);
  plan.workspace_bytes = BytesOf(ranks, *row, problem);
  if (!HasWorkspace(ranks.comm, plan.workspace_bytes)) {
    return {StatusCode::kResourceExhausted,
            "the workspace is too small for the problem: make the communicator with the "
            "matmul_bytes of the largest one that it will have"};
  }
  *out = plan;
  return {};
}

Result Launch(const Ranks& ranks, const Matmul& call, backend::Stream& stream, LaunchPlan* ran) {
  LaunchPlan plan;
  Result result = Choose(ranks, call, &plan);
  if (!result.ok()) return result;
  if (result = ccl::impl::CheckRanks(ranks); !result.ok()) return result;
  const Matrices all = MatricesOf(ranks, call);
  result = CheckMatrix(ranks, all.a, "lda is smaller than a row of A", false);
  if (result.ok()) result = CheckMatrix(ranks, all.b, "ldb is smaller than a row of B", false);
  if (result.ok()) result = CheckMatrix(ranks, all.bias, "", false);
  if (result.ok()) result = CheckMatrix(ranks, all.d, "ldd is smaller than a row of D", all.to_all);
  if (!result.ok()) return result;
  if (Touch(all.d, all.a) || Touch(all.d, all.b) || Touch(all.d, all.bias)) {
    return Invalid("D overlaps with what the operation reads");
  }
  if (ran != nullptr) *ran = plan;
  if (ranks.nodes != nullptr) return impl::LaunchPair(ranks, call, plan, stream);
  return FindRow(kRows, plan.variant)->launch(ranks.comm, call, plan, stream);
}

}  // namespace

Result CheckProblem(const Problem& problem) {
  if (!ccl::IsMatmul(problem.operation)) {
    return Invalid("the operation is no product of matrices");
  }
  if (problem.m == 0 || problem.n == 0 || problem.k == 0) {
    return Invalid("m, n and k are at least 1: a product of empty matrices is not computed");
  }
  if (problem.m > kMaxDimension || problem.n > kMaxDimension || problem.k > kMaxDimension) {
    return Invalid("m, n and k are at most 2^31 - 1");
  }
  // With this limit, sizes and numbers of tiles are far from overflow.
  constexpr uint64_t kMaxElements = 1ull << 42;
  if (problem.m * problem.n > kMaxElements || problem.m * problem.k > kMaxElements ||
      problem.k * problem.n > kMaxElements) {
    return Invalid("a matrix has more than 2^42 elements");
  }
  if (problem.in != DType::kF16 && problem.in != DType::kBf16) {
    return Invalid("A and B are of f16 or bf16");
  }
  if (!IsFloat(problem.out)) return Invalid("D is of f16, bf16 or f32");
  if (problem.bias != DType::kNone && !IsFloat(problem.bias)) {
    return Invalid("the bias is of f16, bf16 or f32");
  }
  if (static_cast<uint32_t>(problem.activation) >= kActivationCount) {
    return Invalid("no such activation");
  }
  if (static_cast<uint32_t>(problem.variant) >= kVariantCount) return Invalid("no such variant");
  return {};
}

uint64_t WorkspaceBytes(uint32_t n_members, const ccl::Config& config, const Problem& problem,
                        const Rule* rules, size_t n_rules) {
  const uint64_t base = ccl::WorkspaceBytes(n_members, config);
  if (base == 0 || !CheckProblem(problem).ok()) return 0;
  // Covers unaligned matrices, too, which may need another variant than aligned ones.
  uint64_t most = 0;
  bool any = false;
  const bool automatic = problem.variant == Variant::kAuto;
  const Variant named =
      automatic ? ChooseByRules(rules, n_rules, problem, n_members) : problem.variant;
  for (const VariantRow* row : kRows) {
    const char* why = nullptr;
    if (row->variant != named && !(automatic && IsAutomatic(row))) continue;
    if (!row->supports(nullptr, problem, n_members, nullptr, &why)) continue;
    any = true;
    const uint64_t bytes = row->workspace_bytes(n_members, ccl::impl::Complete(config), problem);
    if (bytes > most) most = bytes;
  }
  if (!any) return 0;
  return base + ccl::impl::RoundUp(impl::kArrivalBytes + most, ccl::kWorkspaceAlignmentBytes);
}

uint64_t WorkspaceBytesOnNodes(uint32_t n_members, const Problem& problem) {
  if (n_members == 0 || !RunsOnNodes(problem) || !CheckProblem(problem).ok()) return 0;
  return ccl::impl::RoundUp(
      impl::kArrivalBytes + impl::kPairRow.workspace_bytes(n_members, {}, problem),
      ccl::kWorkspaceAlignmentBytes);
}

Result Choose(const ccl::Comm& comm, const Matmul& call, LaunchPlan* out) {
  return Choose(Ranks{comm}, call, out);
}
Result ChooseOnNodes(const ccl::NodesComm& comm, const Matmul& call, LaunchPlan* out) {
  return Choose(Ranks{comm.local, &comm}, call, out);
}

Result Launch(const ccl::Comm& comm, const Matmul& call, backend::Stream& stream, LaunchPlan* ran) {
  return Launch(Ranks{comm}, call, stream, ran);
}
Result LaunchOnNodes(const ccl::NodesComm& comm, const Matmul& call, backend::Stream& stream,
                     LaunchPlan* ran) {
  return Launch(Ranks{comm.local, &comm}, call, stream, ran);
}

Result Prepare() {
  if (Result result = ccl::impl::PrepareOpening(); !result.ok()) return result;
  return ccl::impl::PrepareRows(kRows);
}

}  // namespace iris::ops
