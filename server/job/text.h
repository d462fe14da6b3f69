// Text: checks of texts from clients, and helpers for error messages. Pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/job/ids.h"
#include "server/job/operation_spec.h"

namespace iris::server {

// Returns true if `text` is UTF-8 without control characters and (invisible) format characters.
bool IsPrintable(absl::string_view text);

// Returns kInvalidArgument, naming `what`, unless `text` has min_bytes to max_bytes bytes, is
// printable and, if not empty, has a visible character. The message has no unprintable text.
absl::Status CheckText(absl::string_view what, absl::string_view text, size_t min_bytes,
                       size_t max_bytes);

// Returns `text` cut to max_bytes, with every byte that is not printable ASCII or part of printable
// UTF-8 replaced by '?'.
std::string CleanText(absl::string_view text, size_t max_bytes);
// Returns the status with its text cleaned and cut to wire::kMaxErrorTextBytes.
absl::Status CleanStatus(const absl::Status& status);

// Calls CheckText, and also refuses names that are reserved for irisd's own allocations.
absl::Status CheckAllocationName(absl::string_view name, size_t min_bytes);

// Returns kInvalidArgument if a client's description of an allocation has an impossible dtype or
// shape.
absl::Status CheckTensor(const TensorInfo& tensor);

using Code = absl::StatusCode;
template <typename... Parts>
absl::Status Error(Code code, const Parts&... parts) {
  return absl::Status(code, absl::StrCat(parts...));
}
// Returns the error with `what` prepended to its message.
absl::Status WithPrefix(absl::string_view what, const absl::Status& why);

// Returns "team 3", or "rank 1 alone" for a rank's own team.
std::string TeamText(TeamId team);

}  // namespace iris::server
