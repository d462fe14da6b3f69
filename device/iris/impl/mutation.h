// The orders and syncs of the device protocols, so that tests/mutation can break each by
// IRIS_MUTATE and show that ThreadSanitizer sees it. kPublishOrder is for the store that publishes,
// kConsumeOrder for the load that waits for it. A sync of no protocol stays backend::BlockSync.
#pragma once

#include "iris/backend/select.h"
#include "iris/backend/types.h"

#ifndef IRIS_MUTATE
#define IRIS_MUTATE 0
#endif

namespace iris::impl {

// The number of the mistake that this build makes: 0 for none.
enum class Mutation {
  kNone = 0,
  kRelaxedPublish = 1,       // release -> relaxed
  kRelaxedConsume = 2,       // acquire -> relaxed
  kNoSyncBeforePublish = 3,  // the block's writes are not collected before one thread publishes
  kNoSyncAfterConsume = 4,   // the block goes on before the thread that polls has seen the flag
  kNoSyncInsideBlock = 5,    // shared memory is read before, or overwritten after, it was written
  kNoWarpSync = 6,           // the same in a warp
};

inline constexpr Mutation kMutation = static_cast<Mutation>(IRIS_MUTATE);

// The order of stores and read-modify-writes that publish earlier writes.
inline constexpr Order kPublishOrder =
    kMutation == Mutation::kRelaxedPublish ? Order::kRelaxed : Order::kRelease;

// The order of loads that wait for such a store.
inline constexpr Order kConsumeOrder =
    kMutation == Mutation::kRelaxedConsume ? Order::kRelaxed : Order::kAcquire;

// Between the writes of all threads of a block and the publishing store of one of them.
IRIS_DEVICE inline void SyncBeforePublish() {
  if constexpr (kMutation != Mutation::kNoSyncBeforePublish) backend::BlockSync();
}

// Between the acquiring load of one thread and the reads of all threads of its block.
IRIS_DEVICE inline void SyncAfterConsume() {
  if constexpr (kMutation != Mutation::kNoSyncAfterConsume) backend::BlockSync();
}

// Between the threads of a block that pass data through shared memory.
IRIS_DEVICE inline void SyncInsideBlock() {
  if constexpr (kMutation != Mutation::kNoSyncInsideBlock) backend::BlockSync();
}

// Any of the three above, for a warp.
IRIS_DEVICE inline void SyncWarp() {
  if constexpr (kMutation != Mutation::kNoWarpSync) backend::WarpSync();
}

}  // namespace iris::impl
