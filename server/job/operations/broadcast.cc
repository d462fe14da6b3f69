#include "server/job/operations/broadcast.h"

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/job/operations/operation.h"

namespace iris::server {

std::string OperationOf<BroadcastOp>::Arguments(const BroadcastOp& op) {
  return absl::StrCat("(root=", op.root, ")");
}

void OperationOf<BroadcastOp>::Prepare(BroadcastOp& op, const Team& team, size_t index) {
  if (team.info.ranks[index] != op.root) op.value = SharedBytes();
}

absl::Status OperationOf<BroadcastOp>::Check(const BroadcastOp& op, const Team& team) {
  if (op.value.size() > wire::kMaxBroadcastBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a value of ", base::SizeText(op.value.size()),
                                                   "; ", base::SizeText(wire::kMaxBroadcastBytes),
                                                   " are allowed"));
  }
  if (team.IndexOf(op.root) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("root ", op.root, " is not a member of team ", team.info.id));
  }
  return absl::OkStatus();
}

void OperationOf<BroadcastOp>::Merge(BroadcastOp& pending, const BroadcastOp& asked,
                                     const Team& /*team*/) {
  if (!asked.value.empty()) pending.value = asked.value;
}

Executed OperationOf<BroadcastOp>::Execute(const BroadcastOp& op, Run& /*run*/) {
  return Concluded{absl::OkStatus(), {.value = op.value}};
}

}  // namespace iris::server
