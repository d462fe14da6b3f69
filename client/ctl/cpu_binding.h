// Chooses the CPUs of each rank of a run. Reads /sys and keeps nothing; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace iris::ctl {

// The CPUs (hardware threads) of a core, ascending.
using Core = std::vector<int>;

// Returns the cores whose CPUs this process may use, those of one socket next to each other. A CPU
// without a known core counts as a core.
absl::StatusOr<std::vector<Core>> AllowedCores();

// Partitions `cores`, which are not empty, and returns the CPUs of each rank, ascending. Each rank
// gets neighbouring cores, as many as the others or one more. With fewer cores than ranks, each
// rank gets one core, which it shares with neighbouring ranks.
std::vector<std::vector<int>> SpreadCores(const std::vector<Core>& cores, int n_ranks);

// Returns a list of CPUs as the kernel writes it: "0-3,8".
std::string CpuList(const std::vector<int>& cpus);

}  // namespace iris::ctl
