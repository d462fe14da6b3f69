// Bulk copies of the hip backend, whose devices have no unit for them: a thread stores 16 bytes at
// a time. bulk.h has the contracts.
#pragma once

#include "iris/backend/bulk_plain.h"

namespace iris::backend {

IRIS_DEVICE constexpr bool HasBulkCopies() { return false; }

}  // namespace iris::backend
