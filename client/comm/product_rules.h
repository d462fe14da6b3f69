// ProductRules: the lines of a table of rules that choose variants of GEMMs (iris::ops). They stand
// in the same text as the rules of collectives (iris/collective/rules.h):
//
//   # operation           members  m     n     k     variant
//   matmul_all_reduce     4        64    8192  any   pair
//   all_gather_matmul     any      8192  any   any   fused
//
// GEMMs of this operation on this many ranks, whose m, n and k are near these numbers, go by this
// variant; `any` stands for every number. All ranks must choose alike, so a number in which they
// may differ (k of matmul_all_reduce and matmul_reduce_scatter, n of all_gather_matmul) is always
// `any`. A # begins a comment.
//
// ops::ChooseByRules (iris/ops/rules.h) says which line decides for a call.
//
// A plain value; const functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "iris/ccl_types.h"
#include "iris/ops/rules.h"

namespace iris::internal {

class ProductRules {
 public:
  static constexpr size_t kMaxRules = 1024;

  // Takes the lines of products from a text, in which any bytes may come. *others: the text with
  // these lines empty, so that the numbers of the other lines are as before. kInvalidArgument: the
  // number of a line, what is wrong with it and what is right.
  static absl::StatusOr<ProductRules> Take(absl::string_view text, std::string* others);

  const std::vector<ops::Rule>& rules() const { return rules_; }
  bool empty() const { return rules_.empty(); }

  // Returns the variant that the table names for a problem; kAuto if no line applies.
  ops::Variant Choose(const ops::Problem& problem, uint32_t n_members) const {
    return ops::ChooseByRules(rules_.data(), rules_.size(), problem, n_members);
  }

 private:
  std::vector<ops::Rule> rules_;
};

}  // namespace iris::internal
