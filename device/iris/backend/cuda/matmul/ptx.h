// Instructions of Hopper, one function each. Addresses of shared memory have 32 bits, in the window
// of the block's cluster. mbarrier instructions have their default order, release and acquire at
// block scope: wider scopes cost a third of the speed.
#pragma once

#include <cstdint>

// Defined for the GPU that has all these instructions (sm_90a); for others the kernel is empty.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define IRIS_MATMUL_HOPPER 1
#endif

namespace iris::backend::cuda::matmul {

#define IRIS_MATMUL_DEVICE __device__ __forceinline__

#if !defined(__CUDA_ARCH__) || defined(IRIS_MATMUL_HOPPER)

IRIS_MATMUL_DEVICE uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

IRIS_MATMUL_DEVICE void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(arrivals));
}
// Makes barriers just initialized visible to the copy engine and to the other blocks of the
// cluster.
IRIS_MATMUL_DEVICE void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}
IRIS_MATMUL_DEVICE void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
// Arrives at the barrier at the address `barrier` of block `place` of the cluster.
IRIS_MATMUL_DEVICE void BarrierArriveAt(uint32_t barrier, uint32_t place) {
  asm volatile(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }"
      :
      : "r"(barrier), "r"(place)
      : "memory");
}
// Arrives, and makes the phase wait for `bytes` more bytes of copies.
IRIS_MATMUL_DEVICE void BarrierExpect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               :
               : "r"(barrier), "r"(bytes)
               : "memory");
}
IRIS_MATMUL_DEVICE void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }"
      :
      : "r"(barrier), "r"(parity)
      : "memory");
}

// Returns the address in block `place` of the cluster that corresponds to `address` in this block.
IRIS_MATMUL_DEVICE uint32_t AddressAt(uint32_t address, uint32_t place) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(place));
  return there;
}
IRIS_MATMUL_DEVICE void StoreAt(uint32_t there, float x, float y, float z, float w) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};"
               :
               : "r"(there), "f"(x), "f"(y), "f"(z), "f"(w)
               : "memory");
}
IRIS_MATMUL_DEVICE void FenceCluster() { asm volatile("fence.acq_rel.cluster;" : : : "memory"); }

IRIS_MATMUL_DEVICE void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
               :
               :
               : "memory");
}
IRIS_MATMUL_DEVICE uint32_t PlaceInCluster() {
  uint32_t place;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(place));
  return place;
}
IRIS_MATMUL_DEVICE void GroupSync(uint32_t id) {
  asm volatile("bar.sync %0, 128;" : : "r"(id) : "memory");
}

// Copies that complete on a barrier, and copies that are waited for in groups.

IRIS_MATMUL_DEVICE void PrefetchMap(const void* map) {
  asm volatile("prefetch.tensormap [%0];" : : "l"(map) : "memory");
}
IRIS_MATMUL_DEVICE void LoadTile(uint32_t to, const void* map, uint32_t x, uint32_t y,
                                 uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];"
      :
      : "r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}
// Loads to the same address of every block in the mask `blocks`.
IRIS_MATMUL_DEVICE void LoadTileToAll(uint32_t to, const void* map, uint32_t x, uint32_t y,
                                      uint32_t barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
      :
      : "r"(to), "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
      : "memory");
}
IRIS_MATMUL_DEVICE void StoreTile(const void* map, uint32_t x, uint32_t y, uint32_t from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               :
               : "l"(map), "r"(x), "r"(y), "r"(from)
               : "memory");
}
// Loads by a map with three dimensions.
IRIS_MATMUL_DEVICE void LoadTile3(uint32_t to, const void* map, uint32_t x, uint32_t y, uint32_t z,
                                  uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];"
      :
      : "r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}
IRIS_MATMUL_DEVICE void StoreTile3(const void* map, uint32_t x, uint32_t y, uint32_t z,
                                   uint32_t from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];"
               :
               : "l"(map), "r"(x), "r"(y), "r"(z), "r"(from)
               : "memory");
}
IRIS_MATMUL_DEVICE void LoadBulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(to), "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
IRIS_MATMUL_DEVICE void StoreBulk(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :
               : "l"(to), "r"(from), "r"(bytes)
               : "memory");
}
IRIS_MATMUL_DEVICE void CommitCopies() {
  asm volatile("cp.async.bulk.commit_group;" : : : "memory");
}
// WaitCopiesRead waits until all groups of this thread except the newest kPending have read shared
// memory, WaitCopies until they are complete.
template <uint32_t kPending>
IRIS_MATMUL_DEVICE void WaitCopiesRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(kPending) : "memory");
}
template <uint32_t kPending>
IRIS_MATMUL_DEVICE void WaitCopies() {
  asm volatile("cp.async.bulk.wait_group %0;" : : "n"(kPending) : "memory");
}
// Orders accesses by the threads with accesses by the copy engine.
IRIS_MATMUL_DEVICE void ProxyFence() { asm volatile("fence.proxy.async;" : : : "memory"); }
IRIS_MATMUL_DEVICE void ProxyFenceShared() {
  asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

IRIS_MATMUL_DEVICE void MatrixFence() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
IRIS_MATMUL_DEVICE void MatrixCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
template <uint32_t kPending>
IRIS_MATMUL_DEVICE void MatrixWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}
template <uint32_t kRegisters>
IRIS_MATMUL_DEVICE void RegistersUp() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(kRegisters));
}
template <uint32_t kRegisters>
IRIS_MATMUL_DEVICE void RegistersDown() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(kRegisters));
}

#endif  // Hopper

}  // namespace iris::backend::cuda::matmul
