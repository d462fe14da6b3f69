#include "absl/strings/str_cat.h"
#include "server/job/operations/operation.h"

namespace iris::server {

std::string GrowOp::Arguments() const { return absl::StrCat("(bytes=", bytes, ")"); }

absl::Status GrowOp::Check(const Team& team) const {
  if (team.info.id != kWorldTeam)
    return absl::InvalidArgumentError("a heap grows by a call of the world team");
  if (bytes == 0) return absl::InvalidArgumentError("a heap grows by more than 0 bytes");
  return absl::OkStatus();
}

Executed GrowOp::Execute(Run& run) const {
  if (run.grown) return Concluded{};
  return NeedsGrowth{bytes, bytes, absl::ResourceExhaustedError("no room")};
}

}  // namespace iris::server
