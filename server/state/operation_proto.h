// Converts operations to v1::OperateRequest and back, for the service and the stored state. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "proto/iris/v1/heap.pb.h"
#include "server/job/operation_spec.h"
#include "server/state/message_fields.h"

namespace iris::server {

IRIS_FIELDS(TensorInfo, v1::TensorInfo, dtype, shape);

// Returns kInvalidArgument if the request has no operation that irisd knows. Does not check
// arguments. Moves the value of a broadcast out of `request`.
absl::StatusOr<Operation> OperationOfRequest(v1::OperateRequest request);

// Sets the operation, and nothing else of the request.
void ToProto(const Operation& from, v1::OperateRequest* to);

}  // namespace iris::server
