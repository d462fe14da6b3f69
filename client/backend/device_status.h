// Converts the device layer's Result to absl::Status, for the parts of the host library that launch
// kernels.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "iris/backend/types.h"

namespace iris::internal {

// The codes are the same numbers. They are cast here, and nowhere else.
constexpr bool SameCode(StatusCode device, absl::StatusCode host) {
  return static_cast<int>(device) == static_cast<int>(host);
}
static_assert(SameCode(StatusCode::kOk, absl::StatusCode::kOk));
static_assert(SameCode(StatusCode::kInvalidArgument, absl::StatusCode::kInvalidArgument));
static_assert(SameCode(StatusCode::kDeadlineExceeded, absl::StatusCode::kDeadlineExceeded));
static_assert(SameCode(StatusCode::kResourceExhausted, absl::StatusCode::kResourceExhausted));
static_assert(SameCode(StatusCode::kFailedPrecondition, absl::StatusCode::kFailedPrecondition));
static_assert(SameCode(StatusCode::kOutOfRange, absl::StatusCode::kOutOfRange));
static_assert(SameCode(StatusCode::kAborted, absl::StatusCode::kAborted));
static_assert(SameCode(StatusCode::kUnimplemented, absl::StatusCode::kUnimplemented));
static_assert(SameCode(StatusCode::kInternal, absl::StatusCode::kInternal));

constexpr absl::StatusCode CodeOf(StatusCode code) { return static_cast<absl::StatusCode>(code); }

inline absl::Status FromDevice(const Result& result, absl::string_view what) {
  if (result.ok()) return absl::OkStatus();
  return absl::Status(CodeOf(result.code), absl::StrCat(what, ": ", result.what));
}

}  // namespace iris::internal
