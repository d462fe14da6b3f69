#include "client/comm/mismatch_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "iris/collective/call_record.h"
#include "iris/moe/call_record.h"
#include "iris/norm/call_record.h"
#include "iris/ops/call_record.h"

namespace iris::internal {
namespace {

using ccl::ErrorInfo;
using ccl::Mismatch;
using ccl::Operation;
using ccl::PackedCall;

bool Reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

std::string RankText(uint32_t member, absl::Span<const uint32_t> ranks) {
  if (member >= ranks.size()) return "unknown";
  return absl::StrCat(ranks[member]);
}

// Returns "rank 2", or "ranks 0, 1 and 3".
std::string RanksText(uint64_t members, absl::Span<const uint32_t> ranks) {
  std::vector<uint32_t> these;
  for (uint32_t m = 0; m < ranks.size() && m < 64; ++m) {
    if ((members >> m & 1) != 0) these.push_back(ranks[m]);
  }
  std::string text = these.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < these.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : i + 1 == these.size() ? " and " : ", ", these[i]);
  }
  return text;
}

std::string Text(const ops::CallRecord& call) {
  std::string text = absl::StrCat("(m=", call.m);
  // Members may differ in fields that are left out.
  if (call.n != 0) absl::StrAppend(&text, ", n=", call.n);
  if (call.k != 0) absl::StrAppend(&text, ", k=", call.k);
  absl::StrAppend(&text, ", type=", DTypeName(call.type));
  if (call.out_type != DType::kNone) absl::StrAppend(&text, " to ", DTypeName(call.out_type));
  if (call.ldd != 0) absl::StrAppend(&text, ", ldd=", call.ldd);
  if (call.d_place != 0) {
    absl::StrAppend(&text, ", D at offset ", uint64_t{call.d_place} * 2,
                    " of the heap (modulo 2^33)");
  }
  if (call.bias) absl::StrAppend(&text, ", bias");
  if (call.transposed_b) absl::StrAppend(&text, ", transposed B");
  if (call.activation != ops::Activation::kNone) {
    absl::StrAppend(&text, ", ", ops::ActivationName(call.activation));
  }
  return absl::StrCat(text, ", variant=", ops::VariantName(call.variant), ", blocks=", call.blocks,
                      ")");
}

std::string Text(const moe::CallRecord& call) {
  return absl::StrCat("(hidden=", call.setup.hidden, ", experts=", call.setup.n_experts,
                      ", top_k=", call.setup.top_k, ", max_tokens=", call.setup.max_tokens,
                      ", capacity=", call.setup.capacity, ", types=", DTypeName(call.type), "/",
                      DTypeName(call.travels), "/", DTypeName(call.out_type),
                      ", workspace at offset ", call.place, " of the heap, blocks=", call.blocks,
                      ")");
}

std::string Text(const norm::CallRecord& call) {
  const norm::Problem& p = call.problem;
  std::string text = absl::StrCat("(rows=", p.rows, ", hidden=", p.hidden,
                                  ", type=", DTypeName(p.in), " to ", DTypeName(p.out));
  if (p.weight != DType::kNone) absl::StrAppend(&text, ", weight=", DTypeName(p.weight));
  if (p.residual) absl::StrAppend(&text, ", residual");
  if (p.scaling != norm::Scaling::kNone) {
    absl::StrAppend(&text, ", scaling=", norm::ScalingName(p.scaling));
  }
  absl::StrAppend(&text, ", epsilon=", p.epsilon);
  if (p.weight_offset != 0) absl::StrAppend(&text, ", weight_offset=", p.weight_offset);
  return absl::StrCat(text, ", variant=", norm::VariantName(call.plan.variant),
                      ", blocks=", call.plan.blocks, ", parts=", call.plan.parts, ")");
}

