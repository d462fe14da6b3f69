// The table of products of matrices, with those of other libraries beside them. Host only; not
// thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/bench/compare.h"
#include "client/bench/figures.h"
#include "client/bench/report.h"

namespace iris::bench {

// "8192x4096x14336": m, n and k. kInvalidArgument: it is no such text, or a dimension is not from 1
// to 2^31 - 1.
absl::StatusOr<ProductShape> ParseShape(const std::string& text);
std::string ShapeText(const ProductShape& shape);

// `count` shapes as of layers, always the same for a seed: multiples of 64 (`largest` at least 64)
// whose logarithms are spread evenly from 64 to `largest`.
std::vector<ProductShape> RandomShapes(uint32_t count, uint64_t seed, uint64_t largest);

// A row for each of `ours`, a column for each peer that has figures of such rows, which are times
// in graphs. *behind, if it is not null, gets a text for each row of what "auto" chose that is
// slower than the best peer, in the graph.
Table ProductTable(const std::vector<ProductFigure>& ours, const std::vector<PeerFigure>& peers,
                   std::vector<std::string>* behind);

}  // namespace iris::bench
