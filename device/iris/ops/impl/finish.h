// The last step of a GEMM: bias, activation, conversion, and the stores to all D's.
#pragma once

#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/dtype.h"
#include "iris/ops_types.h"

namespace iris::ops::impl {

// Returns e^x with an error of about 2e-7. Not all backends have a mathematical library.
IRIS_HOST_DEVICE inline float Exp(float x) {
  if (!(x < 88.0f)) return x != x ? x : numeric::FloatOf(0x7f800000u);
  if (x < -87.0f) return 0;
  const float scaled = x * 1.4426950408889634f;
  const int32_t whole = static_cast<int32_t>(scaled + (scaled < 0 ? -0.5f : 0.5f));
  const float n = static_cast<float>(whole);
  // ln 2 in two parts; the first has enough zeros that its product with n is exact.
  const float rest = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float sum = 1.9875691500e-4f;
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  return sum * numeric::FloatOf(static_cast<uint32_t>(whole + 127) << 23);
}

IRIS_HOST_DEVICE inline float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      return x < 0 ? 0 : x;  // a NaN stays
    case Activation::kGelu:
      // For large |x| the cube may overflow; the result is x or 0.
      if (x > 16.0f) return x;
      if (x < -16.0f) return 0;
      return x / (1.0f + Exp(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
    case Activation::kSilu:
      return x < -87.0f ? 0 : x / (1.0f + Exp(-x));
  }
  return x;
}

// Returns element i of an array of kF32, kF16 or kBf16.
IRIS_DEVICE inline float LoadFloat(const uint8_t* p, DType type, uint64_t i) {
  if (type == DType::kF32) return backend::LoadPlain(reinterpret_cast<const float*>(p) + i);
  if (type == DType::kF16) {
    return static_cast<float>(backend::LoadPlain(reinterpret_cast<const Half*>(p) + i));
  }
  return static_cast<float>(backend::LoadPlain(reinterpret_cast<const Bfloat16*>(p) + i));
}

IRIS_DEVICE inline uint32_t NarrowBits(DType type, float value) {
  return type == DType::kF16 ? backend::HalfBitsOf(value) : backend::BfloatBitsOf(value);
}

// Returns how many elements of D fit into 16 bytes.
IRIS_HOST_DEVICE constexpr uint32_t PackOf(DType out) { return out == DType::kF32 ? 4 : 8; }

// Stores the first `count` of `values` at element `at` of each place.
IRIS_DEVICE inline void StoreToAll(uint8_t* const* places, uint32_t n_places, uint64_t at,
                                   DType out, const float (&values)[8], uint32_t count) {
  Bytes16 pack;
  if (out == DType::kF32) {
    pack.lo = static_cast<uint64_t>(backend::BitCast<uint32_t>(values[1])) << 32 |
              backend::BitCast<uint32_t>(values[0]);
    pack.hi = static_cast<uint64_t>(backend::BitCast<uint32_t>(values[3])) << 32 |
              backend::BitCast<uint32_t>(values[2]);
  } else {
    pack.lo = NarrowBits(out, values[0]) | static_cast<uint64_t>(NarrowBits(out, values[1])) << 16 |
              static_cast<uint64_t>(NarrowBits(out, values[2])) << 32 |
              static_cast<uint64_t>(NarrowBits(out, values[3])) << 48;
    pack.hi = NarrowBits(out, values[4]) | static_cast<uint64_t>(NarrowBits(out, values[5])) << 16 |
              static_cast<uint64_t>(NarrowBits(out, values[6])) << 32 |
              static_cast<uint64_t>(NarrowBits(out, values[7])) << 48;
  }
  const uint64_t element_bytes = out == DType::kF32 ? 4 : 2;
  for (uint32_t p = 0; p < n_places; ++p) {
    uint8_t* const to = places[p] + at * element_bytes;
    if (count >= PackOf(out) && (reinterpret_cast<uint64_t>(to) & 15) == 0) {
      backend::Store16<CacheHint::kDefault>(to, pack);
      continue;
    }
    for (uint32_t i = 0; i < count; ++i) {
      if (out == DType::kF32) {
        const uint64_t half = i < 2 ? pack.lo : pack.hi;
        backend::StorePlain(reinterpret_cast<uint32_t*>(to) + i,
                            static_cast<uint32_t>(half >> i % 2 * 32));
      } else {
        const uint64_t half = i < 4 ? pack.lo : pack.hi;
        backend::StorePlain(reinterpret_cast<uint16_t*>(to) + i,
                            static_cast<uint16_t>(half >> i % 4 * 16));
      }
    }
  }
}

}  // namespace iris::ops::impl
