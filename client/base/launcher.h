// Rank, size and job name from the environment that a launcher made, and the options of a context
// that these and other variables fill in.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/base/environment.h"
#include "iris/context_types.h"

namespace iris::internal {

// The options of a context, with those that no caller of C++ gives.
struct HostContextOptions : ContextOptions {
  std::string kernels;  // the backend of the program's own kernels; empty: none
  // Filled in by ResolveOptions from IRIS_TRACE_EVENTS and IRIS_TRACE: how many events the trace of
  // a rank has room for, 0: no trace; and where each rank writes its own when it leaves.
  uint64_t trace_events = 0;
  std::string trace_file;
};

}  // namespace iris::internal

namespace iris::base {

struct LauncherInfo {
  std::string launcher;  // "iris", "torchrun", "openmpi", "mpich", "pmix", "slurm", "none"
  std::string job;
  int rank = 0;
  int n_ranks = 1;
  int local_rank = 0;
};

// The nearest ancestor of this process whose name begins with `name`, or 0.
int FindAncestor(const std::string& name);

// Reads, first match wins: IRIS_RANK/IRIS_N_RANKS/IRIS_LOCAL_RANK/IRIS_JOB; torchrun
// RANK/WORLD_SIZE/LOCAL_RANK/TORCHELASTIC_RUN_ID (or MASTER_ADDR and MASTER_PORT); Open MPI
// OMPI_COMM_WORLD_*; MPICH and Intel MPI PMI_RANK/PMI_SIZE/MPI_LOCALRANKID (the job is named by the
// process of theirs that started this one); PMIx PMIX_RANK/PMIX_NAMESPACE (size from PMIX_SIZE or
// SLURM_NTASKS); Slurm SLURM_PROCID/SLURM_NTASKS/SLURM_LOCALID/SLURM_JOB_ID.SLURM_STEP_ID.
//
// kInvalidArgument names the variable whose value is not a number, is out of range, or is missing
// while others are set. kUnimplemented if the launcher has started ranks on other nodes, too; Iris
// connects those of one.
absl::StatusOr<LauncherInfo> ReadLauncher(
    const internal::Getter& get = internal::Environment,
    const std::function<int(const std::string&)>& starter = FindAncestor);

// Fills each field that is left out from the environment, else with its default. The launcher's
// variables are not looked at if rank and n_ranks are both given. kInvalidArgument names the option
// or variable that is wrong.
absl::StatusOr<internal::HostContextOptions> ResolveOptions(
    const internal::HostContextOptions& options,
    const internal::Getter& get = internal::Environment);

}  // namespace iris::base
