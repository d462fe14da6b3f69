// StatusCode: the kind of an error. The numbers are those of gRPC and of the C API. C++17.
#pragma once

#include <cstdint>

namespace iris {

enum class StatusCode : int32_t {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,     // the arguments are wrong; a retry does not help
  kDeadlineExceeded = 4,    // a rank did not come in time; the text names it
  kNotFound = 5,            // there is nothing of that name or number
  kAlreadyExists = 6,       // the name or rank is taken
  kPermissionDenied = 7,    // this user may not
  kResourceExhausted = 8,   // no memory, or a limit is reached; the text names whose
  kFailedPrecondition = 9,  // not now, or not with this object: destroyed, forked, not a member
  kAborted = 10,            // a peer died, hung up or left; the text names it
  kOutOfRange = 11,
  kUnimplemented = 12,  // this version, machine or backend cannot
  kInternal = 13,       // a mistake in Iris, or a failure of the driver
  kUnavailable = 14,    // irisd does not answer
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// Returns "DEADLINE_EXCEEDED" and so on, or "UNKNOWN" for other numbers.
constexpr const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kUnknown:
      return "UNKNOWN";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN";
}

}  // namespace iris
