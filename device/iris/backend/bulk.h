// Bulk copies: a thread hands ranges of its block's shared memory to the device's copy unit, which
// writes them to global memory, also that of a peer, while the thread goes on. A thread copies by
// itself on devices that have no such unit.
//
//   ... the threads write `part` in shared memory ...
//   BulkPublishShared();                  // each thread that has written
//   BlockSync();
//   BulkStore(to, part, bytes);           // one thread, or several with a range each
//   BulkCommit();                         // that thread
//   BulkAwaitRead();                      // `part` may be overwritten by this thread
//   BulkAwait();                          // all is written: a release of this thread publishes it
//
// The bytes, and both addresses, are multiples of 16. A range is at most kBulkMaxBytes. What a
// thread commits together is a group; waits are for the groups of the calling thread alone. To be
// done is not to be visible to others: that takes a release (a fence, or a store with an order) of
// system scope by the thread that has waited, or by one that it has told. A relaxed flag behind
// BulkAwait was seen to overtake the data.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"

namespace iris::backend {

inline constexpr uint32_t kBulkAlignmentBytes = 16;
inline constexpr uint32_t kBulkMaxBytes = 1u << 20;

// True: a copy goes on beside the thread, and one thread is enough for any number of bytes. False:
// the calls below are right, but the threads of a block copy faster together. A constant in
// kernels.
IRIS_DEVICE constexpr bool HasBulkCopies();

// Starts to write `bytes` bytes at `from`, in shared memory, to `to`.
IRIS_DEVICE void BulkStore(void* to, const void* from, uint32_t bytes);

// Orders what this thread has written to shared memory before the copies that a thread starts
// behind the next sync.
IRIS_DEVICE void BulkPublishShared();

// Makes a group of what this thread has started since the last.
IRIS_DEVICE void BulkCommit();

// Waits until all groups of this thread but the newest kPending have read what they copy; until
// they are complete.
template <uint32_t kPending = 0>
IRIS_DEVICE void BulkAwaitRead();
template <uint32_t kPending = 0>
IRIS_DEVICE void BulkAwait();

}  // namespace iris::backend
