// Conversion of floats to fp8.
#pragma once

#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/dtype.h"

namespace iris::norm::impl {

IRIS_HOST_DEVICE constexpr float LargestOf(DType type) {
  return type == DType::kF8E4M3 ? 448.0f : 57344.0f;
}

// Converts with rounding to nearest even. Values that are too large become the largest number; a
// NaN stays a NaN.
IRIS_HOST_DEVICE inline uint32_t Fp8Bits(DType type, float value) {
  const bool e4m3 = type == DType::kF8E4M3;
  const uint32_t mantissa = e4m3 ? 3 : 2;
  const uint32_t bias = e4m3 ? 7 : 15;
  const uint32_t largest = e4m3 ? 0x7e : 0x7b;
  const uint32_t bits = numeric::BitsOf(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= numeric::BitsOf(LargestOf(type))) return sign | largest;
  const uint32_t rebase = (127 - bias) << 23;
  if (magnitude < rebase + (1u << 23)) {
    // Denormal: a multiple of 2^(1 - bias - mantissa). Adding 2^23 rounds to an integer.
    const float units = numeric::FloatOf(magnitude) * (e4m3 ? 512.0f : 65536.0f);
    return sign | (numeric::BitsOf(units + 8388608.0f) & 0xffu);
  }
  const uint32_t shift = 23 - mantissa;
  const uint32_t odd = magnitude >> shift & 1u;
  const uint32_t rounded = (magnitude - rebase + (1u << (shift - 1)) - 1 + odd) >> shift;
  return sign | (rounded < largest ? rounded : largest);
}

}  // namespace iris::norm::impl
