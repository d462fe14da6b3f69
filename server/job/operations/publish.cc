#include "server/job/operations/publish.h"

#include "absl/strings/str_cat.h"
#include "server/job/job_heap.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string OperationOf<PublishOp>::Arguments(const PublishOp& op) {
  return absl::StrCat("(offset=", op.offset_bytes, " name='", op.name, "')");
}

absl::Status OperationOf<PublishOp>::Check(const PublishOp& op, const Team& team) {
  if (!IsOwnTeam(team.info.id)) {
    return absl::InvalidArgumentError("a rank publishes what is its own, by its own team");
  }
  return CheckAllocationName(op.name, /*min_bytes=*/1);
}

Executed OperationOf<PublishOp>::Execute(const PublishOp& op, Run& run) {
  Job& job = run.job;
  const TeamId team = run.team.info.id;
  const auto found = job.allocations.find(op.offset_bytes);
  if (found == job.allocations.end() || found->second.team != team || found->second.freed) {
    return Concluded{run.Error(absl::InvalidArgumentError(
        absl::StrCat(TeamText(team), " has allocated nothing at offset ", op.offset_bytes)))};
  }
  if (!found->second.label.name().empty()) {
    return Concluded{run.Error(absl::FailedPreconditionError(
        absl::StrCat("offset ", op.offset_bytes, " is published already, as '",
                     found->second.label.name(), "'")))};
  }
  if (NameTaken(job, team, op.name)) return Concluded{run.Error(NameTakenError(op.name))};
  SetName(job, op.offset_bytes, op.name);
  return Concluded{};
}

}  // namespace iris::server
