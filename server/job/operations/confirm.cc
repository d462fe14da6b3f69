#include "server/job/operations/confirm.h"

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/job/job_heap.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string OperationOf<ConfirmOp>::Arguments(const ConfirmOp& op) {
  return absl::StrCat("(offset=", op.offset_bytes, ")");
}

absl::Status OperationOf<ConfirmOp>::Check(const ConfirmOp& op, const Team& /*team*/) {
  if (op.error.empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("could not map it: ", CleanText(op.error, wire::kMaxErrorTextBytes)));
}

Executed OperationOf<ConfirmOp>::Execute(const ConfirmOp& op, Run& run) {
  if (RegisteredBy(run.job, run.team.info.id, op.offset_bytes)) return Concluded{};
  return Concluded{run.Error(absl::InvalidArgumentError(absl::StrCat(
      TeamText(run.team.info.id), " has registered nothing at offset ", op.offset_bytes)))};
}

}  // namespace iris::server
