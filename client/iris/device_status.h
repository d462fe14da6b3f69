// From the device layer's Result to absl::Status. For the parts of the host library that start
// kernels.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "device/backend/types.h"

namespace iris::internal {

// The codes are absl's numbers.
#define IRIS_SAME_CODE(code)                                                                   \
  static_assert(static_cast<int>(absl::StatusCode::code) == static_cast<int>(ErrorCode::code), \
                "the device layer and absl number their codes differently")
IRIS_SAME_CODE(kOk);
IRIS_SAME_CODE(kInvalidArgument);
IRIS_SAME_CODE(kDeadlineExceeded);
IRIS_SAME_CODE(kResourceExhausted);
IRIS_SAME_CODE(kFailedPrecondition);
IRIS_SAME_CODE(kAborted);
IRIS_SAME_CODE(kUnimplemented);
IRIS_SAME_CODE(kInternal);
#undef IRIS_SAME_CODE

inline absl::Status FromDevice(const Result& result, absl::string_view what) {
  if (result.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(result.code),
                      absl::StrCat(what, ": ", result.what));
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
