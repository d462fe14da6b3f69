// Functions that read and write entire files.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace iris::internal {

// Replaces the file's contents, or makes the file. A link is followed only if this user or root has
// made it, because other users may plant links. An error names the file and the reason; the file
// may then hold a part.
absl::Status WriteFile(const std::string& path, absl::string_view text);

// Returns the contents of a file of at most `bytes_max` bytes. kNotFound, kInvalidArgument (the
// file is larger) and kUnavailable name the file.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t bytes_max);

}  // namespace iris::internal
