// Rank, size and job name from the environment that a launcher made.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace iris {

struct LauncherInfo {
  std::string launcher;  // "iris", "torchrun", "openmpi", "pmix", "slurm", "none"
  std::string job;
  int rank = 0;
  int n_ranks = 1;
  int local_rank = 0;
};

// Reads, first match wins: IRIS_RANK/IRIS_N_RANKS/IRIS_LOCAL_RANK/IRIS_JOB; torchrun
// RANK/WORLD_SIZE/LOCAL_RANK/ TORCHELASTIC_RUN_ID (or MASTER_ADDR and MASTER_PORT); Open MPI
// OMPI_COMM_WORLD_*; PMIx PMIX_RANK/PMIX_NAMESPACE (size from PMIX_SIZE or SLURM_NTASKS); Slurm
// SLURM_PROCID/SLURM_NTASKS/SLURM_LOCALID/SLURM_JOB_ID.SLURM_STEP_ID. `get` reads a variable;
// nullopt if unset. kInvalidArgument names the variable whose value is not a number, is out of
// range, or is missing beside its fellows.
absl::StatusOr<LauncherInfo> ReadLauncher(
    const std::function<std::optional<std::string>(const char*)>& get);

// The same from this process's environment.
absl::StatusOr<LauncherInfo> ReadLauncher();

}  // namespace iris