std::string CallText(const PackedCall& packed, uint64_t members, absl::Span<const uint32_t> ranks) {
  const std::string name = ccl::OperationName(packed.operation());
  if (ccl::IsMatmul(packed.operation())) return name + Text(ops::Unpack(packed));
  if (ccl::IsMoe(packed.operation())) return name + Text(moe::Unpack(packed));
  if (ccl::IsNorm(packed.operation())) return name + Text(norm::Unpack(packed));
  if (packed.operation() == Operation::kBarrier) return name + "()";
  const ccl::CallRecord call = ccl::Unpack(packed);
  const std::string type = absl::StrCat("type=", DTypeName(call.type));
  if (call.operation == Operation::kAllToAllV) return absl::StrCat(name, "(", type, ")");
  std::string text = absl::StrCat("count=", call.count, ", ", type);
  if (call.operation == Operation::kSendRecv) {
    const bool sends = call.root < 64 && members == uint64_t{1} << call.root;
    const bool receives = call.to < 64 && members == uint64_t{1} << call.to;
    if (sends) return absl::StrCat("send(", text, ", to=", RankText(call.to, ranks), ")");
    if (receives) return absl::StrCat("recv(", text, ", from=", RankText(call.root, ranks), ")");
    return absl::StrCat(name, "(", text, ", from=", RankText(call.root, ranks),
                        ", to=", RankText(call.to, ranks), ")");
  }
  if (Reduces(call.operation)) absl::StrAppend(&text, ", op=", ccl::ReduceOpName(call.op));
  if (call.root != ccl::CallRecord::kNobody) {
    absl::StrAppend(&text, ", root=", RankText(call.root, ranks));
  }
  return absl::StrCat(name, "(", text, ", variant=", ccl::VariantName(call.variant),
                      ", blocks=", call.blocks, ")");
}

bool ChecksCalls(const PackedCall& call) {
  if (ccl::IsMatmul(call.operation()) || ccl::IsMoe(call.operation())) return false;
  if (ccl::IsNorm(call.operation())) return norm::Unpack(call).check_calls;
  return ccl::Unpack(call).check_calls;
}

// Returns true if two calls are the same GEMM by different variants.
bool DifferByVariant(const PackedCall& a, const PackedCall& b) {
  if (!ccl::IsMatmul(a.operation()) || a.operation() != b.operation()) return false;
  const ops::CallRecord x = ops::Unpack(a);
  const ops::CallRecord y = ops::Unpack(b);
  return x.m == y.m && x.n == y.n && x.k == y.k && x.type == y.type && x.variant != y.variant;
}

}  // namespace

std::string MismatchText(const ErrorInfo& info, absl::Span<const uint32_t> ranks) {
  const Mismatch& mismatch = info.mismatch;
  const Operation operation = mismatch.most != 0 ? mismatch.most_call.operation() : info.operation;
  std::string text = absl::StrCat(ccl::OperationName(operation), " #", info.sequence, ": ");
  if (mismatch.rows_differ) {
    absl::StrAppend(&text, "rank ", RankText(mismatch.sender, ranks), " sends ",
                    base::SizeText(mismatch.sent_bytes), " to rank ",
                    RankText(mismatch.receiver, ranks), ", which expects ",
                    base::SizeText(mismatch.expected_bytes), " from it");
  } else if (mismatch.other != 0) {
    absl::StrAppend(&text, RanksText(mismatch.other, ranks), " called ",
                    CallText(mismatch.other_call, mismatch.other, ranks), ", ",
                    RanksText(mismatch.most, ranks), " called ",
                    CallText(mismatch.most_call, mismatch.most, ranks));
  } else {
    absl::StrAppend(&text, "the members of the team called differently, and what each called is ",
                    "not known");
  }
  if (mismatch.other != 0 && DifferByVariant(mismatch.most_call, mismatch.other_call)) {
    absl::StrAppend(&text, "; the automatic choice differs where matrices are aligned to 16 bytes ",
                    "on some ranks alone, or where some do not find the vendor's library: name ",
                    "the variant, or align them alike");
  }
  const bool most_check = ChecksCalls(mismatch.most_call);
  if (mismatch.other != 0 && most_check != ChecksCalls(mismatch.other_call)) {
    const uint64_t checking = most_check ? mismatch.most : mismatch.other;
    absl::StrAppend(&text, "; ", RanksText(checking, ranks), " alone ",
                    (checking & (checking - 1)) == 0 ? "compares" : "compare",
                    " calls before anything moves (check_calls, IRIS_CCL_CHECK): let all ranks ",
                    "do so, or none");
  }
  if (mismatch.rest != 0) {
    absl::StrAppend(&text, "; ", RanksText(mismatch.rest, ranks), " called something else again");
  }
  if (mismatch.absent != 0) {
    absl::StrAppend(&text, "; ", RanksText(mismatch.absent, ranks), " had not come");
  }
  return text;
}

std::string CallsText(const PackedCall& mine, uint32_t rank, const PackedCall& theirs,
                      uint32_t other, absl::Span<const uint32_t> ranks) {
  return absl::StrCat("rank ", rank, " called ", CallText(mine, 0, ranks), ", rank ", other,
                      " called ", CallText(theirs, 0, ranks));
}

}  // namespace iris::internal
