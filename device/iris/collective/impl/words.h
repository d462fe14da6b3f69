// Words of eight bytes at any address, and rows of reductions.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/collective/impl/reduce.h"

namespace iris::ccl::impl {

// Elements of row r.
template <typename C>
IRIS_DEVICE inline uint64_t RowCount(const C& call, uint32_t r) {
  const uint64_t begin = r * call.count;
  return begin < call.limit ? Min(call.count, call.limit - begin) : 0;
}

// Eight bytes of `bytes` at `p`, of which `count` (1 to 8) exist.
template <typename T>
IRIS_DEVICE inline uint64_t LoadWord(const uint8_t* p, uint64_t count) {
  if (count >= 8 && (reinterpret_cast<uint64_t>(p) & 7) == 0) {
    return backend::LoadPlain(reinterpret_cast<const uint64_t*>(p));
  }
  Pack<T, 8 / sizeof(T)> pack = {};
  IRIS_UNROLL(8)
  for (uint32_t k = 0; k < 8 / sizeof(T); ++k) {
    if (k * sizeof(T) < count) {
      pack.values[k] =
          iris::impl::LoadValue<CacheHint::kDefault>(reinterpret_cast<const T*>(p) + k);
    }
  }
  return iris::impl::BitCast<uint64_t>(pack);
}

template <typename T>
IRIS_DEVICE inline void StoreWord(uint8_t* p, uint64_t count, uint64_t word) {
  if (count >= 8 && (reinterpret_cast<uint64_t>(p) & 7) == 0) {
    backend::StorePlain(reinterpret_cast<uint64_t*>(p), word);
    return;
  }
  const auto pack = iris::impl::BitCast<Pack<T, 8 / sizeof(T)>>(word);
  IRIS_UNROLL(8)
  for (uint32_t k = 0; k < 8 / sizeof(T); ++k) {
    if (k * sizeof(T) < count) {
      iris::impl::StoreValue<CacheHint::kDefault>(reinterpret_cast<T*>(p) + k, pack.values[k]);
    }
  }
}

}  // namespace iris::ccl::impl
