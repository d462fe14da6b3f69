// Status codes as numbers in messages, frames and files: all casts are here. Pure; thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace iris::proto {

// Returns the code with this number; kUnknown for a number that is no code.
constexpr absl::StatusCode CodeOf(uint32_t number) {
  return number <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)
             ? static_cast<absl::StatusCode>(number)
             : absl::StatusCode::kUnknown;
}
constexpr uint32_t NumberOf(absl::StatusCode code) { return static_cast<uint32_t>(code); }

}  // namespace iris::proto
