// Converts statuses of gRPC to ours and back. Assertions check that the codes are the same numbers.
// Pure; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "proto/status/code.h"

namespace iris::proto {

// Returns gRPC's status, whose text is cut to `max_text_bytes`.
inline grpc::Status ToGrpc(const absl::Status& status, size_t max_text_bytes = SIZE_MAX) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, max_text_bytes)));
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(CodeOf(static_cast<uint32_t>(status.error_code())), status.error_message());
}

#define IRIS_SAME_CODE(ours, theirs)                                 \
  static_assert(static_cast<uint32_t>(absl::StatusCode::ours) ==     \
                    static_cast<uint32_t>(grpc::StatusCode::theirs), \
                "absl and gRPC number their status codes differently")
IRIS_SAME_CODE(kOk, OK);
IRIS_SAME_CODE(kCancelled, CANCELLED);
IRIS_SAME_CODE(kUnknown, UNKNOWN);
IRIS_SAME_CODE(kInvalidArgument, INVALID_ARGUMENT);
IRIS_SAME_CODE(kDeadlineExceeded, DEADLINE_EXCEEDED);
IRIS_SAME_CODE(kNotFound, NOT_FOUND);
IRIS_SAME_CODE(kAlreadyExists, ALREADY_EXISTS);
IRIS_SAME_CODE(kPermissionDenied, PERMISSION_DENIED);
IRIS_SAME_CODE(kResourceExhausted, RESOURCE_EXHAUSTED);
IRIS_SAME_CODE(kFailedPrecondition, FAILED_PRECONDITION);
IRIS_SAME_CODE(kAborted, ABORTED);
IRIS_SAME_CODE(kOutOfRange, OUT_OF_RANGE);
IRIS_SAME_CODE(kUnimplemented, UNIMPLEMENTED);
IRIS_SAME_CODE(kInternal, INTERNAL);
IRIS_SAME_CODE(kUnavailable, UNAVAILABLE);
IRIS_SAME_CODE(kDataLoss, DATA_LOSS);
IRIS_SAME_CODE(kUnauthenticated, UNAUTHENTICATED);
#undef IRIS_SAME_CODE

}  // namespace iris::proto
