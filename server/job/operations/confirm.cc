#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string ConfirmOp::Arguments() const { return absl::StrCat("(offset=", offset_bytes, ")"); }

absl::Status ConfirmOp::Check(const Team& /*team*/) const {
  if (error.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("could not map it: ", CleanText(error, wire::kMaxErrorTextBytes)));
}

Executed ConfirmOp::Execute(Run& run) const {
  if (run.job.RegisteredBy(run.team.info.id, offset_bytes)) return Concluded{};
  return absl::InvalidArgumentError(
      absl::StrCat(TeamText(run.team.info.id), " has registered nothing at offset ", offset_bytes));
}

}  // namespace iris::server
