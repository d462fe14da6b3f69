// Numbers that benchmarks fill their buffers with, and make again on the host to compare.
#pragma once

#include <cstdint>
#include <vector>

#include "iris/backend/host.h"
#include "iris/backend/numeric.h"

namespace iris::bench {

// Bits of bf16 between -1 and 1, which differ from element to element and between `seed`s.
inline uint16_t ValueBits(uint32_t seed, uint64_t i) {
  uint32_t x = seed * 0x9e3779b9u + static_cast<uint32_t>(i) * 0x85ebca6bu;
  x ^= x >> 15;
  x *= 0x2c1b3c6du;
  x ^= x >> 13;
  return backend::BfloatBitsOf(static_cast<float>(x >> 8) / (1 << 23) - 1.0f);
}
// Those of `count` elements from `begin` on.
inline std::vector<uint16_t> Values(uint32_t seed, uint64_t begin, uint64_t count) {
  std::vector<uint16_t> values(count);
  for (uint64_t i = 0; i < count; ++i) values[i] = ValueBits(seed, begin + i);
  return values;
}
inline float FloatOf(uint16_t bits) { return numeric::FloatOf(static_cast<uint32_t>(bits) << 16); }

}  // namespace iris::bench
