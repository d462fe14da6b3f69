// Half (IEEE 754 binary16) and Bfloat16: storage types of 16 bits that compute in float. The same
// on every backend.
//
// Conversion from float rounds to nearest, ties to even; denormals, infinities and the sign of zero
// are kept; a NaN stays a NaN (made quiet, on the host with the upper bits of its payload).
// Conversion to float is exact. Trivially copyable. C++17.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"

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
IRIS_HOST_DEVICE inline Half operator+(Half a, Half b) {
  return Half(static_cast<float>(a) + static_cast<float>(b));
}
IRIS_HOST_DEVICE inline Half operator-(Half a, Half b) {
  return Half(static_cast<float>(a) - static_cast<float>(b));
}
IRIS_HOST_DEVICE inline Half operator*(Half a, Half b) {
  return Half(static_cast<float>(a) * static_cast<float>(b));
}
IRIS_HOST_DEVICE inline bool operator==(Half a, Half b) {
  return static_cast<float>(a) == static_cast<float>(b);
}
IRIS_HOST_DEVICE inline bool operator!=(Half a, Half b) { return !(a == b); }
IRIS_HOST_DEVICE inline bool operator<(Half a, Half b) {
  return static_cast<float>(a) < static_cast<float>(b);
}

IRIS_HOST_DEVICE inline Bfloat16 operator+(Bfloat16 a, Bfloat16 b) {
  return Bfloat16(static_cast<float>(a) + static_cast<float>(b));
}
IRIS_HOST_DEVICE inline Bfloat16 operator-(Bfloat16 a, Bfloat16 b) {
  return Bfloat16(static_cast<float>(a) - static_cast<float>(b));
}
IRIS_HOST_DEVICE inline Bfloat16 operator*(Bfloat16 a, Bfloat16 b) {
  return Bfloat16(static_cast<float>(a) * static_cast<float>(b));
}
IRIS_HOST_DEVICE inline bool operator==(Bfloat16 a, Bfloat16 b) {
  return static_cast<float>(a) == static_cast<float>(b);
}
IRIS_HOST_DEVICE inline bool operator!=(Bfloat16 a, Bfloat16 b) { return !(a == b); }
IRIS_HOST_DEVICE inline bool operator<(Bfloat16 a, Bfloat16 b) {
  return static_cast<float>(a) < static_cast<float>(b);
}

}  // namespace iris
