// Log lines of the client library, and of programs that use the same format: `[iris] [2/4]
// warning: text` on stderr, where 2/4 is the rank. The level comes from IRIS_LOG_LEVEL (debug,
// info, warning, error, off); default warning. Thread-safe.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/base/environment.h"

namespace iris::log {

enum class Level { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3, kOff = 4 };

// Prints nothing below `level` from now on. Overrides IRIS_LOG_LEVEL.
void SetLevel(Level level);
Level GetLevel();

// Returns the level with this name, in upper or lower case; `fallback` for any other text.
Level ParseLevel(absl::string_view name, Level fallback);

// Returns kInvalidArgument if IRIS_LOG_LEVEL is set to something that is no level. Without this
// call, such a value counts as not set.
absl::Status CheckLevel(const internal::Getter& get);

// Sets the rank in the prefix of this thread's lines. Threads that never call SetRank print the
// rank that was set first in the process. Context::Create calls it on its thread.
void SetRank(uint32_t rank, uint32_t n_ranks);

// Prints one line. base::Printable escapes the text.
void Write(Level level, absl::string_view text);

template <typename... Parts>
void Debug(const Parts&... parts) {
  if (GetLevel() <= Level::kDebug) Write(Level::kDebug, absl::StrCat(parts...));
}
template <typename... Parts>
void Info(const Parts&... parts) {
  if (GetLevel() <= Level::kInfo) Write(Level::kInfo, absl::StrCat(parts...));
}
template <typename... Parts>
void Warning(const Parts&... parts) {
  if (GetLevel() <= Level::kWarning) Write(Level::kWarning, absl::StrCat(parts...));
}
template <typename... Parts>
void Error(const Parts&... parts) {
  if (GetLevel() <= Level::kError) Write(Level::kError, absl::StrCat(parts...));
}

}  // namespace iris::log
