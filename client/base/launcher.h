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
  int n_local = 0;  // ranks of this node; 0: not known, which means all
};

// Returns the nearest ancestor of this process whose name begins with `name`, or 0.
int FindAncestor(const std::string& name);

// Returns the name of the job from IRIS_JOB, or nullopt if it is not set.
std::optional<std::string> NamedJob(const internal::Getter& get);
// The same for IRIS_RENDEZVOUS.
std::optional<std::string> NamedRendezvous(const internal::Getter& get);

// Reads, first match wins: IRIS_RANK/IRIS_N_RANKS/IRIS_LOCAL_RANK/IRIS_JOB; torchrun
// RANK/WORLD_SIZE/LOCAL_RANK/TORCHELASTIC_RUN_ID (or MASTER_ADDR and MASTER_PORT); Open MPI
// OMPI_COMM_WORLD_*; MPICH and Intel MPI PMI_RANK/PMI_SIZE/MPI_LOCALRANKID (the job is named by
// their process that started this one); PMIx PMIX_RANK/PMIX_NAMESPACE (size from PMIX_SIZE or
// SLURM_NTASKS); Slurm SLURM_PROCID/SLURM_NTASKS/SLURM_LOCALID/SLURM_JOB_ID.SLURM_STEP_ID.
//
// The number of ranks on this node is in IRIS_N_LOCAL; LOCAL_WORLD_SIZE;
// OMPI_COMM_WORLD_LOCAL_SIZE; MPI_LOCALNRANKS; or, with PMIx and Slurm, SLURM_STEP_TASKS_PER_NODE,
// SLURM_TASKS_PER_NODE or SLURM_NTASKS_PER_NODE.
//
// kInvalidArgument names the variable whose value is not a number, is out of range, or is missing
// while others are set, which for a job of several nodes includes that of the local rank.
absl::StatusOr<LauncherInfo> ReadLauncher(
    const internal::Getter& get = internal::Environment,
    const std::function<int(const std::string&)>& starter = FindAncestor);

// Returns true if a PMIx server knows the ranks of this launcher by their numbers.
bool HasPmix(const LauncherInfo& launcher, const internal::Getter& get);

// What IRIS_N_LOCAL and IRIS_LOCAL_RANK say, beside ranks that the program gives itself.
struct NamedNode {
  std::optional<int> n_local;
  std::optional<int> local_rank;
};
absl::StatusOr<NamedNode> ReadNamedNode(const internal::Getter& get);

// The ranks of this node, of a job that spans several.
struct NodeOfRank {
  int rank = 0;
  int n_ranks = 0;
  int local_rank = 0;
  int n_local = 0;
};

// Returns the first rank of this node. kInvalidArgument if the numbers do not fit a node whose
// ranks are consecutive, as far as they and Slurm's variables show it.
absl::StatusOr<int> FirstLocalRank(const NodeOfRank& node, const internal::Getter& get);

// Returns HOST:PORT, at which the nodes of a job meet: IRIS_RENDEZVOUS; else MASTER_ADDR with the
// port after MASTER_PORT, which is the launcher's own; else the first host of SLURM_STEP_NODELIST
// (or SLURM_JOB_NODELIST) with a port that the numbers of job and step give. Empty if there is none
// of them: irisd may know a place. kInvalidArgument if one is wrong.
absl::StatusOr<std::string> ReadRendezvous(const internal::Getter& get);

// Returns kInvalidArgument, named by `what`, unless the text is HOST:PORT or [ADDRESS]:PORT.
absl::Status CheckRendezvous(const std::string& what, const std::string& text);

// Returns the bytes of the secret of a job, which `text` gives in hexadecimal digits or as they
// are. kInvalidArgument, named by `what` and without the text, unless there are 16 to 64 of them.
absl::StatusOr<std::string> ReadSecret(const std::string& what, const std::string& text);

// Returns a random secret of a job, as hexadecimal digits. The system's error if it has none.
absl::StatusOr<std::string> FreshSecret();

}  // namespace iris::base
