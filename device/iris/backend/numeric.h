// Half (IEEE 754 binary16) and Bfloat16: storage types that compute in float, alike on every
// backend. Conversion from float rounds to nearest, ties to even; denormals, infinities and the
// sign of zero are kept; a NaN stays a NaN, made quiet. C++17.
#pragma once

#include <cstdint>
#include <type_traits>

#include "iris/backend/select.h"
#include "iris/backend/words.h"

namespace iris {

struct Half {
  uint16_t bits = 0;

  Half() = default;
  IRIS_HOST_DEVICE explicit Half(float value) : bits(backend::HalfBitsOf(value)) {}
  IRIS_HOST_DEVICE explicit operator float() const { return backend::FloatOfHalf(bits); }
  IRIS_HOST_DEVICE static Half FromBits(uint16_t bits) {
    Half half;
    half.bits = bits;
    return half;
  }
};

struct Bfloat16 {
  uint16_t bits = 0;

  Bfloat16() = default;
  IRIS_HOST_DEVICE explicit Bfloat16(float value) : bits(backend::BfloatBitsOf(value)) {}
  IRIS_HOST_DEVICE explicit operator float() const {
    return numeric::FloatOf(static_cast<uint32_t>(bits) << 16);
  }
  IRIS_HOST_DEVICE static Bfloat16 FromBits(uint16_t bits) {
    Bfloat16 bfloat;
    bfloat.bits = bits;
    return bfloat;
  }
};

// Each operation computes in float and rounds once. Comparisons are those of float: NaN equals
// nothing, -0 equals +0.
#define IRIS_DEFINE(Result, op)                                                  \
  template <typename T, typename = std::enable_if_t<backend::kIsNarrowFloat<T>>> \
  IRIS_HOST_DEVICE inline Result operator op(T a, T b) {                         \
    return static_cast<Result>(static_cast<float>(a) op static_cast<float>(b));  \
  }
IRIS_DEFINE(T, +)
IRIS_DEFINE(T, -)
IRIS_DEFINE(T, *)
IRIS_DEFINE(bool, ==)
IRIS_DEFINE(bool, <)
#undef IRIS_DEFINE
template <typename T, typename = std::enable_if_t<backend::kIsNarrowFloat<T>>>
IRIS_HOST_DEVICE inline bool operator!=(T a, T b) {
  return !(a == b);
}

}  // namespace iris
