#include "client/base/launcher.h"

#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "device/base/process.h"
#include "proto/wire/limits.h"

namespace iris::base {
namespace {

using internal::Getter;
using Starter = std::function<int(const std::string&)>;

// MPICH and Intel MPI start the ranks of a node by a process whose name begins so.
constexpr char kHydra[] = "hydra_";

// The names of one launcher's variables. Null if the launcher has no such variable.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* n_ranks;
  const char* n_ranks_else;  // read when n_ranks is not set
  const char* local_rank;
  const char* n_local_ranks;  // ranks of this node
  // n_ranks without rank is a mistake, not another launcher's leftover.
  bool size_alone_is_an_error;
};

// The limit of the search. More distant ancestors have started something else.
constexpr int kMaxAncestors = 64;

constexpr Variables kLaunchers[] = {
    {"iris", "IRIS_RANK", "IRIS_N_RANKS", nullptr, "IRIS_LOCAL_RANK", nullptr, true},
    {"torchrun", "RANK", "WORLD_SIZE", nullptr, "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr,
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"mpich", "PMI_RANK", "PMI_SIZE", nullptr, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false},
    {"pmix", "PMIX_RANK", "PMIX_SIZE", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, false},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_LOCALID", nullptr, false},
};

absl::StatusOr<int> ParseNumber(const char* variable, const std::string& text, int min) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return internal::WrongVariable(
        variable, text, absl::StrCat("a number; set it to a whole number of at least ", min));
  }
  if (value < min) {
    return absl::InvalidArgumentError(absl::StrCat("environment variable ", variable, "=", value,
                                                   " is out of range; it must be at least ", min));
  }
  return value;
}

absl::Status Missing(const char* variable, const char* fellow) {
  return absl::InvalidArgumentError(absl::StrCat(
      "environment variable ", variable, " is missing beside ", fellow, "; set both, or neither"));
}

// Cuts a job name to the length that irisd accepts, because names of launchers may be long.
std::string Clip(std::string name) {
  if (name.size() > wire::kMaxJobNameBytes) name.resize(wire::kMaxJobNameBytes);
  return name;
}

std::optional<std::string> NonEmpty(const Getter& get, const char* variable) {
  std::optional<std::string> value = get(variable);
  if (value.has_value() && value->empty()) return std::nullopt;
  return value;
}

// Returns an error if there are ranks on other nodes, for which the job would wait until it fails.
absl::Status OneNode(const Getter& get, const Variables& v, const LauncherInfo& info) {
  const auto refuse = [&](absl::string_view what) {
    return absl::UnimplementedError(absl::StrCat(
        what,
        ": Iris connects the ranks of one node. Start a job for each node, or name one by "
        "IRIS_RANK, IRIS_N_RANKS, IRIS_LOCAL_RANK and IRIS_JOB"));
  };
  if (v.n_local_ranks != nullptr) {
    const auto text = get(v.n_local_ranks);
    if (!text.has_value()) return absl::OkStatus();
    const absl::StatusOr<int> here = ParseNumber(v.n_local_ranks, *text, 1);
    if (!here.ok()) return here.status();
    if (*here >= info.n_ranks) return absl::OkStatus();
    return refuse(absl::StrCat(info.launcher, " has started ", info.n_ranks, " ranks, and ", *here,
                               " of them here (", v.n_local_ranks,
                               "), so others are on other nodes"));
  }
  if (info.launcher == "slurm" || info.launcher == "pmix") {
    for (const char* const variable : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}) {
      const auto text = get(variable);
      if (!text.has_value()) continue;
      const absl::StatusOr<int> nodes = ParseNumber(variable, *text, 1);
      if (!nodes.ok()) return nodes.status();
      // A step of one rank may be on one of many nodes of its allocation.
      if (*nodes == 1 || info.n_ranks == 1) return absl::OkStatus();
      return refuse(absl::StrCat(info.launcher, " has started ", info.n_ranks, " ranks on ", *nodes,
                                 " nodes (", variable, ")"));
    }
  }
  return absl::OkStatus();
}

