// Masks: loads, stores, copies and atomics under a condition.
//
//   // The last block has threads beyond the end:
//   const float value = Load(ctx, peer, x + i, Mask{i < n}, 0.0f);
//   Store(ctx, peer, y + i, value, Mask{i < n});
//   // A block copies a tile of 1,024 elements of which the matrix has fewer:
//   Put(ctx, peer, y + first, x + first, 1024, Tail{first, n}, Block{});
//
// A masked access touches no memory: its addresses and its peer may be anything.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/atomic.h"
#include "iris/backend/select.h"
#include "iris/impl/check.h"
#include "iris/impl/coop.h"
#include "iris/impl/copy.h"
#include "iris/memory.h"
#include "iris/types.h"

namespace iris {

// The call takes place if `on`. All threads of a cooperative call pass the same.
struct Mask {
  bool on;
};

// Selects, of `count` elements that begin at index `first`, those before index `end`. All threads
// of a cooperative call pass the same.
struct Tail {
  uint64_t first;
  uint64_t end;
};

namespace impl {

template <typename M>
using IfMask = std::enable_if_t<std::is_same_v<M, Mask> || std::is_same_v<M, Tail>>;

// Returns how many of `count` elements a mask selects.
IRIS_HOST_DEVICE constexpr uint64_t Masked(uint64_t count, Mask mask) {
  return mask.on ? count : 0;
}
IRIS_HOST_DEVICE constexpr uint64_t Masked(uint64_t count, Tail tail) {
  const uint64_t rest = tail.first < tail.end ? tail.end - tail.first : 0;
  return rest < count ? rest : count;
}

}  // namespace impl

// Reads as Load of memory.h does. Returns `other` if the mask is off.
template <CacheHint H = CacheHint::kDefault, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T Load(const Heaps& heaps, uint32_t peer, const T* src, Mask mask,
                          typename impl::NotDeduced<T>::Type other = T()) {
  return mask.on ? Load<H>(heaps, peer, src) : other;
}

// Writes as Store does.
template <CacheHint H = CacheHint::kDefault, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void Store(const Heaps& heaps, uint32_t peer, T* dst,
                              typename impl::NotDeduced<T>::Type value, Mask mask) {
  if (mask.on) Store<H>(heaps, peer, dst, value);
}

// Copy as Put, Get and Copy do, but only the first elements, which a Mask or a Tail selects.
template <CacheHint H = CacheHint::kDefault, typename T, typename M, typename Coop = Thread,
          typename Heaps, typename = impl::IfHeaps<Heaps>, typename = impl::IfMask<M>>
IRIS_DEVICE inline void Put(const Heaps& heaps, uint32_t peer, T* dst,
                            const typename impl::NotDeduced<T>::Type* src, uint64_t count, M mask,
                            Coop coop = Coop{}) {
  count = impl::Masked(count, mask);
  if (count > 0) Put<H>(heaps, peer, dst, src, count, coop);
}

template <CacheHint H = CacheHint::kDefault, typename T, typename M, typename Coop = Thread,
          typename Heaps, typename = impl::IfHeaps<Heaps>, typename = impl::IfMask<M>>
IRIS_DEVICE inline void Get(const Heaps& heaps, uint32_t peer, T* dst,
                            const typename impl::NotDeduced<T>::Type* src, uint64_t count, M mask,
                            Coop coop = Coop{}) {
  count = impl::Masked(count, mask);
  if (count > 0) Get<H>(heaps, peer, dst, src, count, coop);
}

template <CacheHint H = CacheHint::kDefault, typename T, typename M, typename Coop = Thread,
          typename Heaps, typename = impl::IfHeaps<Heaps>, typename = impl::IfMask<M>>
IRIS_DEVICE inline void Copy(const Heaps& heaps, uint32_t dst_peer, T* dst, uint32_t src_peer,
                             const typename impl::NotDeduced<T>::Type* src, uint64_t count, M mask,
                             Coop coop = Coop{}) {
  count = impl::Masked(count, mask);
  if (count > 0) Copy<H>(heaps, dst_peer, dst, src_peer, src, count, coop);
}

// Work as the atomics of atomic.h. They return the old value, or `other` if the mask is off.
#define IRIS_DEFINE(name, op, allowed)                                                       \
  template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,  \
            typename = impl::IfHeaps<Heaps>>                                                 \
  IRIS_DEVICE inline T name(const Heaps& heaps, uint32_t peer, T* p, impl::Value<T> operand, \
                            Mask mask, impl::Value<T> other = T()) {                         \
    return mask.on ? name<S, O>(heaps, peer, p, operand) : other;                            \
  }
IRIS_ATOMICS(IRIS_DEFINE)
#undef IRIS_DEFINE
#undef IRIS_ATOMICS

// Works as AtomicCompareExchange. Returns `other` if the mask is off.
template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicCompareExchange(const Heaps& heaps, uint32_t peer, T* p,
                                           impl::Value<T> expected, impl::Value<T> desired,
                                           Mask mask, impl::Value<T> other = T()) {
  return mask.on ? AtomicCompareExchange<S, O>(heaps, peer, p, expected, desired) : other;
}

}  // namespace iris
