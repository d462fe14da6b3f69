#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"
#include "server/job/operations/operation.h"
#include "server/job/text.h"

namespace iris::server {

std::string BroadcastOp::Arguments() const { return absl::StrCat("(root=", root, ")"); }

void BroadcastOp::Prepare(const Team& team, size_t index) {
  if (team.info.ranks[index] != root) value = SharedBytes();
}

absl::Status BroadcastOp::Check(const Team& team) const {
  if (value.size() > wire::kMaxBroadcastBytes) {
    return Error(Code::kInvalidArgument, "a value of ", base::SizeText(value.size()), "; ",
                 base::SizeText(wire::kMaxBroadcastBytes), " are allowed");
  }
  if (team.IndexOf(root) < 0) {
    return Error(Code::kInvalidArgument, "root ", root, " is not a member of team ", team.info.id);
  }
  return absl::OkStatus();
}

void BroadcastOp::Merge(const BroadcastOp& asked, const Team& /*team*/) {
  if (!asked.value.empty()) value = asked.value;
}

Executed BroadcastOp::Execute(Run& /*run*/) const { return Concluded{{.value = value}}; }

}  // namespace iris::server
