// Bulk copies by cp.async.bulk, from sm_90 on. bulk.h has the contracts.
#pragma once

#include <cstdint>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900

#include "iris/backend/bulk_plain.h"

#else

namespace iris::backend {

IRIS_DEVICE constexpr bool HasBulkCopies() { return true; }

// Addresses of shared memory have 32 bits here, which are not the low bits of a generic address.
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

// Threads write by the generic proxy, but copies read by the async proxy.
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

IRIS_DEVICE inline void BulkGateInit(uint64_t* gate) {
  IRIS_PTX(
      "{ .reg .u64 shared; .reg .u32 gate;\n"
      "cvta.to.shared.u64 shared, %0;\n"
      "cvt.u32.u64 gate, shared;\n"
      "mbarrier.init.shared::cta.b64 [gate], 1;\n"
      "fence.mbarrier_init.release.cluster; }"
      :
      : "l"(gate)
      : "memory");
  (void)gate;
}
// Makes data that the thread has acquired by the generic proxy visible to copies, which read by the
// async proxy.
IRIS_DEVICE inline void BulkSeeOthers() { IRIS_PTX("fence.proxy.async;" : : : "memory"); }
IRIS_DEVICE inline void BulkExpect(uint64_t* gate, uint32_t bytes) {
  IRIS_PTX(
      "{ .reg .u64 shared; .reg .u32 gate;\n"
      "cvta.to.shared.u64 shared, %0;\n"
      "cvt.u32.u64 gate, shared;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [gate], %1; }"
      :
      : "l"(gate), "r"(bytes)
      : "memory");
  (void)gate;
  (void)bytes;
}
IRIS_DEVICE inline void BulkLoad(void* to, const void* from, uint32_t bytes, uint64_t* gate) {
  IRIS_PTX(
      "{ .reg .u64 shared; .reg .u32 to; .reg .u32 gate;\n"
      "cvta.to.shared.u64 shared, %0;\n"
      "cvt.u32.u64 to, shared;\n"
      "cvta.to.shared.u64 shared, %3;\n"
      "cvt.u32.u64 gate, shared;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [to], [%1], %2, [gate]; }"
      :
      : "l"(to), "l"(from), "r"(bytes), "l"(gate)
      : "memory");
  (void)to;
  (void)from;
  (void)bytes;
  (void)gate;
}
IRIS_DEVICE inline bool BulkArrived(const uint64_t* gate, uint32_t parity) {
  uint32_t arrived = 0;
  IRIS_PTX(
      "{ .reg .u64 shared; .reg .u32 gate; .reg .pred done;\n"
      "cvta.to.shared.u64 shared, %1;\n"
      "cvt.u32.u64 gate, shared;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [gate], %2;\n"
      "selp.u32 %0, 1, 0, done; }"
      : "=r"(arrived)
      : "l"(gate), "r"(parity)
      : "memory");
  (void)gate;
  (void)parity;
  return arrived != 0;
}

}  // namespace iris::backend

#endif
