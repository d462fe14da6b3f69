// Measures products of matrices with their communication (iris::ops), ranks as threads of this
// process with a device each. Compiled for one backend; this header is of none.
//
// Thread-safety: one call at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/bench/figures.h"

namespace iris::bench {

struct ProductOptions {
  uint32_t ranks = 2;
  uint32_t samples = 10;
  bool cold = false;  // calls cycle through several B, so that no cache holds the one they read
  bool early = true;  // ccl::Config::early
};

// "matmul_all_reduce" and its fellows.
std::vector<std::string> ProductOperations();
// "auto" first, and then those that can be named.
std::vector<std::string> ProductVariants();

// All variants of `variants` that have the call, of each operation and shape. m, n and k are those
// of the whole operation, over all ranks: of sums each rank has a part of k, of all_gather_matmul a
// part of n, of the others a part of the rows or of the columns. bf16 in and out.
//
// The variants, the plain product of one rank (by what makes the products of kPair) and the
// collective alone take turns, batch by batch, so that all see the same clocks; once outside of
// graphs and once in them. A time is the median over the batches of the slowest rank's time for one
// operation; a ratio is the median of the ratios of neighbouring batches. Fails if a rank fails, or
// if a result is wrong.
absl::StatusOr<std::vector<ProductFigure>> MeasureProducts(
    const ProductOptions& options, const std::vector<std::string>& operations,
    const std::vector<ProductShape>& shapes, const std::vector<std::string>& variants);

}  // namespace iris::bench
