// Converts iris::Status, the type of the public API, to absl::Status, which our own programs and
// tests use. Pure functions.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "iris/status.h"

namespace iris::base {

inline absl::Status ToAbsl(const Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

template <typename T>
absl::StatusOr<T> ToAbsl(StatusOr<T> value) {
  if (!value.ok()) return ToAbsl(value.status());
  return *std::move(value);
}

}  // namespace iris::base
