// The sub-commands of iris_bench that make ranks of their own, one after another for each rank
// count: collectives, tune, compare. They run in no job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/bench/report.h"

namespace iris::bench {

struct CollectiveSettings {
  // Of iris_bench.
  uint32_t samples = 10;
  bool json = false;
  std::string svg_path;
  // Of the sub-commands. Empty: as their help says.
  std::vector<uint32_t> rank_counts;
  std::vector<std::string> operations;
  std::vector<uint64_t> sizes;
  std::vector<std::string> shapes;  // of tune
  std::vector<std::string> variants;
  std::vector<uint32_t> blocks;
  std::vector<uint32_t> threads;
  std::vector<uint32_t> unrolls;
  uint64_t stage_bytes = 0;
  uint32_t packet_blocks = 0;
  std::string trace = "none";
  std::string rules_path;
  std::vector<std::string> peers_paths;
  std::string peers_command;
  double peers_timeout_seconds = 600;
};

void AddCollectiveCommands(CLI::App* app, CollectiveSettings* settings);
bool IsCollectiveCommand(const std::string& name);

// Runs one. `report` has the facts of the run. What is to be printed: a report, or a table of
// rules.
absl::StatusOr<std::string> RunCollectiveCommand(const std::string& name,
                                                 const CollectiveSettings& settings,
                                                 BenchReport* report);

// Writes to a file, or to stdout if `path` is empty.
absl::Status WriteText(const std::string& text, const std::string& path);

}  // namespace iris::bench
