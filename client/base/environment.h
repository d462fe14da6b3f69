// Environment: the variables of this process, and functions that read those of Iris. Code that
// reads variables takes a Getter, so that tests can pass their own.
//
// Thread-safe while no thread changes the environment. A variable that is set to nothing counts as
// not set.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace iris::internal {

// Returns the value of a variable, or nullopt if it is not set.
using Getter = std::function<std::optional<std::string>(const char* variable)>;

// Chooses which accesses are checked against known allocations; see HeapRanges::Make.
inline constexpr char kCheckAccess[] = "IRIS_CHECK_ACCESS";

// The Getter of this process.
inline std::optional<std::string> Environment(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

// Returns kInvalidArgument with the text `environment variable NAME="text" is not WANTED`, on one
// line of bounded length.
absl::Status WrongVariable(absl::string_view variable, absl::string_view text,
                           absl::string_view wanted);

// Returns the number, from `min` to `max`, to which the variable is set. kInvalidArgument if it is
// set to something else.
absl::StatusOr<std::optional<uint64_t>> ReadNumber(const Getter& get, const char* variable,
                                                   uint64_t min, uint64_t max);

// The variables that are 0 or 1.
struct Switches {
  std::optional<bool> check_access;  // kCheckAccess
  std::optional<bool> ccl_check;     // IRIS_CCL_CHECK
  std::optional<bool> ccl_lines;     // IRIS_CCL_LINES
};
absl::StatusOr<Switches> ReadSwitches(const Getter& get);

// Returns kInvalidArgument if a variable has an invalid value: a switch, or one that is read where
// no error can be returned (the emulator's).
absl::Status CheckVariables(const Getter& get);

}  // namespace iris::internal
