// Annotate: puts the attempted action in front of an error.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace iris::internal {

// Returns "<what>: <message>" with the same code; OK stays OK.
inline absl::Status Annotate(const absl::Status& status, absl::string_view what) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

// Annotates the error of an operation of the control plane. irisd's text begins with the operation,
// "create_team #3 (team 0): ". It becomes "create a team of 2 ranks #3 (team 0): ".
inline absl::Status AnnotateOperation(const absl::Status& status, absl::string_view what) {
  const absl::string_view text = status.message();
  const absl::string_view operation = text.substr(0, text.find(" #"));
  const bool says_it = operation.size() < text.size() &&
                       operation.substr(0, operation.find('_')) == what.substr(0, what.find(' '));
  if (status.ok() || !says_it) return Annotate(status, what);
  return absl::Status(status.code(), absl::StrCat(what, text.substr(operation.size())));
}

}  // namespace iris::internal
