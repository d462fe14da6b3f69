// Bulk copies of the emulated devices: the thread copies at once. bulk.h has the contracts.
#pragma once

#include "iris/backend/bulk_plain.h"

namespace iris::backend {

IRIS_DEVICE constexpr bool HasBulkCopies() { return true; }

}  // namespace iris::backend
