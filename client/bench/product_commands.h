// The sub-command matmul of iris_bench: products of matrices with their communication, beside the
// plain product and beside other libraries. It makes ranks of its own, in no job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/bench/figures.h"
#include "client/bench/report.h"

namespace iris::bench {

struct ProductSettings {
  // Of iris_bench.
  uint32_t samples = 10;
  bool json = false;
  std::string output;
  // Of the sub-command. Empty: as its help says.
  std::vector<uint32_t> rank_counts;
  std::vector<std::string> operations;
  std::vector<std::string> shapes;
  int64_t random = -1;
  uint64_t seed = 1;
  std::vector<std::string> variants;
  std::vector<std::string> peers_paths;
  std::string peers_command;
  double peers_timeout_seconds = 600;
  bool fail_behind = false;
};

// What --shapes says, or the usual ones if it is empty. kInvalidArgument: one is no shape.
absl::StatusOr<std::vector<ProductShape>> ReadShapes(const std::vector<std::string>& texts);

void AddProductCommand(CLI::App* app, ProductSettings* settings);
bool IsProductCommand(const std::string& name);

// Runs it and writes the report, which has the facts of the run. kFailedPrecondition, behind the
// report: --fail-behind, and a row is slower than its best peer.
absl::Status RunProductCommand(const ProductSettings& settings, BenchReport* report);

}  // namespace iris::bench
