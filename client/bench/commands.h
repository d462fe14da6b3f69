// The sub-commands of iris_bench that run their own ranks, for one rank count after another,
// without a job: collectives, tune, compare, matmul.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/bench/figures.h"
#include "client/bench/report.h"

namespace iris::bench {

inline constexpr char kCollectives[] = "collectives";
inline constexpr char kTune[] = "tune";
inline constexpr char kCompare[] = "compare";
inline constexpr char kMatmul[] = "matmul";
inline constexpr char kAll[] = "all";
inline constexpr char kAny[] = "any";

using Names = std::vector<std::string>;
inline bool Has(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct AloneSettings {
  // Options of iris_bench.
  uint32_t samples = 10;
  bool json = false;
  std::string output;
  std::string svg_path;
  // Options of the sub-commands. Empty: the default in their help.
  std::vector<uint32_t> rank_counts;
  std::vector<std::string> operations;
  std::vector<uint64_t> sizes;
  std::vector<std::string> shapes;
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
  // Options of matmul alone.
  int64_t random = -1;
  uint64_t seed = 1;
  bool fail_behind = false;
  bool share = false;
  bool cold = false;
  bool no_early = false;
};

struct Alone {
  const AloneSettings& settings;
  std::vector<uint32_t> rank_counts;    // ascending
  std::vector<std::string> operations;  // those that the sub-command has
  BenchReport* report;
};

// These commands measure for each rank count and write the report or, in Tune, the table of rules.
absl::Status Collectives(const Alone& alone);
absl::Status Tune(const Alone& alone);
absl::Status Compare(const Alone& alone);
absl::Status Matmul(const Alone& alone);

// Runs collectives or tune as a rank of a job on several nodes. Rank 0 writes the report, or the
// lines between nodes of a table of rules. Collective.
absl::Status RunOnNodes(const std::string& command, const AloneSettings& settings,
                        const Names& operations, BenchReport* report);

// Returns the text of a table of rules, which is empty if the path is. kInvalidArgument names the
// line that is wrong.
absl::StatusOr<std::string> ReadRules(const std::string& path);
// Makes comments of a table of the facts, within the limit of a line.
std::string Comments(const std::string& facts);

void AddAloneCommands(CLI::App* app, AloneSettings* settings);
bool IsAloneCommand(const std::string& name);

// Runs a command and writes its report with the facts of the run, or its table of rules.
// kFailedPrecondition, after the report: with --fail-behind, a row is slower than its best peer.
absl::Status RunAloneCommand(const std::string& name, const AloneSettings& settings,
                             BenchReport* report);

// Writes to a file, or to stdout if `path` is empty.
absl::Status WriteText(const std::string& text, const std::string& path);

// Adds an option that takes a size such as 64KiB.
CLI::Option* AddSize(CLI::App* app, const std::string& name, uint64_t* bytes,
                     const std::string& help);
// Adds an option that takes sizes separated by commas. `what` is "size such as 64KiB", with the
// limits.
CLI::Option* AddSizes(CLI::App* app, const std::string& name, std::vector<uint64_t>* sizes,
                      uint64_t least, uint64_t most, const std::string& what,
                      const std::string& help);

}  // namespace iris::bench
