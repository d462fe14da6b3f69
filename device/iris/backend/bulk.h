// Bulk copies: a thread passes ranges to the device's copy unit, which copies them from its block's
// shared memory to global memory (a peer's, too), or back, while the thread continues. On devices
// without such a unit the thread copies the ranges itself.
//
//   ... the threads write `part` in shared memory ...
//   BulkPublishShared();                  // each thread that has written
//   BlockSync();
//   BulkStore(to, part, bytes);           // one thread, or several with a range each
//   BulkCommit();                         // that thread
//   BulkAwaitRead();                      // `part` may be overwritten by this thread
//   BulkAwait();                          // complete: a release of this thread publishes them
//
//   BulkGateInit(gate);                   // one thread; then a sync
//   BulkSeeOthers();                      // the loading thread, after it acquired others' writes
//   BulkExpect(gate, bytes);              // that thread: the bytes of all loads of this phase
//   BulkLoad(part, from, bytes, gate);    // that thread, once or several times; more than 0 bytes
//   while (!BulkArrived(gate, parity));   // a reader of `part`: 0 for the first phase, 1, 0, ...
//
// A gate is eight aligned bytes of shared memory. The block syncs between the reads of a part,
// polls of its gate included, and the next loads into it.
//
// The bytes, and both addresses, are multiples of 16. A range is at most kBulkMaxBytes. The copies
// that a thread commits together are a group; a thread waits only for its own groups. A finished
// copy is not yet visible to others: that takes a release (a fence, or a store with an order) of
// system scope by the thread that has waited, or by one that it has signalled. A relaxed flag after
// BulkAwait was seen to overtake the data.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"

namespace iris::backend {

inline constexpr uint32_t kBulkAlignmentBytes = 16;
inline constexpr uint32_t kBulkMaxBytes = 1u << 20;

// Returns true if a copy unit copies any number of bytes for one thread, false if the threads of a
// block copy faster together. A constant in kernels.
IRIS_DEVICE constexpr bool HasBulkCopies();

// Starts to write `bytes` bytes at `from`, in shared memory, to `to`.
IRIS_DEVICE void BulkStore(void* to, const void* from, uint32_t bytes);

// Orders this thread's writes to shared memory before copies that start after the next sync.
IRIS_DEVICE void BulkPublishShared();

// Makes a group of the stores that this thread has started since its last group.
IRIS_DEVICE void BulkCommit();

// BulkAwaitRead waits until all groups of this thread except the newest kPending have read their
// sources, BulkAwait until they are complete.
template <uint32_t kPending = 0>
IRIS_DEVICE void BulkAwaitRead();
template <uint32_t kPending = 0>
IRIS_DEVICE void BulkAwait();

IRIS_DEVICE void BulkGateInit(uint64_t* gate);

// Orders all writes to global memory that this thread has acquired before its later bulk loads.
IRIS_DEVICE void BulkSeeOthers();

// Begins a phase of the gate, which ends when `bytes` bytes have arrived, at once if it is 0.
IRIS_DEVICE void BulkExpect(uint64_t* gate, uint32_t bytes);

// Starts to read `bytes` bytes at `from` to `to`, in shared memory.
IRIS_DEVICE void BulkLoad(void* to, const void* from, uint32_t bytes, uint64_t* gate);

// Returns true if the phase of this parity, the newest or the previous one, has ended. Acquires.
IRIS_DEVICE bool BulkArrived(const uint64_t* gate, uint32_t parity);

}  // namespace iris::backend
