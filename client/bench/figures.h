// Cases, figures and rules of collectives, by name. Plain values, so that code which handles them
// needs no compiler of kernels.
#pragma once

#include <cstdint>
#include <string>

namespace iris::bench {

inline constexpr char kBarrier[] = "barrier";
inline constexpr char kAuto[] = "auto";
inline constexpr char kCopyEngine[] = "copy_engine";

// Names are those of ccl::OperationName and ccl::VariantName.
struct CollectiveCase {
  std::string operation;
  uint64_t bytes = 0;  // of the larger of in and out; 0: of barrier, which has none
  std::string variant = "auto";
  uint32_t blocks = 0;  // 0: as the plan says
  uint32_t threads = 0;
  // Measure the plan of a table with this case as its only rule, rather than override the plan,
  // because at a small size the plan may deviate from the rule.
  bool as_rule = false;
  uint32_t unroll = 0;  // as blocks and threads
};

struct CollectiveFigure {
  CollectiveCase what;
  uint32_t ranks = 0;
  std::string variant;
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t unroll = 1;
  double us = 0;
  // The time of a call in the calling thread, without a graph.
  double host_us = 0;
  double bus_gb_per_s = 0;  // 0: of barrier
};

// The fields of ccl::Rule.
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

// A GEMM over all ranks: D[m, n] of A[m, k] and B[k, n].
struct ProductShape {
  uint64_t m = 0;
  uint64_t n = 0;
  uint64_t k = 0;

  bool operator==(const ProductShape& o) const { return m == o.m && n == o.n && k == o.k; }
};

// The fields of ops::Rule, where 0 stands for any number.
struct ProductLine {
  std::string operation;
  uint32_t members = 0;
  ProductShape shape;
  std::string variant;
};

// The times of an operation of iris::ops by one variant. Names are those of ccl::OperationName and
// ops::VariantName.
struct ProductFigure {
  std::string operation;
  ProductShape shape;
  uint32_t ranks = 0;
  std::string wanted;      // the variant that was asked for
  std::string variant;     // the one that ran
  std::string multiplier;  // the code that multiplied
  // Times of calls on a stream, or in a graph.
  struct Times {
    double us = 0;
    double product_us = 0;        // of the plain GEMM of one rank
    double communication_us = 0;  // of the collective alone
    double ratio = 0;             // of the operation to the plain GEMM
    // The part of the collective's time that overlaps with the GEMM: from 0, one after the other or
    // worse, to 1.
    double hidden = 0;
  };
  Times eager;
  Times graph;
  double tflops = 0;  // of one rank, in the graph
};

}  // namespace iris::bench
