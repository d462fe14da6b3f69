// What collectives, tune, compare and matmul do, once their options have been read: they measure
// for each rank count and write the report or, in tune, the table of rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/bench/commands.h"
#include "client/bench/report.h"

namespace iris::bench {

inline constexpr char kCollectives[] = "collectives";
inline constexpr char kTune[] = "tune";
inline constexpr char kCompare[] = "compare";
inline constexpr char kMatmul[] = "matmul";
inline constexpr char kBarrier[] = "barrier";
inline constexpr char kAuto[] = "auto";
inline constexpr char kAll[] = "all";

struct Alone {
  const AloneSettings& settings;
  std::vector<uint32_t> rank_counts;    // ascending
  std::vector<std::string> operations;  // those that the sub-command has
  BenchReport* report;
};

absl::Status Collectives(const Alone& alone);
absl::Status Tune(const Alone& alone);
absl::Status Compare(const Alone& alone);
absl::Status Matmul(const Alone& alone);

}  // namespace iris::bench
