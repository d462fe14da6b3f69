#include "absl/strings/str_cat.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string PublishOp::Arguments() const {
  return absl::StrCat("(offset=", offset_bytes, " name='", name, "')");
}

absl::Status PublishOp::Check(const Team& team) const {
  if (!IsOwnTeam(team.info.id)) {
    return absl::InvalidArgumentError("a rank publishes what is its own, by its own team");
  }
  return CheckAllocationName(name, /*min_bytes=*/1);
}

Executed PublishOp::Execute(Run& run) const {
  const TeamId team = run.team.info.id;
  const HeapAllocation* const found = std::as_const(run.job.allocations).Find(offset_bytes);
  if (found == nullptr || found->team != team || found->freed) {
    return absl::InvalidArgumentError(
        absl::StrCat(TeamText(team), " has allocated nothing at offset ", offset_bytes));
  }
  if (!found->label.name().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "offset ", offset_bytes, " is published already, as '", found->label.name(), "'"));
  }
  if (run.job.NameTaken(team, name)) return NameTakenError(name);
  run.job.SetName(offset_bytes, name);
  return Concluded{};
}

}  // namespace iris::server
