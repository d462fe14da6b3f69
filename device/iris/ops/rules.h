// Chooses variants of GEMMs by rules, the lines of a table that was measured on a machine
// (client/comm/rules.h reads them from text). Pure functions of the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "iris/ops/ops.h"

namespace iris::ops {

// A rule applies to a call if each number of the rule is at most kRuleReach times the call's, and
// the call's is at most kRuleReach times the rule's.
inline constexpr uint64_t kRuleReach = 4;

namespace impl {

// Returns the ratio of the larger number to the smaller; 0 if it exceeds kRuleReach. IEEE divisions
// and products give the same bits on all ranks.
inline double RatioOf(uint64_t rule, uint64_t call) {
  const uint64_t large = rule > call ? rule : call, small = rule > call ? call : rule;
  if (small == 0 || large / kRuleReach > small ||
      (large / kRuleReach == small && large % kRuleReach != 0)) {
    return 0;
  }
  return static_cast<double>(large) / static_cast<double>(small);
}

}  // namespace impl

// Returns the variant that the rules name for a problem, whose own variant is ignored; kAuto if no
// rule applies. Among the rules that apply, those that give the most numbers of m, n and k are
// preferred; among those, the one with the least product of ratios; among equal ones, the first.
inline Variant ChooseByRules(const Rule* rules, size_t n_rules, const Problem& problem,
                             uint32_t n_members) {
  const Rule* best = nullptr;
  int most_numbers = 0;
  double least = 0;
  for (const Rule* rule = rules; rule != rules + n_rules; ++rule) {
    if (rule->operation != problem.operation) continue;
    if (rule->members != 0 && rule->members != n_members) continue;
    const uint64_t pairs[3][2] = {{rule->m, problem.m}, {rule->n, problem.n}, {rule->k, problem.k}};
    int numbers = 0;
    double product = 1;
    for (const auto& [of_rule, of_call] : pairs) {
      if (of_rule == 0) continue;
      ++numbers;
      product *= impl::RatioOf(of_rule, of_call);
    }
    if (product == 0) continue;
    const bool better =
        best == nullptr || numbers > most_numbers || (numbers == most_numbers && product < least);
    if (!better) continue;
    best = rule;
    most_numbers = numbers;
    least = product;
  }
  return best == nullptr ? Variant::kAuto : best->variant;
}

}  // namespace iris::ops
