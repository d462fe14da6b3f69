#include "client/base/launcher.h"

#include <cstdlib>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"

namespace iris {
namespace {

using Getter = std::function<std::optional<std::string>(const char*)>;

// The names of one launcher's variables. Null: the launcher has no such variable.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* n_ranks;
  const char* n_ranks_else;  // read when n_ranks is not set
  const char* local_rank;
  bool
      size_alone_is_an_error;  // n_ranks without rank is a mistake, not another launcher's leftover
};

constexpr Variables kLaunchers[] = {
    {"iris", "IRIS_RANK", "IRIS_N_RANKS", nullptr, "IRIS_LOCAL_RANK", true},
    {"torchrun", "RANK", "WORLD_SIZE", nullptr, "LOCAL_RANK", true},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr,
     "OMPI_COMM_WORLD_LOCAL_RANK", true},
    {"pmix", "PMIX_RANK", "PMIX_SIZE", "SLURM_NTASKS", "SLURM_LOCALID", false},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_LOCALID", false},
};

absl::StatusOr<int> ParseNumber(const char* variable, const std::string& text, int min) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", variable, "=\"", text.substr(0, 64),
                     "\" is not a number; set it to a whole number of at least ", min));
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

// A job name that irisd accepts: what launchers call a job may be long.
std::string Clip(std::string name) {
  if (name.size() > wire::kMaxJobNameBytes) name.resize(wire::kMaxJobNameBytes);
  return name;
}

std::optional<std::string> NonEmpty(const Getter& get, const char* variable) {
  std::optional<std::string> value = get(variable);
  if (value.has_value() && value->empty()) return std::nullopt;
  return value;
}

std::string JobName(const Getter& get, const std::string& launcher) {
  if (auto job = NonEmpty(get, "IRIS_JOB")) return *job;
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
    if (auto id = NonEmpty(get, "PMIX_NAMESPACE")) return Clip(absl::StrCat("openmpi-", *id));
    if (auto id = NonEmpty(get, "OMPI_MCA_ess_base_jobid")) {
      return Clip(absl::StrCat("openmpi-", *id));
    }
  } else if (launcher == "pmix") {
    if (auto id = NonEmpty(get, "PMIX_NAMESPACE")) return Clip(absl::StrCat("pmix-", *id));
  } else if (launcher == "slurm") {
    const auto job = NonEmpty(get, "SLURM_JOB_ID");
    const auto step = NonEmpty(get, "SLURM_STEP_ID");
    if (job.has_value() && step.has_value()) {
      return Clip(absl::StrCat("slurm-", *job, ".", *step));
    }
    if (job.has_value()) return Clip(absl::StrCat("slurm-", *job));
  }
  return "default";
}

}  // namespace

absl::StatusOr<LauncherInfo> ReadLauncher(const Getter& get) {
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
    info.job = JobName(get, info.launcher);
    return info;
  }
  LauncherInfo alone;
  alone.launcher = "none";
  alone.job = JobName(get, alone.launcher);
  return alone;
}

absl::StatusOr<LauncherInfo> ReadLauncher() {
  return ReadLauncher([](const char* variable) -> std::optional<std::string> {
    const char* value = std::getenv(variable);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  });
}

}  // namespace iris
