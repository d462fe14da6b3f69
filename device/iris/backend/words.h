// Words of an object's size, for primitives.h and the backends, after their qualifiers. C++17.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/types.h"

namespace iris {

struct Half;
struct Bfloat16;

namespace backend {

template <uint64_t kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using Type = uint8_t;
};
template <>
struct WordOf<2> {
  using Type = uint16_t;
};
template <>
struct WordOf<4> {
  using Type = uint32_t;
};
template <>
struct WordOf<8> {
  using Type = uint64_t;
};
template <typename T>
using Word = typename WordOf<sizeof(T)>::Type;

template <typename T>
inline constexpr bool kIsNarrowFloat = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>;

IRIS_HOST_DEVICE constexpr bool IsBitwise(AtomicOp op) {
  return op == AtomicOp::kAnd || op == AtomicOp::kOr || op == AtomicOp::kXor;
}

IRIS_HOST_DEVICE constexpr bool Releases(Order order) {
  return order != Order::kRelaxed && order != Order::kAcquire;
}
IRIS_HOST_DEVICE constexpr bool Acquires(Order order) {
  return order != Order::kRelaxed && order != Order::kRelease;
}

template <typename To, typename From>
IRIS_HOST_DEVICE inline To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(static_cast<void*>(&to), static_cast<const void*>(&from), sizeof(To));
  return to;
}

}  // namespace backend
}  // namespace iris
