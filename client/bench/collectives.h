// Measures collectives: replayed from a graph, ranks as threads of this process with a device each.
// Compiled for one backend; this header is of none.
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

// Those that can be measured, barrier last.
std::vector<std::string> CollectiveOperations();
// Those that the operation has, of which a rule may name one. None: of barrier.
std::vector<std::string> CollectiveVariants(const std::string& operation);
// True if the unroll of a plan makes a difference to sums of bf16.
bool IsUnrolled(const std::string& operation, const std::string& variant);
// False: far from any size at which the variant could be the best one.
bool IsWorthMeasuring(const CollectiveCase& what, uint32_t ranks);

// us: the median of a replay, divided by the operations in its graph; of the ranks' medians the
// largest. host_us: likewise, of calls outside of graphs that wait for nothing, the time until they
// have returned. bf16, sums; buffers in the heap at the same place on each rank, which
// Config::symmetric promises. One figure for each case, in their order; but of as_rule cases of one
// operation and size that launch the same, the first alone. Fails if a rank fails or a result is
// wrong.
absl::StatusOr<std::vector<CollectiveFigure>> MeasureCollectives(
    const CollectiveOptions& options, const std::vector<CollectiveCase>& cases);

// Writes a line of a table of rules. kInvalidArgument: no table could have it.
absl::StatusOr<std::string> RuleText(const CollectiveRule& rule);
// Checks the text of a table. kInvalidArgument names the line.
absl::Status CheckRules(const std::string& text);

}  // namespace iris::bench
