// Bulk copies of the cuda backend: cp.async.bulk, from sm_90 on. bulk.h has the contracts. Older
// GPUs store 16 bytes at a time.
#pragma once

#include <cstdint>

namespace iris::backend {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900

IRIS_DEVICE constexpr bool HasBulkCopies() { return false; }

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

#else

IRIS_DEVICE constexpr bool HasBulkCopies() { return true; }

// Addresses of shared memory have 32 bits there: the low ones of a generic address would be wrong.
IRIS_DEVICE inline void BulkStore(void* to, const void* from, uint32_t bytes) {
  IRIS_PTX(
      "{ .reg .u64 shared; .reg .u32 from;\n"
      "cvta.to.shared.u64 shared, %1;\n"
      "cvt.u32.u64 from, shared;\n"
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [from], %2; }"
      :
      : "l"(to), "l"(from), "r"(bytes)
      : "memory");
  (void)to;
  (void)from;
  (void)bytes;
}

// The threads write by the generic proxy, the copy reads by the async one.
IRIS_DEVICE inline void BulkPublishShared() {
  IRIS_PTX("fence.proxy.async.shared::cta;" : : : "memory");
}
IRIS_DEVICE inline void BulkCommit() { IRIS_PTX("cp.async.bulk.commit_group;" : : : "memory"); }
template <uint32_t kPending>
IRIS_DEVICE inline void BulkAwaitRead() {
  IRIS_PTX("cp.async.bulk.wait_group.read %0;" : : "n"(kPending) : "memory");
}
template <uint32_t kPending>
IRIS_DEVICE inline void BulkAwait() {
  IRIS_PTX("cp.async.bulk.wait_group %0;" : : "n"(kPending) : "memory");
}

#endif

}  // namespace iris::backend
