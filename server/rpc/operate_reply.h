// The reply to Operate, as bytes. Pure.
#pragma once

#include "server/job/results.h"
#include "server/link/link.h"

namespace iris::server {

// What SerializeMessage makes of a v1::OperateReply with this outcome, except that the value of a
// broadcast is not copied: the replies of all members share it, as the tail of each.
LinkPayload SerializeOperateReply(const Outcome& outcome);

}  // namespace iris::server
