// Measures collectives and GEMMs with their communication (iris::ops). Ranks are threads of this
// process with a device each. The code is compiled for one backend; this header needs none.
//
// Thread-safety: one call at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/bench/figures.h"

namespace iris::bench {

struct CollectiveOptions {
  uint32_t ranks = 2;
  uint32_t samples = 10;
  std::string rules;  // text of a table; empty: the built-in one
  // As in ccl::Config; 0 chooses by the backend.
  uint64_t stage_bytes = 0;
  uint32_t packet_blocks = 0;
  // The ranks have no trace (docs/tracing.md), one that is off, or one that is on.
  std::string trace = "none";
};

inline constexpr uint64_t kMaxCollectiveBytes = uint64_t{64} << 30;

// Returns the number of devices for ranks; on the emulator, the largest size of a team.
uint32_t MostCollectiveRanks();

// Returns the operations that can be measured, barrier last.
std::vector<std::string> CollectiveOperations();
// Returns the variants of the operation that a rule may name. Barrier has none.
std::vector<std::string> CollectiveVariants(const std::string& operation);
// Returns true if the unroll of a plan makes a difference to sums of bf16.
bool IsUnrolled(const std::string& operation, const std::string& variant);
// Returns false if the size is far from any at which the variant could be the best one.
bool IsWorthMeasuring(const CollectiveCase& what, uint32_t ranks);

// Measures sums of bf16 and returns a figure for each case, in order; if several as_rule cases of
// one operation and size launch the same, only the first has one. `us` is the median time of a
// graph divided by its operations, and `host_us` the median time until a call outside of graphs has
// returned, both of the slowest rank. Buffers lie at the same place of each heap, which
// Config::symmetric promises. Fails if a rank fails or a result is wrong.
absl::StatusOr<std::vector<CollectiveFigure>> MeasureCollectives(
    const CollectiveOptions& options, const std::vector<CollectiveCase>& cases);

// Writes a line of a table of rules. kInvalidArgument if no table could have it.
absl::StatusOr<std::string> RuleText(const CollectiveRule& rule);
// Checks the text of a table. kInvalidArgument names the line.
absl::Status CheckRules(const std::string& text);

struct ProductOptions {
  uint32_t ranks = 2;
  uint32_t samples = 10;
  bool cold = false;  // calls cycle through several B, so that no cache holds the one they read
  bool early = true;  // ccl::Config::early
};

// Returns the names of the GEMM operations: "matmul_all_reduce", ...
std::vector<std::string> ProductOperations();
// Returns the names of the variants: "auto" first, and then those that a call can name.
std::vector<std::string> ProductVariants();

// Measures the `variants` that support the call, for each operation and shape. m, n and k are over
// all ranks: in sums each rank has a part of k, in all_gather_matmul a part of n, in the others a
// part of the rows or of the columns. bf16 in and out.
//
// Batches of the variants, of the plain GEMM of one rank (by the code that multiplies in kPair) and
// of the collective alone alternate, so that all see the same clocks; once outside of graphs and
// once in them. A time is the median over the batches of the slowest rank's time for one
// operation; a ratio is the median of the ratios of neighbouring batches. Fails if a rank fails, or
// if a result is wrong.
absl::StatusOr<std::vector<ProductFigure>> MeasureProducts(
    const ProductOptions& options, const std::vector<std::string>& operations,
    const std::vector<ProductShape>& shapes, const std::vector<std::string>& variants);

}  // namespace iris::bench
