#include "server/job/operations/open.h"

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/job/job_heap.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string OperationOf<OpenOp>::Arguments(const OpenOp& op) {
  return absl::StrCat("(rank=", op.owner, " name='", op.name, "')");
}

absl::Status OperationOf<OpenOp>::Check(const OpenOp& op, const Team& team) {
  if (!IsOwnTeam(team.info.id)) {
    return absl::InvalidArgumentError("a rank opens for itself, by its own team");
  }
  if (op.owner == OwnerOf(team.info.id)) {
    return absl::InvalidArgumentError(
        "what it allocated itself is not opened: use the address that it got then");
  }
  return CheckText("the name", op.name, 1, wire::kMaxAllocationNameBytes);
}

Executed OperationOf<OpenOp>::Execute(const OpenOp& op, Run& run) {
  Job& job = run.job;
  if (op.owner >= job.n_ranks()) {
    return Concluded{run.Error(absl::InvalidArgumentError(
        absl::StrCat("there is no rank ", op.owner, " in a job of ", job.n_ranks())))};
  }
  const auto found = job.names.find(ByName::Key(op.name, OwnTeam(op.owner)));
  if (found != job.names.end()) {
    const uint64_t offset_bytes = (*found)->first;
    HeapAllocation& allocation = job.allocations.at(offset_bytes);
    ++allocation.opens.Change()[OwnerOf(run.team.info.id)];
    OpenedInfo opened{offset_bytes, allocation.bytes, allocation.label.tensor().dtype,
                      allocation.is_registered()};
    return Concluded{absl::OkStatus(), {.opened = std::move(opened)}};
  }
  if (const auto shared = job.names.find(ByName::Key(op.name, kWorldTeam));
      shared != job.names.end()) {
    return Concluded{run.Error(absl::InvalidArgumentError(
        absl::StrCat("'", op.name, "' was allocated by team ", (*shared)->second.team,
                     " together, and not by rank ", op.owner,
                     " alone: each member has its own address of it, and translates it")))};
  }
  if (job.ranks[op.owner].state != RankState::kReady) {
    return Concluded{run.Error(absl::AbortedError(absl::StrCat(
        job.Who(op.owner), " has left the job, and left nothing named '", op.name, "' behind")))};
  }
  return Concluded{};
}

}  // namespace iris::server
