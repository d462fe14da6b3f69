// Elements in packs, words of eight bytes at any address, and shares of threads.
#pragma once

#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/impl/copy.h"

namespace iris::ccl::impl {

// The type in which elements of T are reduced: f32 for narrow floats, so that a result is rounded
// once; unsigned integers, so that overflow wraps, except in comparisons.
template <typename T>
struct Accumulator {
  using Type = T;
};
template <>
struct Accumulator<Half> {
  using Type = float;
};
template <>
struct Accumulator<Bfloat16> {
  using Type = float;
};
template <>
struct Accumulator<uint8_t> {
  using Type = uint32_t;
};

template <typename T, uint32_t K>
struct alignas(sizeof(T) * K) Pack {
  T values[K];
};

template <typename T, uint32_t K>
struct Sum {
  typename Accumulator<T>::Type values[K];
};

// Threads that share a range: this one is number `index` of `n`. `unroll` is 1, or 2 for twice as
// many loads at a time.
struct Share {
  uint64_t index;
  uint64_t n;
  uint32_t unroll = 1;
};

// A Share can be the coop of iris::impl::CopyBytes.
IRIS_DEVICE inline uint32_t CoopIndex(Share share) { return static_cast<uint32_t>(share.index); }
IRIS_DEVICE inline uint32_t CoopSize(Share share) { return static_cast<uint32_t>(share.n); }

// Loads up to eight bytes at `p`, of which `count` (1 to 8) exist.
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
