// Bulk copies of the emulated devices: the thread copies at once. That is one of the orders which a
// device may have. bulk.h has the contracts.
#pragma once

#include <cstdint>

namespace iris::backend {

IRIS_DEVICE constexpr bool HasBulkCopies() { return true; }

IRIS_DEVICE inline void BulkStore(void* to, const void* from, uint32_t bytes) {
  for (uint32_t at = 0; at < bytes; at += sizeof(Bytes16)) {
    raw::Store16<CacheHint::kDefault>(
        static_cast<char*>(to) + at,
        raw::Load16<CacheHint::kDefault>(static_cast<const char*>(from) + at));
  }
}
IRIS_DEVICE inline void BulkPublishShared() {}
IRIS_DEVICE inline void BulkCommit() {}
template <uint32_t kPending>
IRIS_DEVICE inline void BulkAwaitRead() {}
template <uint32_t kPending>
IRIS_DEVICE inline void BulkAwait() {}

}  // namespace iris::backend
