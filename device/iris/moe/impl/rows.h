// Loads and stores of parts of rows: 16 bytes of any type, eight elements as floats, and 8-bit
// floats.
#pragma once

#include <cstdint>

#include "iris/backend/numeric.h"
#include "iris/backend/select.h"
#include "iris/dtype.h"

namespace iris::moe::impl {

// A thread stores a value that it has read to up to this many ranks or rows.
inline constexpr uint32_t kFan = 8;

IRIS_HOST_DEVICE constexpr uint32_t ElementBytes(DType type) {
  return type == DType::kF32 ? 4 : type == DType::kF8E4M3 ? 1 : 2;
}

// Loads `count` (1 to 16) bytes at `p`, with zeros after them. `p` is aligned to `element_bytes`
// (1, 2 or 4), and `count` is a multiple of it.
IRIS_DEVICE inline Bytes16 LoadPart(const uint8_t* p, uint32_t count, uint32_t element_bytes) {
  if (count >= 16 && (reinterpret_cast<uint64_t>(p) & 15) == 0) {
    return backend::Load16<CacheHint::kDefault>(p);
  }
  uint64_t words[2] = {};
  const uint32_t n = count < 16 ? count : 16;
  for (uint32_t i = 0; i < n; i += element_bytes) {
    uint64_t value = 0;
    if (element_bytes == 4) {
      value = backend::LoadPlain(reinterpret_cast<const uint32_t*>(p + i));
    } else if (element_bytes == 2) {
      value = backend::LoadPlain(reinterpret_cast<const uint16_t*>(p + i));
    } else {
      value = backend::LoadPlain(p + i);
    }
    if (i < 8) {
      words[0] |= value << 8 * i;
    } else {
      words[1] |= value << 8 * (i - 8);
    }
  }
  return {words[0], words[1]};
}

// Stores `count` bytes and touches nothing after them.
IRIS_DEVICE inline void StorePart(uint8_t* p, uint32_t count, uint32_t element_bytes,
                                  Bytes16 part) {
  if (count >= 16 && (reinterpret_cast<uint64_t>(p) & 15) == 0) {
    backend::Store16<CacheHint::kDefault>(p, part);
    return;
  }
  const uint32_t n = count < 16 ? count : 16;
  for (uint32_t i = 0; i < n; i += element_bytes) {
    const uint64_t value = i < 8 ? part.lo >> 8 * i : part.hi >> 8 * (i - 8);
    if (element_bytes == 4) {
      backend::StorePlain(reinterpret_cast<uint32_t*>(p + i), static_cast<uint32_t>(value));
    } else if (element_bytes == 2) {
      backend::StorePlain(reinterpret_cast<uint16_t*>(p + i), static_cast<uint16_t>(value));
    } else {
      backend::StorePlain(p + i, static_cast<uint8_t>(value));
    }
  }
}

// Eight elements as in memory. `high` is used only for kF32.
struct Raw {
  Bytes16 low;
  Bytes16 high;
};

// How rows are loaded. kAny: any type and alignment. kNarrow, kWide: all eight elements exist, are
// aligned, and have two or four bytes. So no load needs a test, whose branches would wait for
// smaller loads.
enum class Rows { kAny, kNarrow, kWide };

// Loads eight elements of kF32, kF16 or kBf16 at `p`, of which with kAny `count` (1 to 8) exist.
template <Rows kRows>
IRIS_DEVICE inline Raw LoadRaw(const uint8_t* p, DType type, uint32_t count) {
  if constexpr (kRows == Rows::kNarrow) return {backend::Load16<CacheHint::kDefault>(p), {}};
  if constexpr (kRows == Rows::kWide) {
    return {backend::Load16<CacheHint::kDefault>(p), backend::Load16<CacheHint::kDefault>(p + 16)};
  }
  if (type != DType::kF32) return {LoadPart(p, count * 2, 2), {}};
  return {LoadPart(p, count * 4, 4), count > 4 ? LoadPart(p + 16, count * 4 - 16, 4) : Bytes16{}};
}

IRIS_DEVICE inline void FloatsOf(const Raw& raw, DType type, float (&values)[8]) {
  if (type == DType::kF32) {
    const uint64_t words[4] = {raw.low.lo, raw.low.hi, raw.high.lo, raw.high.hi};
    IRIS_UNROLL(8)
    for (uint32_t e = 0; e < 8; ++e) {
      values[e] = backend::BitCast<float>(static_cast<uint32_t>(words[e / 2] >> 32 * (e % 2)));
    }
    return;
  }
  IRIS_UNROLL(8)
  for (uint32_t e = 0; e < 8; ++e) {
    const uint16_t bits = static_cast<uint16_t>((e < 4 ? raw.low.lo : raw.low.hi) >> 16 * (e % 4));
    values[e] = type == DType::kF16 ? backend::FloatOfHalf(bits)
                                    : backend::BitCast<float>(static_cast<uint32_t>(bits) << 16);
  }
}

IRIS_DEVICE inline void LoadFloats(const uint8_t* p, DType type, uint32_t count,
                                   float (&values)[8]) {
  FloatsOf(LoadRaw<Rows::kAny>(p, type, count), type, values);
}

// Rounds a value to the type.
IRIS_DEVICE inline float RoundedTo(DType type, float value) {
  if (type == DType::kF32) return value;
  if (type == DType::kF16) return backend::FloatOfHalf(backend::HalfBitsOf(value));
  return backend::BitCast<float>(static_cast<uint32_t>(backend::BfloatBitsOf(value)) << 16);
}

IRIS_DEVICE inline void StoreFloats(uint8_t* p, DType type, uint32_t count,
                                    const float (&values)[8]) {
  if (type == DType::kF32) {
    const auto pair = [&values](uint32_t e) {
      return static_cast<uint64_t>(backend::BitCast<uint32_t>(values[e + 1])) << 32 |
             backend::BitCast<uint32_t>(values[e]);
    };
    StorePart(p, count * 4, 4, {pair(0), pair(2)});
    if (count > 4) StorePart(p + 16, count * 4 - 16, 4, {pair(4), pair(6)});
    return;
  }
  uint64_t words[2] = {};
  IRIS_UNROLL(8)
  for (uint32_t e = 0; e < 8; ++e) {
    const uint64_t bits =
        type == DType::kF16 ? backend::HalfBitsOf(values[e]) : backend::BfloatBitsOf(values[e]);
    words[e / 4] |= bits << 16 * (e % 4);
  }
  StorePart(p, count * 2, 2, {words[0], words[1]});
}

// Returns the nearest f8e4m3, ties to even. Values above 448 become 448; a NaN stays a NaN.
IRIS_HOST_DEVICE inline uint8_t E4M3Bits(float value) {
  const uint32_t bits = backend::BitCast<uint32_t>(value);
  const uint32_t sign = bits >> 24 & 0x80;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint8_t>(sign | 0x7f);
  if (magnitude < 0x3c800000) {
    // Below 2^-6, values are multiples of 2^-9, the distance of floats from 2^14 on.
    const float moved = backend::BitCast<float>(magnitude) + 16384.0f;
    return static_cast<uint8_t>(sign | (backend::BitCast<uint32_t>(moved) - 0x46800000));
  }
  magnitude += 0x7ffff + (magnitude >> 20 & 1);
  const uint32_t narrow = (magnitude >> 20) - (120 << 3);
  return static_cast<uint8_t>(sign | (narrow > 0x7e ? 0x7e : narrow));
}

}  // namespace iris::moe::impl
