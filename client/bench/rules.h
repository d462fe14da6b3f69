// Makes the rules of a table from figures of collectives. Pure functions.
#pragma once

#include <vector>

#include "client/bench/figures.h"

namespace iris::bench {

// Makes rules for all operations, rank counts and sizes that were measured: operations in their
// order, ranks and bytes ascending, the last without limit.
//
// Among the figures within 2 % of the fastest, the one with the fewest threads decides. A rule
// reaches to the geometric middle between the last size that it won and the next one. Rules of the
// copy engine are passed over without Config::symmetric, so those that won without it follow them.
std::vector<CollectiveRule> MakeRules(const std::vector<CollectiveFigure>& figures);

// Returns lines for GEMMs of all measured operations, rank counts and shapes, in their order,
// without figures of "auto". The time in a graph decides. A line cannot distinguish shapes that
// differ in the k of a sum or in the n of all_gather_matmul: of these the variant wins that was
// measured for most of them, and then the one whose times, each divided by the best of its shape,
// have the least product.
std::vector<ProductLine> MakeProductLines(const std::vector<ProductFigure>& figures);

// A line that internal::ParseRules reads as `line`.
std::string ProductLineText(const ProductLine& line);

}  // namespace iris::bench
