// Require: the value of a result without which a test cannot go on. For the test's own thread.
#pragma once

#include <stdexcept>
#include <utility>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace iris::testing {

// Returns the value of a result that must be OK. Otherwise the test fails in the caller's line, and
// ends by an exception, which googletest catches.
template <typename T>
T Require(absl::StatusOr<T> result, const char* file = __builtin_FILE(),
          int line = __builtin_LINE()) {
  if (!result.ok()) {
    ADD_FAILURE_AT(file, line) << result.status();
    throw std::runtime_error("the test cannot go on");
  }
  return *std::move(result);
}

}  // namespace iris::testing
