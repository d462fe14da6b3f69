#include "client/ctl/cpu_binding.h"

#include <errno.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace iris::ctl {
namespace {

// The limit of the set's size in requests to the kernel. No machine has more CPUs.
constexpr int kMaxCpus = 1 << 20;

// Returns the number in the CPU's topology file `what`, or -1 if there is none.
int Topology(int cpu, const char* what) {
  std::ifstream file(absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/topology/", what));
  int value = -1;
  return file >> value ? value : -1;
}

absl::StatusOr<std::vector<int>> AllowedCpus() {
  for (int n_cpus = 1024; n_cpus <= kMaxCpus; n_cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(static_cast<size_t>(n_cpus));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(n_cpus));
    const int result = sched_getaffinity(0, bytes, set);
    const int error = errno;
    std::vector<int> cpus;
    for (int cpu = 0; result == 0 && cpu < n_cpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (result == 0) return cpus;
    if (error != EINVAL) {
      return absl::ErrnoToStatus(error, "cannot ask which CPUs may be used (sched_getaffinity)");
    }
  }
  return absl::InternalError("the kernel has more CPUs than can be counted here");
}

}  // namespace

absl::StatusOr<std::vector<Core>> AllowedCores() {
  const absl::StatusOr<std::vector<int>> cpus = AllowedCpus();
  if (!cpus.ok()) return cpus.status();
  std::map<std::pair<int, int>, Core> cores;  // by socket and core
  std::vector<Core> alone;
  for (const int cpu : *cpus) {
    const int socket = Topology(cpu, "physical_package_id");
    const int core = Topology(cpu, "core_id");
    if (core < 0) {
      alone.push_back({cpu});
    } else {
      cores[{socket, core}].push_back(cpu);
    }
  }
  std::vector<Core> result;
  for (auto& [place, core] : cores) result.push_back(std::move(core));
  result.insert(result.end(), alone.begin(), alone.end());
  return result;
}

std::vector<std::vector<int>> SpreadCores(const std::vector<Core>& cores, int n_ranks) {
  const size_t n = static_cast<size_t>(n_ranks);
  std::vector<std::vector<int>> ranks(n);
  for (size_t rank = 0; rank < n; ++rank) {
    const size_t first = rank * cores.size() / n;
    const size_t end = std::max(first + 1, (rank + 1) * cores.size() / n);
    for (size_t i = first; i < end; ++i) {
      ranks[rank].insert(ranks[rank].end(), cores[i].begin(), cores[i].end());
    }
    std::sort(ranks[rank].begin(), ranks[rank].end());
  }
  return ranks;
}

std::string CpuList(const std::vector<int>& cpus) {
  std::string text;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    absl::StrAppend(&text, i == 0 ? "" : ",", cpus[i]);
    if (end - i > 1) absl::StrAppend(&text, "-", cpus[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace iris::ctl
