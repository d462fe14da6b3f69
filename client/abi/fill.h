// Checks a fill of the C API and converts it for the backend. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/abi/views.h"
#include "iris/c_api.h"
#include "iris/fill/fill.h"

namespace iris::abi {

// Returns the description of `count` elements from `options.first` on, with the options' kind and
// dtype. kInvalidArgument is as in iris_fill; nothing has started.
absl::StatusOr<fill::Description> DescribeFill(const iris_fill_options& options, uint64_t count);

// Returns the places of the elements of a view whose first element is at `address`.
fill::Place PlaceOf(const View& view, void* address);

}  // namespace iris::abi
