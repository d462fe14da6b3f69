// From the device layer's Result to absl::Status. For the parts of the host library that start
// kernels.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "device/backend/types.h"

namespace iris::internal {

// The codes are the same numbers. They are cast here, and nowhere else.
constexpr bool SameCode(ErrorCode device, absl::StatusCode host) {
  return static_cast<int>(device) == static_cast<int>(host);
}
static_assert(SameCode(ErrorCode::kOk, absl::StatusCode::kOk));
static_assert(SameCode(ErrorCode::kInvalidArgument, absl::StatusCode::kInvalidArgument));
static_assert(SameCode(ErrorCode::kDeadlineExceeded, absl::StatusCode::kDeadlineExceeded));
static_assert(SameCode(ErrorCode::kResourceExhausted, absl::StatusCode::kResourceExhausted));
static_assert(SameCode(ErrorCode::kFailedPrecondition, absl::StatusCode::kFailedPrecondition));
static_assert(SameCode(ErrorCode::kAborted, absl::StatusCode::kAborted));
static_assert(SameCode(ErrorCode::kUnimplemented, absl::StatusCode::kUnimplemented));
static_assert(SameCode(ErrorCode::kInternal, absl::StatusCode::kInternal));

constexpr absl::StatusCode CodeOf(ErrorCode code) { return static_cast<absl::StatusCode>(code); }

inline absl::Status FromDevice(const Result& result, absl::string_view what) {
  if (result.ok()) return absl::OkStatus();
  return absl::Status(CodeOf(result.code), absl::StrCat(what, ": ", result.what));
}

// kFailedPrecondition where the kernels of this program (`kernels`: backend::BackendName()) cannot
// work on the memory of the heap (`heap`: Context::backend()).
inline absl::Status CheckBackend(absl::string_view kernels, absl::string_view heap,
                                 absl::string_view what) {
  if (kernels == heap) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": the kernels of this program are built for the backend '", kernels,
                   "', but the heap is memory of '", heap, "'. Build it for '", heap,
                   "' (link iris-device-", heap, "), or start irisd with --backend ", kernels));
}

}  // namespace iris::internal
