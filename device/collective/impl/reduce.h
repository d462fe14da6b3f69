// Element types and operators of reductions.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/backend/numeric.h"
#include "device/backend/select.h"
#include "device/collective/collective.h"
#include "device/iris/impl/copy.h"

namespace iris::ccl::impl {

// In what type elements of T are added and multiplied: narrow floats in fp32; integers unsigned,
// where overflow wraps.
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

template <ReduceOp Op, typename A>
IRIS_HOST_DEVICE inline A Combine(A a, A b) {
  if constexpr (std::is_integral_v<A> && (Op == ReduceOp::kSum || Op == ReduceOp::kProd)) {
    using U = std::make_unsigned_t<A>;
    const U x = static_cast<U>(a);
    const U y = static_cast<U>(b);
    return static_cast<A>(Op == ReduceOp::kSum ? static_cast<U>(x + y) : static_cast<U>(x * y));
  } else if constexpr (Op == ReduceOp::kSum) {
    return a + b;
  } else if constexpr (Op == ReduceOp::kProd) {
    return a * b;
  } else if constexpr (Op == ReduceOp::kMin) {
    return b < a || b != b ? b : a;  // b != b: NaN, which stays
  } else {
    return b > a || b != b ? b : a;
  }
}

template <typename T, uint32_t kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

// to[i] = op over m of from(m)[i], for i in [begin, end), for each of the `n_to` destinations
// to(k). All threads of the block share the work; each element is read and written by one thread,
// so a destination may be a source. All `n_from` loads of a pack are issued before the first store.
template <typename T, ReduceOp Op, uint32_t kCount, typename From, typename To>
IRIS_DEVICE inline void ReducePacks(uint64_t begin, uint64_t end, uint32_t n_from, From from,
                                    uint32_t n_to, To to) {
  using A = typename Accumulator<T>::Type;
  using P = Pack<T, kCount>;
  for (uint64_t i = begin + backend::ThreadIndex() * uint64_t{kCount}; i < end;
       i += backend::BlockSize() * uint64_t{kCount}) {
    A sum[kCount] = {};
    for (uint32_t m = 0; m < n_from; ++m) {
      const P pack =
          iris::impl::LoadValue<CacheHint::kDefault>(reinterpret_cast<const P*>(from(m) + i));
      for (uint32_t k = 0; k < kCount; ++k) {
        const A value = static_cast<A>(pack.values[k]);
        sum[k] = m == 0 ? value : Combine<Op, A>(sum[k], value);
      }
    }
    P result;
    for (uint32_t k = 0; k < kCount; ++k) result.values[k] = static_cast<T>(sum[k]);
    for (uint32_t m = 0; m < n_to; ++m) {
      iris::impl::StoreValue<CacheHint::kDefault>(reinterpret_cast<P*>(to(m) + i), result);
    }
  }
}

// The same for any range: packs of 16 bytes where all addresses allow it, then single elements.
template <typename T, ReduceOp Op, typename From, typename To>
IRIS_DEVICE inline void ReduceRange(uint64_t begin, uint64_t end, uint32_t n_from, From from,
                                    uint32_t n_to, To to) {
  constexpr uint32_t kCount = 16 / sizeof(T);
  uint64_t bits = begin * sizeof(T);
  for (uint32_t m = 0; m < n_from; ++m) bits |= reinterpret_cast<uint64_t>(from(m));
  for (uint32_t m = 0; m < n_to; ++m) bits |= reinterpret_cast<uint64_t>(to(m));
  uint64_t packed_end = begin;
  if ((bits & 15) == 0) {
    packed_end = begin + (end - begin) / kCount * kCount;
    ReducePacks<T, Op, kCount>(begin, packed_end, n_from, from, n_to, to);
  }
  ReducePacks<T, Op, 1>(packed_end, end, n_from, from, n_to, to);
}

}  // namespace iris::ccl::impl
