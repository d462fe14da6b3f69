// The values of a sequence, as kernels and hosts compute them. Compiled without fused operations.
#pragma once

#include <cstdint>

#include "iris/backend/select.h"
#include "iris/dtype.h"
#include "iris/fill/fill.h"
#include "iris/random.h"

namespace iris::fill::impl {

// Cuts a double to float; the last bit shows lost bits, so that rounding it again is exact.
IRIS_HOST_DEVICE inline float ToFloatOdd(double x) {
  const float near = static_cast<float>(x);
  uint32_t bits = backend::BitCast<uint32_t>(near);
  const double back = static_cast<double>(near);
  if (back == x || (bits & 0x7f800000u) == 0x7f800000u) return near;
  if ((back < 0 ? -back : back) > (x < 0 ? -x : x)) bits -= 1;
  return backend::BitCast<float>(bits | 1u);
}

// Rounds to the nearest 8-bit float, ties to even. A number that is too large becomes NaN (E4M3,
// which has no infinity) or infinite.
IRIS_HOST_DEVICE inline uint8_t Float8Bits(double x, bool e4m3) {
  const uint32_t mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const uint32_t bits = backend::BitCast<uint32_t>(ToFloatOdd(x));
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  // The middle above the largest number rounds to even: E4M3's largest is even, E5M2's is odd.
  const float limit = e4m3 ? 464.0f : 61440.0f;
  if (magnitude >= backend::BitCast<uint32_t>(limit) + (e4m3 ? 1u : 0u)) {
    return static_cast<uint8_t>(sign | (e4m3 ? 0x7fu : 0x7cu));
  }
  const uint32_t largest = e4m3 ? 0x7eu : 0x7bu;
  const uint32_t exponent = magnitude >> 23;
  if (exponent >= 128 - bias) {
    const uint32_t rebased = magnitude - ((127 - bias) << 23);
    const uint32_t shift = 23 - mantissa_bits;
    const uint32_t odd = (rebased >> shift) & 1u;
    const uint32_t code = (rebased + (1u << (shift - 1)) - 1 + odd) >> shift;
    return static_cast<uint8_t>(sign | (code < largest ? code : largest));
  }
  // The result is denormal: the significand with its leading one, in units of the smallest number.
  const uint32_t shift = 151 - bias - mantissa_bits - exponent;
  if (shift > 25) return static_cast<uint8_t>(sign);
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t floor = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1u);
  const uint32_t half = 1u << (shift - 1u);
  const uint32_t up = rest > half || (rest == half && (floor & 1u) != 0) ? 1u : 0u;
  return static_cast<uint8_t>(sign | (floor + up));
}

// Cuts a number towards 0; one that does not fit 64 bits becomes the nearest that does.
IRIS_HOST_DEVICE inline uint64_t WholeOf(double x, DType type) {
  constexpr double kTwoTo63 = 9223372036854775808.0;
  if (type == DType::kU64) {
    if (x >= 2 * kTwoTo63) return ~uint64_t{0};
    if (x >= kTwoTo63) return static_cast<uint64_t>(x);
  } else if (x >= kTwoTo63) {
    return ~uint64_t{0} >> 1;
  }
  if (x <= -kTwoTo63) return uint64_t{1} << 63;
  return static_cast<uint64_t>(static_cast<int64_t>(x));
}

// Returns the bits of a number as an element of the type: rounded once, or cut for integers.
IRIS_HOST_DEVICE inline uint64_t RoundTo(double x, DType type) {
  switch (type) {
    case DType::kF64:
      return backend::BitCast<uint64_t>(x);
    case DType::kF32:
      return backend::BitCast<uint32_t>(static_cast<float>(x));
    case DType::kF16:
      return backend::HalfBitsOf(ToFloatOdd(x));
    case DType::kBf16:
      return backend::BfloatBitsOf(ToFloatOdd(x));
    case DType::kF8E4M3:
      return Float8Bits(x, true);
    case DType::kF8E5M2:
      return Float8Bits(x, false);
    default:
      return WholeOf(x, type);
  }
}

// Returns the number of an element of a float type with 16 bits and more.
IRIS_HOST_DEVICE inline double NumberOf(uint64_t bits, DType type) {
  switch (type) {
    case DType::kF64:
      return backend::BitCast<double>(bits);
    case DType::kF32:
      return backend::BitCast<float>(static_cast<uint32_t>(bits));
    case DType::kF16:
      return backend::FloatOfHalf(static_cast<uint16_t>(bits));
    default:
      return backend::BitCast<float>(static_cast<uint32_t>(bits) << 16);
  }
}

IRIS_HOST_DEVICE constexpr bool IsRandom(Kind kind) {
  return kind == Kind::kRand || kind == Kind::kUniform || kind == Kind::kRandn ||
         kind == Kind::kRandint;
}
IRIS_HOST_DEVICE constexpr bool IsFloat(DType type) {
  return type == DType::kF32 || type == DType::kF64 || type == DType::kF16 ||
         type == DType::kBf16 || type == DType::kF8E4M3 || type == DType::kF8E5M2;
}

