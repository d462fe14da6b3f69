// Reading and writing a file as a whole.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace iris::internal {

// Replaces the file's contents; makes it if there is none. A link is followed if this user or root
// has made it, and not if another one may have planted it. An error names the file and the reason;
// the file may then hold a part.
absl::Status WriteFile(const std::string& path, absl::string_view text);

// All of a file of at most `bytes_max` bytes. kNotFound, kInvalidArgument (larger), kUnavailable:
// names the file.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max);

}  // namespace iris::internal
