#include "client/internal/mismatch_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"

namespace iris::internal {
namespace {

using ccl::CallRecord;
using ccl::ErrorInfo;
using ccl::Mismatch;
using ccl::Operation;
using Names = backend::BackendOperations;

bool Reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

std::string RankText(uint32_t member, absl::Span<const uint32_t> ranks) {
  if (member >= ranks.size()) return "unknown";
  return absl::StrCat(ranks[member]);
}

// "rank 2", "ranks 0, 1 and 3".
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

// A call as `members` made it.
std::string CallText(const Names& names, const CallRecord& call, uint64_t members,
                     absl::Span<const uint32_t> ranks) {
  std::string name = ccl::OperationName(call.operation);
  if (call.operation == Operation::kBarrier) return absl::StrCat(name, "()");
  const std::string type = absl::StrCat("type=", DTypeName(call.type));
  if (ccl::IsMatmul(call.operation)) {
    std::string text = absl::StrCat(name, "(m=", call.m);
    // What members may differ in is not told.
    if (call.n != 0) absl::StrAppend(&text, ", n=", call.n);
    if (call.k != 0) absl::StrAppend(&text, ", k=", call.k);
    absl::StrAppend(&text, ", ", type);
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
    return absl::StrCat(text, ", variant=", ops::VariantName(call.ops_variant),
                        ", blocks=", call.blocks, ")");
  }
  if (ccl::IsMoe(call.operation)) {
    // Between the two types: what travels.
    return absl::StrCat(name, "(hidden=", call.hidden, ", experts=", call.n_experts,
                        ", top_k=", call.top_k, ", max_tokens=", call.max_tokens,
                        ", capacity=", call.capacity, ", types=", DTypeName(call.type), "/",
                        DTypeName(call.moe_type), "/", DTypeName(call.out_type),
                        ", workspace at offset ", call.moe_place,
                        " of the heap, blocks=", call.blocks, ")");
  }
  if (ccl::IsNorm(call.operation)) {
    std::string text = absl::StrCat(name, "(rows=", call.rows, ", hidden=", call.hidden, ", ", type,
                                    " to ", DTypeName(call.out_type));
    if (call.weight != DType::kNone) absl::StrAppend(&text, ", weight=", DTypeName(call.weight));
    if (call.residual) absl::StrAppend(&text, ", residual");
    if (call.scaling != norm::Scaling::kNone) {
      absl::StrAppend(&text, ", scaling=", norm::ScalingName(call.scaling));
    }
    absl::StrAppend(&text, ", epsilon=", call.epsilon);
    if (call.weight_offset != 0) absl::StrAppend(&text, ", weight_offset=", call.weight_offset);
    return absl::StrCat(text, ", variant=", norm::VariantName(call.norm_variant),
                        ", blocks=", call.blocks, ", parts=", call.parts, ")");
  }
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
  if (Reduces(call.operation)) absl::StrAppend(&text, ", op=", names.ReduceOpName(call.op));
  if (call.root != CallRecord::kNobody) {
    absl::StrAppend(&text, ", root=", RankText(call.root, ranks));
  }
  return absl::StrCat(name, "(", text, ", variant=", names.VariantName(call.variant),
                      ", blocks=", call.blocks, ")");
}

}  // namespace

std::string MismatchText(const Names& names, const ErrorInfo& info,
                         absl::Span<const uint32_t> ranks) {
  const Mismatch& mismatch = info.mismatch;
  const Operation operation = mismatch.most != 0 ? mismatch.most_call.operation : info.operation;
  std::string text = absl::StrCat(ccl::OperationName(operation), " #", info.sequence, ": ");
  if (mismatch.rows_differ) {
    absl::StrAppend(&text, "rank ", RankText(mismatch.sender, ranks), " sends ",
                    base::SizeText(mismatch.sent_bytes), " to rank ",
                    RankText(mismatch.receiver, ranks), ", which expects ",
                    base::SizeText(mismatch.expected_bytes), " from it");
  } else if (mismatch.other != 0) {
    absl::StrAppend(&text, RanksText(mismatch.other, ranks), " called ",
                    CallText(names, mismatch.other_call, mismatch.other, ranks), ", ",
                    RanksText(mismatch.most, ranks), " called ",
                    CallText(names, mismatch.most_call, mismatch.most, ranks));
  } else {
    absl::StrAppend(&text, "the members of the team called differently, and what each called is ",
                    "not known");
  }
  const CallRecord& most = mismatch.most_call;
  const CallRecord& other = mismatch.other_call;
  if (mismatch.other != 0 && ccl::IsMatmul(most.operation) && most.operation == other.operation &&
      most.m == other.m && most.n == other.n && most.k == other.k && most.type == other.type &&
      most.ops_variant != other.ops_variant) {
    absl::StrAppend(&text, "; the automatic choice differs where matrices are aligned to 16 bytes ",
                    "on some ranks alone, or where some do not find the vendor's library: name ",
                    "the variant, or align them alike");
  }
  if (mismatch.other != 0 && most.check_calls != other.check_calls) {
    const uint64_t checking = most.check_calls ? mismatch.most : mismatch.other;
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

}  // namespace iris::internal
