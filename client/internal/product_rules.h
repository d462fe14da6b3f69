// ProductRules: the lines of a table of rules that choose variants of products of matrices
// (iris::ops). They stand in the same text as the rules of collectives (iris/collective/rules.h):
//
//   # operation           members  m     n     k     variant
//   matmul_all_reduce     4        64    8192  any   pair
//   all_gather_matmul     any      8192  any   any   fused
//
// A line says: the products of this operation on so many members, whose m, n and k are near these
// numbers, go by this variant. `any`: of whatever size. m, n and k are those of the call
// (ops::Problem). Only what all members have alike can decide, so the k of matmul_all_reduce and
// matmul_reduce_scatter, and the n of all_gather_matmul, are always `any`. What follows a # is a
// comment.
//
// A line reaches a call if each of its numbers is at most kReach times the call's, and at least
// that part of it; the number of members is the same. Of the lines that reach it, those with fewer
// `any` among m, n and k go before others; of these the nearest decides, for which the product of
// the ratios, each of the larger number to the smaller, is the least; of equal ones the first.
// Where no line reaches, Variant::kAuto chooses by itself.
//
// A value; const functions are thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "iris/ccl_types.h"
#include "iris/ops/ops.h"

namespace iris::internal {

struct ProductRule {
  ccl::Operation operation = ccl::Operation::kNone;
  // 0: any.
  uint32_t members = 0;
  uint64_t m = 0;
  uint64_t n = 0;
  uint64_t k = 0;
  ops::Variant variant = ops::Variant::kAuto;
};

class ProductRules {
 public:
  static constexpr size_t kMaxRules = 1024;
  static constexpr uint64_t kReach = 4;

  // Takes the lines of products from a text, in which any bytes may come. *others: the text with
  // these lines empty, so that the numbers of the other lines are as before. kInvalidArgument: the
  // number of a line, what is wrong with it and what is right.
  static absl::StatusOr<ProductRules> Take(absl::string_view text, std::string* others);

  const std::vector<ProductRule>& rules() const { return rules_; }
  bool empty() const { return rules_.empty(); }

  // What the table says of a problem; its variant is not looked at. kAuto: nothing.
  ops::Variant Choose(const ops::Problem& problem, uint32_t n_members) const;

 private:
  std::vector<ProductRule> rules_;
};

}  // namespace iris::internal
