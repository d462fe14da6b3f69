// Implements bulk.h without a copy unit: a call copies before it returns. A gate's value is twice
// the bytes still to arrive, plus the parity of the finished phases. One thread changes a gate.
#pragma once

#include <cstdint>

#include "iris/backend/primitives.h"

namespace iris::backend {

IRIS_DEVICE constexpr bool HasBulkCopies() { return Traits::kEmulated; }

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

IRIS_DEVICE inline void BulkGateInit(uint64_t* gate) {
  Store<Scope::kBlock, Order::kRelaxed>(gate, uint64_t{0});
}
IRIS_DEVICE inline void BulkSeeOthers() {}
IRIS_DEVICE inline void BulkExpect(uint64_t* gate, uint32_t bytes) {
  const uint64_t value = Load<Scope::kBlock, Order::kRelaxed>(gate);
  Store<Scope::kBlock, Order::kRelaxed>(gate, bytes == 0 ? value ^ 1 : value + 2 * uint64_t{bytes});
}
IRIS_DEVICE inline void BulkLoad(void* to, const void* from, uint32_t bytes, uint64_t* gate) {
  BulkStore(to, from, bytes);
  const uint64_t value = Load<Scope::kBlock, Order::kRelaxed>(gate) - 2 * uint64_t{bytes};
  Store<Scope::kBlock, Order::kRelease>(gate, value < 2 ? value ^ 1 : value);
}
IRIS_DEVICE inline bool BulkArrived(const uint64_t* gate, uint32_t parity) {
  return (Load<Scope::kBlock, Order::kAcquire>(gate) & 1) != parity;
}

}  // namespace iris::backend
