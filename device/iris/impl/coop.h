// The thread sets of cooperative calls: index and size of the caller's set, and its sync.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/impl/mutation.h"
#include "iris/types.h"

namespace iris::impl {

// For calls whose tag may be left out: a number in its place is no tag.
template <typename T>
using IfCoop = std::enable_if_t<std::is_same_v<T, Thread> || std::is_same_v<T, Warp> ||
                                std::is_same_v<T, Block>>;

IRIS_DEVICE inline uint32_t CoopIndex(Thread) { return 0; }
IRIS_DEVICE inline uint32_t CoopIndex(Warp) { return backend::LaneIndex(); }
IRIS_DEVICE inline uint32_t CoopIndex(Block) { return backend::ThreadIndex(); }

IRIS_DEVICE inline uint32_t CoopSize(Thread) { return 1; }

// The last warp of a block may be short.
IRIS_DEVICE inline uint32_t CoopSize(Warp) {
  const uint32_t first = backend::WarpIndex() * backend::WarpSize();
  const uint32_t rest = backend::BlockSize() - first;
  return rest < backend::WarpSize() ? rest : backend::WarpSize();
}

IRIS_DEVICE inline uint32_t CoopSize(Block) { return backend::BlockSize(); }

// Orders the writes of the set before a release by one of its threads.
IRIS_DEVICE inline void CoopSyncBeforePublish(Thread) {}
IRIS_DEVICE inline void CoopSyncBeforePublish(Warp) { SyncWarp(); }
IRIS_DEVICE inline void CoopSyncBeforePublish(Block) { SyncBeforePublish(); }

// Gives all threads of the set the first's value, and what the first has acquired.
IRIS_DEVICE inline uint32_t CoopBroadcast(Thread, uint32_t value) { return value; }

IRIS_DEVICE inline uint32_t CoopBroadcast(Warp, uint32_t value) {
  value = backend::Shuffle(value, 0);
  SyncWarp();
  return value;
}

IRIS_DEVICE inline uint32_t CoopBroadcast(Block, uint32_t value) {
  IRIS_SHARED(uint32_t[1], word);
  if (backend::ThreadIndex() == 0) word[0] = value;
  SyncAfterConsume();
  value = word[0];
  SyncInsideBlock();  // the next broadcast writes the word again
  return value;
}

// The units of one thread of several: first, first + step, and so on below end.
struct Units {
  uint64_t first;
  uint64_t end;
  uint64_t step;
};

// Returns those of thread `index` of `n` among `count` units. Threads of a GPU take neighbouring
// units, which one access reaches together. Emulated threads run one after the other, so each has
// units that follow each other.
IRIS_DEVICE inline Units UnitsOf(uint64_t count, uint64_t index, uint64_t n) {
  if constexpr (backend::Traits::kEmulated) {
    const uint64_t each = (count + n - 1) / n;
    const uint64_t first = index * each < count ? index * each : count;
    return {first, count - first < each ? count : first + each, 1};
  } else {
    return {index, count, n};
  }
}

}  // namespace iris::impl
