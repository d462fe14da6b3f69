// What iris_bench knows of collectives, by name: what to measure, what came out, and a rule of a
// table. Plain values, so that what handles them needs no compiler of kernels.
#pragma once

#include <cstdint>
#include <string>

namespace iris::bench {

// Names are those of ccl::OperationName and ccl::VariantName.
struct CollectiveCase {
  std::string operation;
  uint64_t bytes = 0;  // of the larger of in and out; 0: of barrier, which has none
  std::string variant = "auto";
  uint32_t blocks = 0;  // 0: as the plan says
  uint32_t threads = 0;
  // Measure what a table makes that has this as its only rule, rather than override the plan: at a
  // small size a rule is not followed to the letter.
  bool as_rule = false;
  uint32_t unroll = 0;  // as blocks and threads
};

struct CollectiveFigure {
  CollectiveCase what;
  uint32_t ranks = 0;
  // What was launched.
  std::string variant;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t unroll = 1;
  double us = 0;
  // What a call costs the thread that makes it, without a graph.
  double host_us = 0;
  double bus_gb_per_s = 0;  // 0: of barrier
};

// As ccl::Rule.
struct CollectiveRule {
  std::string operation;
  uint32_t max_members = 0;
  uint64_t max_bytes = 0;
  std::string variant;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t unroll = 0;

  static constexpr uint64_t kAnyBytes = ~uint64_t{0};
};

}  // namespace iris::bench
