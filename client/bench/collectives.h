// Measures collectives and GEMMs with their communication (iris::ops). Ranks are threads of this
// process with a device each. Compiled for one backend; this header is of none.
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
  std::string rules;  // text of a table instead of the built-in one; empty: that one
  // As in ccl::Config; 0 chooses by the backend.
  uint64_t stage_bytes = 0;
  uint32_t packet_blocks = 0;
  // The ranks have no trace (docs/tracing.md), one that is off, or one that is on.
  std::string trace = "none";
};

inline constexpr uint64_t kMaxCollectiveBytes = uint64_t{64} << 30;

// Returns how many ranks the machine has devices for; on the emulator, as many as a team may have.
uint32_t MostCollectiveRanks();

// Returns the operations that can be measured, barrier last.
std::vector<std::string> CollectiveOperations();
// Returns the variants that the operation has and a rule may name. Barrier has none.
std::vector<std::string> CollectiveVariants(const std::string& operation);
// True if the unroll of a plan makes a difference to sums of bf16.
bool IsUnrolled(const std::string& operation, const std::string& variant);
// Returns false if the size is far from any at which the variant could be the best one.
bool IsWorthMeasuring(const CollectiveCase& what, uint32_t ranks);

// Measures sums of bf16 and returns a figure for each case, in their order; of as_rule cases of one
// operation and size that launch the same, only the first has one. `us` is the median time of a
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
