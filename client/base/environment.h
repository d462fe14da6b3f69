// Environment: one variable of this process. Code that reads variables takes a function of this
// shape, so that tests bring their own.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace iris::internal {

// Which accesses are compared with the allocations that a rank knows: see HeapRanges::Make.
inline constexpr char kCheckAccess[] = "IRIS_CHECK_ACCESS";

// The variable's value; nullopt if it is not set.
inline std::optional<std::string> Environment(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

}  // namespace iris::internal
