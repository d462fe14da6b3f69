// The reply to Operate, as bytes. Pure.
#pragma once

#include "grpcpp/support/byte_buffer.h"
#include "server/job/results.h"

namespace iris::server {

// What SerializeMessage makes of a v1::OperateReply with this outcome, except that the value of a
// broadcast is not copied: the replies of all members share it, as the last slice of each.
grpc::ByteBuffer SerializeOperateReply(const Outcome& outcome);

}  // namespace iris::server
