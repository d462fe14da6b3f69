// From the device layer's Result to absl::Status. For the parts of the host library that start
// kernels.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "device/backend/types.h"

namespace iris::internal {

// The codes are absl's numbers.
inline absl::Status FromDevice(const Result& result, absl::string_view what) {
  if (result.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(result.code),
                      absl::StrCat(what, ": ", result.what));
}

}  // namespace iris::internal
