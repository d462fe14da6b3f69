// What tests of operations compare with: numbers that a seed tells, so that no member has to ask
// another for them, and elements of any type as they lie in memory. Functions without state.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "gtest/gtest.h"
#include "iris/backend/numeric.h"
#include "iris/dtype.h"
#include "iris/status.h"

namespace iris::conformance {

inline void ExpectOk(const Result& result) { EXPECT_TRUE(result.ok()) << result.what; }

// 32 bits that look like random ones, each other for another `x`.
inline uint32_t Mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

// Element (i, j) of a matrix that is known by a seed: a number of [-1, 1] that f32, f16 and bf16
// have.
inline float ValueAt(uint32_t seed, uint64_t i, uint64_t j) {
  const uint32_t bits =
      Mix(seed ^ Mix(static_cast<uint32_t>(i) * 0x9e3779b9u + static_cast<uint32_t>(j)));
  return static_cast<float>(static_cast<int32_t>(bits % 129) - 64) / 64;
}

// A number of f8e4m3 or f8e5m2.
inline float DecodeF8(DType type, uint8_t bits) {
  const uint32_t mantissa = type == DType::kF8E4M3 ? 3 : 2;
  const int bias = type == DType::kF8E4M3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> mantissa;
  const int fraction = bits & ((1 << mantissa) - 1);
  const bool nan = type == DType::kF8E4M3 ? (bits & 0x7f) == 0x7f : (bits & 0x7f) > 0x7c;
  if (nan) return std::nanf("");
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction),
                                                     1 - bias - static_cast<int>(mantissa))
                                        : std::ldexp(static_cast<float>(fraction + (1 << mantissa)),
                                                     exponent - bias - static_cast<int>(mantissa));
  return bits & 0x80 ? -magnitude : magnitude;
}

// The element at `p`, of a floating type of up to 32 bits, at any alignment.
inline double ReadAs(DType type, const uint8_t* p) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof(value));
    return value;
  }
  if (DTypeBytes(type) == 1) return DecodeF8(type, *p);
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return type == DType::kF16 ? static_cast<float>(Half::FromBits(bits))
                             : static_cast<float>(Bfloat16::FromBits(bits));
}

// Writes `value` to `p` as an element of f32, f16 or bf16, at any alignment.
inline void Put(DType type, float value, uint8_t* p) {
  if (type == DType::kF32) {
    std::memcpy(p, &value, sizeof(value));
  } else {
    const uint16_t bits = type == DType::kF16 ? Half(value).bits : Bfloat16(value).bits;
    std::memcpy(p, &bits, sizeof(bits));
  }
}

}  // namespace iris::conformance
