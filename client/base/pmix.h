// MeetByPmix: ranks that a launcher has started agree on where their nodes meet, and on a secret,
// by the PMIx server that Open MPI's mpirun and Slurm's srun --mpi=pmix run on each node.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/base/launcher.h"
#include "client/base/pmix_api.h"

namespace iris::base {

struct Meeting {
  std::string rendezvous;  // HOST:PORT of the node of rank 0, with a port that was free there
  std::string secret;      // as ReadSecret returns it
};

// Returns what rank 0 has chosen; the error of OpenPmix if that is `api`. All ranks of the
// launcher's job call it, in the same order as other collective calls, such as MPI_Init and
// MPI_Finalize. kDeadlineExceeded if a rank or the server has not come within `timeout`;
// kFailedPrecondition if the server knows other ranks than `node`, or an operation of PMIx fails;
// kInvalidArgument if what it hands out is no rendezvous or secret.
//
// PMIx_Init is called in this process and counted by the library, so MPI may be initialized before
// or after. Its PMIx_Finalize comes when the process exits, since libraries of PMIx and MPI fail
// when they are initialized for a second time after it. After a timeout a thread may be left that
// waits for the server. Thread-safe.
absl::StatusOr<Meeting> MeetByPmix(const absl::StatusOr<PmixApi>& api, const NodeOfRank& node,
                                   absl::Duration timeout);

}  // namespace iris::base
