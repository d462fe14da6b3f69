// Makes the rules of a table from figures of collectives. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "client/bench/figures.h"

namespace iris::bench {

// Makes rules for all operations, rank counts and sizes that were measured: operations in the order
// of the figures, ranks and bytes ascending, the last without limit.
//
// Among the figures within 2 % of the fastest, the one with the fewest threads decides. A rule
// reaches to the geometric middle between the last size that it won and the next one. Rules of the
// copy engine are skipped without Config::symmetric, so the winners without the copy engine follow.
std::vector<CollectiveRule> MakeRules(const std::vector<CollectiveFigure>& figures);

// Returns lines for GEMMs of all measured operations, rank counts and shapes, in their order,
// without figures of "auto". The time in a graph decides. A line cannot distinguish shapes that
// differ in the k of a sum or in the n of all_gather_matmul: for such shapes, the variant measured
// for most of them wins, and among equals the one with the smallest product of times, each divided
// by the best time of its shape.
std::vector<ProductLine> MakeProductLines(const std::vector<ProductFigure>& figures);

// Returns the text that internal::ParseRules reads as `line`.
std::string ProductLineText(const ProductLine& line);

// The times of a collective between nodes, in any unit; infinite if it was not measured, because it
// is slow.
struct PathFigure {
  uint64_t bytes = 0;
  double leaders = 0;
  double rails = 0;
};
// Returns the leaders_most_bytes of the operation that was measured, with bytes ascending: the
// geometric middle between two sizes, 1 for none, or the largest size. It is the smallest one for
// which the product of the chosen times is within 5 % of the least.
uint64_t LeadersMostBytes(const std::vector<PathFigure>& figures);

// Returns the first candidate whose times are, in the geometric mean, within 5 % of the best one's,
// among those that are in no case more than 10 % slower than the first one, the default. For each
// case, `times` has one of each candidate, in any unit; there is at least one of each.
size_t BestCandidate(const std::vector<std::vector<double>>& times);

// Returns bytes as a word of a table of rules: "64KiB" or "5000".
std::string SizeWord(uint64_t bytes);

}  // namespace iris::bench