// Returns the random bits of one element: 64, 32 or 16, which are a long, a word or half of one.
IRIS_HOST_DEVICE constexpr uint32_t RandomBits(Kind kind, DType type) {
  if (kind == Kind::kRandint || type == DType::kF64) return 64;
  if (kind == Kind::kRandn || type == DType::kF32) return 32;
  return 16;
}

// Returns an exact number in [0, 1) with as many random bits as the significand has. 16 bits become
// the fraction of a float in [1, 2), which is faster than a conversion.
IRIS_HOST_DEVICE inline float UnitOfHalf(uint32_t half, DType type) {
  const uint32_t fraction = type == DType::kF16 ? (half & 0xffe0u) << 7 : (half & 0xff00u) << 7;
  return backend::BitCast<float>(0x3f800000u | fraction) - 1.0f;
}
IRIS_HOST_DEVICE inline double UnitOf(uint64_t random, DType type) {
  if (type == DType::kF64) return RandomUnit(random);
  const uint32_t bits = static_cast<uint32_t>(random);
  return static_cast<double>(type == DType::kF32 ? RandomUnit(bits) : UnitOfHalf(bits, type));
}

// Returns the bits of a float as an element of a type with 16 bits.
IRIS_HOST_DEVICE inline uint16_t ShortBitsOf(float x, DType type) {
  return type == DType::kF16 ? backend::HalfBitsOf(x) : backend::BfloatBitsOf(x);
}

// Returns an element of kUniform of a 16-bit type. Floats that round to `end` exceed float_cap.
IRIS_HOST_DEVICE inline uint16_t UniformInFloats(const Sequence& s, DType type, uint32_t half) {
  const float x = s.float_start + UnitOfHalf(half, type) * s.float_step;
  return ShortBitsOf(x < s.float_cap ? x : s.float_cap, type);
}

// Returns element i of the sequence, from its random bits. `kind` and `type` are the sequence's, as
// constants if known.
IRIS_HOST_DEVICE inline uint64_t ValueOf(const Sequence& s, Kind kind, DType type, uint64_t i,
                                         uint64_t random) {
  switch (kind) {
    case Kind::kValue:
      return s.bits;
    case Kind::kArange:
      if (!IsFloat(type)) return s.whole_start + i * s.whole_step;
      return RoundTo(s.start + static_cast<double>(i) * s.step, type);
    case Kind::kLinspace: {
      if (s.steps == 1) return RoundTo(s.start, type);
      // Each half is computed from its end, so that both ends are exact.
      const double x = i < s.steps - i ? s.start + s.step * static_cast<double>(i)
                                       : s.end - s.step * static_cast<double>(s.steps - 1 - i);
      return RoundTo(x, type);
    }
    case Kind::kRand:
      // The numbers of kRand are exact in the type.
      if (type == DType::kF64) return backend::BitCast<uint64_t>(UnitOf(random, type));
      if (type == DType::kF32) {
        return backend::BitCast<uint32_t>(RandomUnit(static_cast<uint32_t>(random)));
      }
      if (type == DType::kF16) {
        return backend::HalfBitsOf(UnitOfHalf(static_cast<uint32_t>(random), type));
      }
      return backend::BitCast<uint32_t>(UnitOfHalf(static_cast<uint32_t>(random), type)) >> 16;
    case Kind::kUniform: {
      if (RandomBits(kind, type) == 16 && s.in_floats) {
        return UniformInFloats(s, type, static_cast<uint32_t>(random));
      }
      const uint64_t bits = RoundTo(s.start + UnitOf(random, type) * s.step, type);
      return NumberOf(bits, type) >= s.end ? s.bits : bits;
    }
    case Kind::kRandn: {
      if (type == DType::kF64) return RoundTo(InverseNormal(NormalChance(random)), type);
      const float x = RandomNormal(static_cast<uint32_t>(random));
      return type == DType::kF32 ? backend::BitCast<uint32_t>(x) : ShortBitsOf(x, type);
    }
    case Kind::kRandint: {
      const uint64_t whole = s.whole_start + RandomBelow(random, s.whole_step);
      return IsFloat(type) ? RoundTo(static_cast<double>(static_cast<int64_t>(whole)), type)
                           : whole;
    }
  }
  return 0;
}

// Returns element i. It draws the random bits of this element only.
IRIS_HOST_DEVICE inline uint64_t ValueAt(const Sequence& s, uint64_t i) {
  uint64_t random = 0;
  if (IsRandom(s.kind)) {
    const RandomDraw draw = {s.seed, s.call};
    const uint32_t bits = RandomBits(s.kind, s.dtype);
    random = bits == 64 ? draw.Long(i) : bits == 32 ? draw.Word(i) : draw.Half(i);
  }
  return ValueOf(s, s.kind, s.dtype, i, random);
}

}  // namespace iris::fill::impl
