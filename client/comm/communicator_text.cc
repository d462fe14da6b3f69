#include "client/comm/communicator_text.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "iris/dtype.h"
#include "iris/moe/call_record.h"

namespace iris::internal {

using ccl::ErrorInfo;

std::string CallText(const ops::Problem& problem) {
  return absl::StrCat(ccl::OperationName(problem.operation), "(m=", problem.m, ", n=", problem.n,
                      ", k=", problem.k, ", ", DTypeName(problem.in), " to ",
                      DTypeName(problem.out), ")");
}

std::string CallText(const char* name, const moe::Config& config) {
  return absl::StrCat(name, "(hidden=", config.hidden, ", experts=", config.n_experts,
                      ", top_k=", config.top_k, ", max_tokens=", config.max_tokens,
                      ", capacity=", config.capacity, ", ", DTypeName(config.in), ")");
}

std::string CallText(const norm::Problem& problem) {
  std::string text = absl::StrCat(ccl::OperationName(problem.operation), "(rows=", problem.rows,
                                  ", hidden=", problem.hidden, ", ", DTypeName(problem.in), " to ",
                                  DTypeName(problem.out));
  if (problem.scaling != norm::Scaling::kNone) {
    absl::StrAppend(&text, ", scaling=", norm::ScalingName(problem.scaling));
  }
  return absl::StrCat(text, problem.residual ? ", residual)" : ")");
}

std::string MoeFailureText(const ErrorInfo& info, StatusCode code, uint32_t rank) {
  if (code == StatusCode::kFailedPrecondition) {
    const moe::OtherTokens tokens = moe::OtherTokensOf(info);
    if (tokens.differ) {
      return absl::StrCat("rank ", rank, " dispatched ", tokens.dispatched, " tokens and combines ",
                          tokens.combined, ": give the same number to both");
    }
    return absl::StrCat("the workspace of rank ", rank,
                        " holds no dispatch of this config: call dispatch before");
  }
  const moe::BadChoice bad = moe::BadChoiceOf(info);
  std::string text = absl::StrCat("token ", bad.token, " of rank ", rank);
  if (bad.why == moe::BadExpert::kRepeated) {
    absl::StrAppend(&text, " chooses expert ", bad.value, " twice: a token names an expert once");
  } else {
    absl::StrAppend(&text, " chooses expert ", bad.value,
                    ", which there is not: an expert is 0 to n_experts - 1, and -1 is none");
  }
  return text;
}

std::string QueuesText(const backend::BackendOperations& backend) {
  const backend::StreamQueues queues = backend.CountQueues();
  if (queues.count == 0) return {};
  std::array<ccl::ShareInfo, 64> shares;
  const uint32_t n = backend.ListShares(shares.data(), shares.size());
  uint32_t streams = n;  // and one more for the own work of each rank
  for (uint32_t k = 0; k < n && k < shares.size(); ++k) {
    const auto same = [&](const ccl::ShareInfo& other) { return other.rank == shares[k].rank; };
    if (std::none_of(shares.begin(), shares.begin() + k, same)) ++streams;
  }
  if (streams <= queues.count) return {};
  return absl::StrCat(
      "this process has ", n, " communicators on a device whose streams share ", queues.count,
      " queues: operations on different streams may wait for each other there; ", queues.remedy);
}

std::string SharesText(const backend::BackendOperations& backend) {
  std::array<ccl::ShareInfo, 64> shares;
  const uint32_t n = backend.ListShares(shares.data(), shares.size());
  std::string text = absl::StrCat("; on this device, this process has ", n, " communicators");
  const char* between = ": ";
  for (uint32_t k = 0; k < n && k < shares.size(); ++k) {
    const ccl::ShareInfo& share = shares[k];
    absl::StrAppend(&text, between, share.name[0] == 0 ? "one without a name" : share.name,
                    " of rank ", share.rank, " and ", share.members - 1, " others, with ",
                    share.blocks, " blocks");
    if (share.captured != 0) absl::StrAppend(&text, ", ", share.captured, " in graphs");
    if (share.products) absl::StrAppend(&text, ", for products, too");
    between = "; ";
  }
  return text;
}

}  // namespace iris::internal
