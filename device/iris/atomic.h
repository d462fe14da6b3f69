// Atomic operations on any rank's heap. T: int32_t, uint32_t, int64_t, uint64_t, float, double;
// AtomicAdd also takes Half and Bfloat16. The pointer is an address in the caller's heap, aligned
// to sizeof(T). The first argument is the DeviceContext, or HeapBases (heap_bases.h). Those with a
// mask are in mask.h.
//
// Scope and order are template arguments; left out, they are the strongest: kSystem and kAcqRel.
//
//   // Acquires and releases, for all ranks:
//   AtomicAdd(ctx, peer, counter, 1u);
//   // Counts, and publishes nothing:
//   AtomicAdd<Scope::kSystem, Order::kRelaxed>(ctx, peer, counter, 1u);
//
// A scope narrower than kSystem is right only if every thread that touches the word meanwhile is
// inside it. All operations return the old value. Floating: sub, min and max work on values,
// exchange and compare on bits; the bitwise operations are for integers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/backend/words.h"
#include "iris/impl/check.h"
#include "iris/translate.h"
#include "iris/types.h"

namespace iris {

namespace impl {

// The types of atomic operations.
template <typename T>
inline constexpr bool kIsAtomic = std::is_same_v<T, float> || std::is_same_v<T, double> ||
                                  (std::is_integral_v<T> && !std::is_same_v<T, bool> &&
                                   (sizeof(T) == 4 || sizeof(T) == 8));

using backend::kIsNarrowFloat;

// `T` in a place where it must not be deduced, so that literals convert.
template <typename T>
struct Identity {
  using Type = T;
};
template <typename T>
using Value = typename Identity<T>::Type;

// The name of the call, for errors.
template <AtomicOp Op>
IRIS_HOST_DEVICE constexpr const char* CallName() {
  switch (Op) {
    case AtomicOp::kAdd:
      return "AtomicAdd";
    case AtomicOp::kSub:
      return "AtomicSub";
    case AtomicOp::kExchange:
      return "AtomicExchange";
    case AtomicOp::kAnd:
      return "AtomicAnd";
    case AtomicOp::kOr:
      return "AtomicOr";
    case AtomicOp::kXor:
      return "AtomicXor";
    case AtomicOp::kMin:
      return "AtomicMin";
    case AtomicOp::kMax:
      return "AtomicMax";
  }
  return "";
}

template <AtomicOp Op, Scope S, Order O, typename T, typename Heaps>
IRIS_DEVICE inline T Fetch(const Heaps& ctx, uint32_t peer, T* p, T operand) {
  return backend::FetchOp<Op, S, O>(OfPeer<sizeof(T)>(ctx, peer, p, sizeof(T), CallName<Op>()),
                                    operand);
}

}  // namespace impl

// Reads the word. O: kRelaxed or kAcquire.
template <Scope S = Scope::kSystem, Order O = Order::kAcquire, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicLoad(const Heaps& ctx, uint32_t peer, const T* p) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  return backend::Load<S, O>(impl::OfPeer<sizeof(T)>(ctx, peer, p, sizeof(T), "AtomicLoad"));
}

// Writes the word. O: kRelaxed or kRelease.
template <Scope S = Scope::kSystem, Order O = Order::kRelease, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline void AtomicStore(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> value) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  backend::Store<S, O>(impl::OfPeer<sizeof(T)>(ctx, peer, p, sizeof(T), "AtomicStore"), value);
}

template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicAdd(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> operand) {
  static_assert(impl::kIsAtomic<T> || impl::kIsNarrowFloat<T>, "no atomic of this type");
  return impl::Fetch<AtomicOp::kAdd, S, O>(ctx, peer, p, operand);
}

template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicSub(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> operand) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  return impl::Fetch<AtomicOp::kSub, S, O>(ctx, peer, p, operand);
}

template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicExchange(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> operand) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  return impl::Fetch<AtomicOp::kExchange, S, O>(ctx, peer, p, operand);
}

template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicMin(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> operand) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  return impl::Fetch<AtomicOp::kMin, S, O>(ctx, peer, p, operand);
}

template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicMax(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> operand) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  return impl::Fetch<AtomicOp::kMax, S, O>(ctx, peer, p, operand);
}

template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicAnd(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> operand) {
  static_assert(impl::kIsAtomic<T> && std::is_integral_v<T>, "bitwise operations are for integers");
  return impl::Fetch<AtomicOp::kAnd, S, O>(ctx, peer, p, operand);
}

template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicOr(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> operand) {
  static_assert(impl::kIsAtomic<T> && std::is_integral_v<T>, "bitwise operations are for integers");
  return impl::Fetch<AtomicOp::kOr, S, O>(ctx, peer, p, operand);
}

template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicXor(const Heaps& ctx, uint32_t peer, T* p, impl::Value<T> operand) {
  static_assert(impl::kIsAtomic<T> && std::is_integral_v<T>, "bitwise operations are for integers");
  return impl::Fetch<AtomicOp::kXor, S, O>(ctx, peer, p, operand);
}

// Writes `desired` if the word is `expected`, floats compared by their bits. Succeeded if the
// answer equals `expected`.
template <Scope S = Scope::kSystem, Order O = Order::kAcqRel, typename T, typename Heaps,
          typename = impl::IfHeaps<Heaps>>
IRIS_DEVICE inline T AtomicCompareExchange(const Heaps& ctx, uint32_t peer, T* p,
                                           impl::Value<T> expected, impl::Value<T> desired) {
  static_assert(impl::kIsAtomic<T>, "no atomic of this type");
  return backend::CompareExchange<S, O>(
      impl::OfPeer<sizeof(T)>(ctx, peer, p, sizeof(T), "AtomicCompareExchange"),
      static_cast<T>(expected), static_cast<T>(desired));
}

}  // namespace iris
