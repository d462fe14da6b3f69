// Operations of teams to the message that asks for them, and back. Used by the service that is
// asked and by the state that keeps what was asked. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "proto/iris/v1/heap.pb.h"
#include "server/job/operation_spec.h"

namespace iris::server {

// kInvalidArgument: no operation that irisd knows is set. Arguments are not checked here. The value
// of a broadcast is moved out of `request`, so who moves the request in copies nothing.
absl::StatusOr<Operation> OperationOfRequest(v1::OperateRequest request);

// Sets the operation, and nothing else of the request.
void ToProto(const Operation& from, v1::OperateRequest* to);

}  // namespace iris::server
