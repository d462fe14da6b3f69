#include "server/job/operations/grow.h"

#include "absl/strings/str_cat.h"
#include "server/job/operations/operation.h"

namespace iris::server {

std::string OperationOf<GrowOp>::Arguments(const GrowOp& op) {
  return absl::StrCat("(bytes=", op.bytes, ")");
}

absl::Status OperationOf<GrowOp>::Check(const GrowOp& op, const Team& team) {
  if (team.info.id != kWorldTeam)
    return absl::InvalidArgumentError("a heap grows by a call of the world team");
  if (op.bytes == 0) return absl::InvalidArgumentError("a heap grows by more than 0 bytes");
  return absl::OkStatus();
}

Executed OperationOf<GrowOp>::Execute(const GrowOp& op, Run& run) {
  if (run.grown) return Concluded{};
  return NeedsGrowth{op.bytes, op.bytes, run.Error(absl::ResourceExhaustedError("no room"))};
}

}  // namespace iris::server
