// Which CPUs each rank of a run is bound to. Reads /proc and /sys, and keeps nothing; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace iris::ctl {

// A core: its CPUs (hardware threads), ascending.
using Core = std::vector<int>;

// The cores whose CPUs this process may use, those of one socket next to each other. A CPU of which
// the kernel tells no core is one by itself.
absl::StatusOr<std::vector<Core>> AllowedCores();

// Deals `cores`, which are not empty, to `n_ranks` ranks: each gets neighbours, as many as the
// others or one more. With fewer cores than ranks, each rank gets one, and neighbours share it.
// Result: the CPUs of each rank, ascending.
std::vector<std::vector<int>> SpreadCores(const std::vector<Core>& cores, int n_ranks);

// "0-3,8": as the kernel writes it.
std::string CpuList(const std::vector<int>& cpus);

}  // namespace iris::ctl
