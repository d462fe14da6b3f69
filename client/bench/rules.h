// Makes the rules of a table from figures of collectives. Pure functions.
#pragma once

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

}  // namespace iris::bench