std::string JobName(const Getter& get, const Starter& starter, const std::string& launcher) {
  if (auto job = NamedJob(get)) return *job;
  if (launcher == "torchrun") {
    // A standalone torchrun calls every run "none": the address of its store tells runs apart.
    const auto run_id = NonEmpty(get, "TORCHELASTIC_RUN_ID");
    if (run_id.has_value() && *run_id != "none") return Clip(absl::StrCat("torchrun-", *run_id));
    const auto address = NonEmpty(get, "MASTER_ADDR");
    const auto port = NonEmpty(get, "MASTER_PORT");
    if (address.has_value() && port.has_value()) {
      return Clip(absl::StrCat("torchrun-", *address, ":", *port));
    }
  } else if (launcher == "openmpi") {
    for (const char* const variable : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
      if (auto id = NonEmpty(get, variable)) return Clip(absl::StrCat("openmpi-", *id));
    }
  } else if (launcher == "mpich") {
    // Two runs at once have different starters; there is no other name that both ends know.
    if (const int pid = starter(kHydra); pid > 0) return Clip(absl::StrCat("mpich-", pid));
  } else if (launcher == "pmix") {
    if (auto id = NonEmpty(get, "PMIX_NAMESPACE")) return Clip(absl::StrCat("pmix-", *id));
  } else if (launcher == "slurm") {
    if (const auto job = NonEmpty(get, "SLURM_JOB_ID")) {
      const auto step = NonEmpty(get, "SLURM_STEP_ID");
      return Clip(absl::StrCat("slurm-", *job, step.has_value() ? "." : "", step.value_or("")));
    }
  }
  return LauncherInfo().job;
}

}  // namespace

std::optional<std::string> NamedJob(const Getter& get) { return NonEmpty(get, "IRIS_JOB"); }

absl::StatusOr<LauncherInfo> ReadLauncher(const Getter& get, const Starter& starter) {
  for (const Variables& v : kLaunchers) {
    const auto rank_text = get(v.rank);
    const char* size_variable = v.n_ranks;
    auto size_text = get(v.n_ranks);
    if (!rank_text.has_value()) {
      if (v.size_alone_is_an_error && size_text.has_value()) return Missing(v.rank, v.n_ranks);
      if (v.launcher == std::string("iris") && get(v.local_rank).has_value()) {
        return Missing(v.rank, v.local_rank);
      }
      continue;
    }
    // Slurm sets these as well, when it starts ranks by itself.
    const bool mpich = v.launcher == std::string("mpich");
    if (mpich && get("SLURM_PROCID").has_value() && starter(kHydra) <= 0) continue;
    if (!size_text.has_value() && v.n_ranks_else != nullptr) {
      size_variable = v.n_ranks_else;
      size_text = get(v.n_ranks_else);
    }
    if (!size_text.has_value()) return Missing(v.n_ranks, v.rank);

    LauncherInfo info;
    info.launcher = v.launcher;
    auto n_ranks = ParseNumber(size_variable, *size_text, 1);
    if (!n_ranks.ok()) return n_ranks.status();
    info.n_ranks = *n_ranks;
    auto rank = ParseNumber(v.rank, *rank_text, 0);
    if (!rank.ok()) return rank.status();
    info.rank = *rank;
    if (info.rank >= info.n_ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "environment variable ", v.rank, "=", info.rank, " is out of range: ", size_variable, "=",
          info.n_ranks, " allows 0 to ", info.n_ranks - 1));
    }
    info.local_rank = info.rank;
    if (const auto local_text = get(v.local_rank); local_text.has_value()) {
      auto local_rank = ParseNumber(v.local_rank, *local_text, 0);
      if (!local_rank.ok()) return local_rank.status();
      info.local_rank = *local_rank;
    }
    if (const absl::Status one = OneNode(get, v, info); !one.ok()) return one;
    info.job = JobName(get, starter, info.launcher);
    return info;
  }
  LauncherInfo alone;
  alone.job = JobName(get, starter, alone.launcher);
  return alone;
}

int FindAncestor(const std::string& name) {
  int64_t pid = getppid();
  for (int i = 0; i < kMaxAncestors && pid > 1; ++i) {
    const auto process = ReadProcess(pid);
    if (!process.has_value()) return 0;
    if (absl::StartsWith(process->name, name)) return static_cast<int>(pid);
    pid = process->parent;
  }
  return 0;
}

}  // namespace iris::base
