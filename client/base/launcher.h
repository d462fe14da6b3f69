// Rank, size and job name from the environment that a launcher made.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/base/environment.h"

namespace iris::base {

struct LauncherInfo {
  // "iris", "torchrun", "openmpi", "mpich", "pmix" or "slurm"
  std::string launcher = "none";
  std::string job = "default";
  int rank = 0;
  int n_ranks = 1;
  int local_rank = 0;
};

// Returns the nearest ancestor of this process whose name begins with `name`, or 0.
int FindAncestor(const std::string& name);

// Returns the name of the job from IRIS_JOB, or nullopt if it is not set.
std::optional<std::string> NamedJob(const internal::Getter& get);

// Reads, first match wins: IRIS_RANK/IRIS_N_RANKS/IRIS_LOCAL_RANK/IRIS_JOB; torchrun
// RANK/WORLD_SIZE/LOCAL_RANK/TORCHELASTIC_RUN_ID (or MASTER_ADDR and MASTER_PORT); Open MPI
// OMPI_COMM_WORLD_*; MPICH and Intel MPI PMI_RANK/PMI_SIZE/MPI_LOCALRANKID (the job is named by
// their process that started this one); PMIx PMIX_RANK/PMIX_NAMESPACE (size from PMIX_SIZE or
// SLURM_NTASKS); Slurm SLURM_PROCID/SLURM_NTASKS/SLURM_LOCALID/SLURM_JOB_ID.SLURM_STEP_ID.
//
// kInvalidArgument names the variable whose value is not a number, is out of range, or is missing
// while others are set. kUnimplemented if the launcher has started ranks on other nodes, too: Iris
// connects the ranks of one node.
absl::StatusOr<LauncherInfo> ReadLauncher(
    const internal::Getter& get = internal::Environment,
    const std::function<int(const std::string&)>& starter = FindAncestor);

}  // namespace iris::base
