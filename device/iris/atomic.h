// Atomic operations on any rank's heap. T: int32_t, uint32_t, int64_t, uint64_t, float, double;
// AtomicAdd also takes Half and Bfloat16. The pointer is an address in the caller's heap, aligned
// to sizeof(T). The first argument is the DeviceContext, or HeapBases (heap_bases.h). mask.h has
// atomics with a mask. Read-modify-writes return the old value. For floats, sub, min and max use
// the values; exchange and compare-exchange use the bits.
//
// Scope and order are template arguments, by default kSystem and kAcqRel. A narrower scope is right
// only if it contains every thread that accesses the word meanwhile.
//
// The peer may be on another node. Atomics of all ranks on one word are atomic to each other. The
// old value is 0 if the job is aborted or time is up, which the next Quiet(ctx) says.
//
//   // Acquires and releases, for all ranks:
//   AtomicAdd(ctx, peer, counter, 1u);
//   // Counts, and publishes nothing:
//   AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, peer, counter, 1u);
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/backend/words.h"
#include "iris/impl/check.h"
#include "iris/impl/port.h"
#include "iris/translate.h"
#include "iris/types.h"

namespace iris {

namespace impl {

template <typename T>
inline constexpr bool kIsAtomic = std::is_same_v<T, float> || std::is_same_v<T, double> ||
                                  (std::is_integral_v<T> && !std::is_same_v<T, bool> &&
                                   (sizeof(T) == 4 || sizeof(T) == 8));

using backend::kIsNarrowFloat;

// T where the compiler must not deduce it, so that literals convert.
template <typename T>
struct Identity {
  using Type = T;
};
template <typename T>
using Value = typename Identity<T>::Type;

}  // namespace impl

// Reads the word. O is kRelaxed or kAcquire.
template <Scope S = Scope::kSystem, Order O = Order::kAcquire, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicLoad(const Heaps& ctx, uint32_t peer, const T* p) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  if (impl::OnPort(ctx, peer)) {
    return impl::PortFetch(ctx, peer, p, PortAtomic::kLoad, T(), T(), true, "AtomicLoad");
  }
  return backend::Load<S, O>(impl::OfPeer<sizeof(T)>(ctx, peer, p, sizeof(T), "AtomicLoad"));
}

// Writes the word. O is kRelaxed or kRelease.
template <Scope S = Scope::kSystem, Order O = Order::kRelease, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void AtomicStore(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> value) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  if (impl::OnPort(ctx, peer)) {
    (void)impl::PortFetch<T>(ctx, peer, p, PortAtomic::kExchange, value, T(), false, "AtomicStore");
    return;
  }
  backend::Store<S, O>(impl::OfPeer<sizeof(T)>(ctx, peer, p, sizeof(T), "AtomicStore"), value);
}

// The functions T Atomic...(ctx, peer, T* p, T operand), and in mask.h those with a mask.
#define IRIS_ATOMICS(define)                                                                     \
  define(AtomicAdd, kAdd, impl::kIsAtomic<T> || impl::kIsNarrowFloat<T>) define(                 \
      AtomicSub, kSub, impl::kIsAtomic<T>) define(AtomicExchange, kExchange, impl::kIsAtomic<T>) \
      define(AtomicMin, kMin, impl::kIsAtomic<T>) define(AtomicMax, kMax, impl::kIsAtomic<T>)    \
          define(AtomicAnd, kAnd, impl::kIsAtomic<T>&& std::is_integral_v<T>)                    \
              define(AtomicOr, kOr, impl::kIsAtomic<T>&& std::is_integral_v<T>)                  \
                  define(AtomicXor, kXor, impl::kIsAtomic<T>&& std::is_integral_v<T>)

#define IRIS_DEFINE(name, op, allowed)                                                        \
  template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,   \
            typename = impl::IfHeaps<Heaps>>                                                  \
  IRIS_DEVICE inline T name(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> operand) {  \
    static_assert(allowed, "no atomic of this type; bitwise operations are for integers");    \
    if (impl::OnPort(ctx, peer)) {                                                            \
      return impl::PortFetch<T>(ctx, peer, p, impl::PortAtomicOf(AtomicOp::op), operand, T(), \
                                true, #name);                                                 \
    }                                                                                         \
    return backend::FetchOp<AtomicOp::op, S, O>(                                              \
        impl::OfPeer<sizeof(T)>(ctx, peer, p, sizeof(T), #name), static_cast<T>(operand));    \
  }
IRIS_ATOMICS(IRIS_DEFINE)
#undef IRIS_DEFINE

// Writes `desired` if the word is `expected`, and returns the old value. Floats compare by bits.
template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicCompareExchange(const Heaps& ctx, uint32_t peer, T* p,
                                           impl::Value<T> expected, impl::Value<T> desired) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  if (impl::OnPort(ctx, peer)) {
    return impl::PortFetch<T>(ctx, peer, p, PortAtomic::kCompareExchange, desired, expected, true,
                              "AtomicCompareExchange");
  }
  return backend::CompareExchange<S, O>(
      impl::OfPeer<sizeof(T)>(ctx, peer, p, sizeof(T), "AtomicCompareExchange"),
      static_cast<T>(expected), static_cast<T>(desired));
}

}  // namespace iris
