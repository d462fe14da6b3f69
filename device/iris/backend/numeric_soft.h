// Conversions of Half and Bfloat16 in integer arithmetic, for hosts and for devices without an
// instruction. A backend includes it after its qualifiers. C++17.
#pragma once

#include <cstdint>
#include <cstring>

namespace iris {

namespace numeric {

IRIS_HOST_DEVICE inline uint32_t BitsOf(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}

IRIS_HOST_DEVICE inline float FloatOf(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}

IRIS_HOST_DEVICE inline uint16_t HalfBitsOf(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude >= 0x38800000u) {                                              // normal
    const uint32_t rebased = magnitude - 0x38000000u;
    const uint32_t odd = (rebased >> 13) & 1u;
    return static_cast<uint16_t>(sign | ((rebased + 0xfffu + odd) >> 13));
  }
  if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // below half of the smallest
  // Denormal: the significand with its leading one, shifted so that one unit is 2^-24.
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126u - (magnitude >> 23);
  const uint32_t floor = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t up = (rest > half || (rest == half && (floor & 1u) != 0)) ? 1u : 0u;
  return static_cast<uint16_t>(sign | (floor + up));
}

IRIS_HOST_DEVICE inline float FloatOfHalf(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t fraction = half & 0x3ffu;
  if (exponent == 0x1fu) return FloatOf(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return FloatOf(sign | ((exponent + 112u) << 23) | (fraction << 13));
  // Zero or denormal: fraction * 2^-24, exact in float.
  const float magnitude = static_cast<float>(fraction) * 5.9604644775390625e-08f;
  return FloatOf(sign | BitsOf(magnitude));
}

IRIS_HOST_DEVICE inline uint16_t BfloatBitsOf(float value) {
  const uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace numeric

}  // namespace iris
