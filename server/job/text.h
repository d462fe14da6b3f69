// Text: checks of what comes from clients, and messages of errors. Pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/job/ids.h"
#include "server/job/operation_spec.h"

namespace iris::server {

// True if `text` is UTF-8 without control characters, and without format characters, which nobody
// sees.
bool IsPrintable(absl::string_view text);

// kInvalidArgument, naming `what`, unless `text` has min_bytes to max_bytes bytes, is printable
// and, if it is not empty, has a visible character. The message never repeats text that is not.
absl::Status CheckText(absl::string_view what, absl::string_view text, size_t min_bytes,
                       size_t max_bytes);

// `text` cut to max_bytes, every byte that is not printable ASCII or part of printable UTF-8
// replaced by '?'.
std::string CleanText(absl::string_view text, size_t max_bytes);

// Also refuses names of allocations that are irisd's own.
absl::Status CheckAllocationName(absl::string_view name, size_t min_bytes);

// kInvalidArgument: what a client says that an allocation is has no such dtype or shape.
absl::Status CheckTensor(const TensorInfo& tensor);

using Code = absl::StatusCode;
template <typename... Parts>
absl::Status Error(Code code, const Parts&... parts) {
  return absl::Status(code, absl::StrCat(parts...));
}
// Returns the error with `what` before its message.
absl::Status WithPrefix(absl::string_view what, const absl::Status& why);

// "team 3"; of a rank's own team "rank 1 alone".
std::string TeamText(TeamId team);

}  // namespace iris::server
