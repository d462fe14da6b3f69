// Random numbers that are a function of (seed, call, element): the same bits on every backend, in
// kernels and on hosts, in C++ and in Python.
//
//   const iris::RandomDraw draw = {seed, call};
//   x[i] = iris::RandomUnit(draw.Word(i));    // float in [0, 1)
//   y[i] = iris::RandomNormal(draw.Word(i));  // normally distributed float
//
// Philox4x32-10 of Salmon, Moraes, Dror and Shaw ("Parallel Random Numbers: As Easy as 1, 2, 3",
// 2011), as Random123 has it. The key is the seed: its low 32 bits, then its high ones. The block b
// of the call c has the counter (b low, b high, c low, c high) and gives four words. A program
// numbers its calls.
//
// RandomNormal and InverseNormal have the documented bits if the compiler does not contract a
// multiplication and an addition (-ffp-contract=off). C++17.
#pragma once

#include <math.h>

#include <cstdint>

#include "iris/backend/select.h"

namespace iris {

struct PhiloxBlock {
  uint32_t words[4] = {0, 0, 0, 0};
};

// Returns the block of a counter, with a key of two words.
IRIS_HOST_DEVICE inline PhiloxBlock Philox4x32(PhiloxBlock counter, uint32_t key_low,
                                               uint32_t key_high) {
  uint32_t c0 = counter.words[0], c1 = counter.words[1];
  uint32_t c2 = counter.words[2], c3 = counter.words[3];
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53u} * c0;
    const uint64_t second = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ key_low;
    c1 = static_cast<uint32_t>(second);
    c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ key_high;
    c3 = static_cast<uint32_t>(first);
    key_low += 0x9E3779B9u;
    key_high += 0xBB67AE85u;
  }
  PhiloxBlock block;
  block.words[0] = c0;
  block.words[1] = c1;
  block.words[2] = c2;
  block.words[3] = c3;
  return block;
}

// Draws the random bits of one call.
struct RandomDraw {
  uint64_t seed = 0;
  uint64_t call = 0;

  // Returns words 4 b to 4 b + 3.
  IRIS_HOST_DEVICE PhiloxBlock Block(uint64_t b) const {
    PhiloxBlock counter;
    counter.words[0] = static_cast<uint32_t>(b);
    counter.words[1] = static_cast<uint32_t>(b >> 32);
    counter.words[2] = static_cast<uint32_t>(call);
    counter.words[3] = static_cast<uint32_t>(call >> 32);
    return Philox4x32(counter, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  }
  IRIS_HOST_DEVICE uint32_t Word(uint64_t i) const { return Block(i / 4).words[i % 4]; }
  // Returns 16 bits of element i: the low half of word i / 2 for an even i, else the high half.
  IRIS_HOST_DEVICE uint32_t Half(uint64_t i) const { return Word(i / 2) >> (i % 2 * 16) & 0xffffu; }
  // Returns 64 bits of element i: word 2 i, and above it word 2 i + 1.
  IRIS_HOST_DEVICE uint64_t Long(uint64_t i) const {
    const PhiloxBlock block = Block(i / 2);
    const uint32_t at = static_cast<uint32_t>(i % 2) * 2;
    return block.words[at] | static_cast<uint64_t>(block.words[at + 1]) << 32;
  }
};

// Return a number uniform in [0, 1), with 24 and 53 random bits. Exact.
IRIS_HOST_DEVICE inline float RandomUnit(uint32_t word) {
  return static_cast<float>(word >> 8) * 5.9604644775390625e-08f;
}
IRIS_HOST_DEVICE inline double RandomUnit(uint64_t bits) {
  return static_cast<double>(bits >> 11) * 1.1102230246251565e-16;
}

// Returns an integer in [0, span): bits * span div 2^64. A span of 0 means 2^64.
IRIS_HOST_DEVICE inline uint64_t RandomBelow(uint64_t bits, uint64_t span) {
  if (span == 0) return bits;
  const uint64_t w0 = bits & 0xffffffffu, w1 = bits >> 32;
  const uint64_t s0 = span & 0xffffffffu, s1 = span >> 32;
  const uint64_t middle = w1 * s0 + (w0 * s0 >> 32);
  const uint64_t lower = w0 * s1 + (middle & 0xffffffffu);
  return w1 * s1 + (middle >> 32) + (lower >> 32);
}

namespace impl {

// Returns first r^n + ... + the last of `rest`, by Horner's rule. T is float or double.
template <typename T, typename... Rest>
IRIS_HOST_DEVICE inline T Polynomial(T r, T first, Rest... rest) {
  T value = first;
  ((value = value * r + rest), ...);
  return value;
}

// Returns the natural logarithm of a positive normal double, by exactly rounded operations only: x
// = m 2^e with m in [sqrt(1/2), sqrt(2)), s = (m - 1) / (m + 1), z = s s; the sum of z^k / (2 k +
// 1) for k from 10 down to 0, times 2 s, plus e log(2).
IRIS_HOST_DEVICE inline double Logarithm(double x) {
  const uint64_t bits = backend::BitCast<uint64_t>(x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1022;
  double mantissa = backend::BitCast<double>((bits & 0x000fffffffffffffu) | (uint64_t{1022} << 52));
  if (mantissa < 0.7071067811865476) {
    mantissa = mantissa * 2.0;
    exponent -= 1;
  }
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double z = s * s;
  const double sum = Polynomial(z, 1.0 / 21.0, 1.0 / 19.0, 1.0 / 17.0, 1.0 / 15.0, 1.0 / 13.0,
                                1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0);
  return static_cast<double>(exponent) * 0.6931471805599453 + 2.0 * s * sum;
}

}  // namespace impl

// Returns the p-quantile of the normal distribution, for 0 < p < 1, by AS 241, PPND16 (Wichura,
// 1988).
IRIS_HOST_DEVICE inline double InverseNormal(double p) {
  using impl::Polynomial;
  const double q = p - 0.5;
  if ((q < 0.0 ? -q : q) <= 0.425) {
    const double r = 0.180625 - q * q;
    const double above =
        Polynomial(r, 2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4,
                   4.5921953931549871457e+4, 1.3731693765509461125e+4, 1.9715909503065514427e+3,
                   1.3314166789178437745e+2, 3.3871328727963666080e+0);
    const double below =
        Polynomial(r, 5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4,
                   2.1213794301586595867e+4, 5.3941960214247511077e+3, 6.8718700749205790830e+2,
                   4.2313330701600911252e+1, 1.0);
    return above * q / below;
  }
  const double r = ::sqrt(-impl::Logarithm(q <= 0.0 ? p : 1.0 - p));
  double above, below;
  if (r <= 5.0) {
    const double t = r - 1.6;
    above =
        Polynomial(t, 7.74545014278341407640e-4, 2.27238449892691845833e-2,
                   2.41780725177450611770e-1, 1.27045825245236838258e+0, 3.64784832476320460504e+0,
                   5.76949722146069140550e+0, 4.63033784615654529590e+0, 1.42343711074968357734e+0);
    below =
        Polynomial(t, 1.05075007164441684324e-9, 5.47593808499534494600e-4,
                   1.51986665636164571966e-2, 1.48103976427480074590e-1, 6.89767334985100004550e-1,
                   1.67638483018380384940e+0, 2.05319162663775882187e+0, 1.0);
  } else {
    const double t = r - 5.0;
    above =
        Polynomial(t, 2.01033439929228813265e-7, 2.71155556874348757815e-5,
                   1.24266094738807843860e-3, 2.65321895265761230930e-2, 2.96560571828504891230e-1,
                   1.78482653991729133580e+0, 5.46378491116411436990e+0, 6.65790464350110377720e+0);
    below =
        Polynomial(t, 2.04426310338993978564e-15, 1.42151175831644588870e-7,
                   1.84631831751005468180e-5, 7.86869131145613259100e-4, 1.48753612908506148525e-2,
                   1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0);
  }
  const double x = above / below;
  return q < 0.0 ? -x : x;
}

// Returns p for InverseNormal from 52 random bits: an odd multiple of 2^-53, so that 0 < p < 1.
IRIS_HOST_DEVICE inline double NormalChance(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 2.220446049250313e-16;
}

// Returns a normally distributed number from 32 random bits, in operations on floats: the quantile
// at (word + 1/2) / 2^32, with a relative error below 5e-7. Its magnitude is at most 6.34.
//
// With t, the probability of the nearer tail, z = 1 - 2 t and w = -log2(1 - z z), the number is z
// P(w), which is smooth: P is a polynomial in w below 8, and in sqrt(w) above 8, in the tails.
IRIS_HOST_DEVICE inline float RandomNormal(uint32_t word) {
  using impl::Polynomial;
  const bool negative = word < 0x80000000u;
  const uint32_t tail = negative ? word : ~word;
  const float twice_t = static_cast<float>(2 * tail + 1) * 2.3283064365386963e-10f;
  const float z = static_cast<float>(0xffffffffu - 2 * tail) * 2.3283064365386963e-10f;
  const uint32_t bits = backend::BitCast<uint32_t>(twice_t * (1.0f + z));
  // Splits the value into 2^exponent (1 + f), with 1 + f in [sqrt(1/2), sqrt(2)).
  const int32_t exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
  const float f = backend::BitCast<float>(bits - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
  const float log2_of_it = Polynomial(f, 1.7162238e-1f, -2.6931942e-1f, 2.956998e-1f,
                                      -3.5937172e-1f, 4.8062676e-1f, -7.2136354e-1f, 1.4426965e0f);
  const float w = -(static_cast<float>(exponent) + f * log2_of_it);
  float over_z;
  if (w < 8.0f) {
    over_z = Polynomial(w - 4.0f, 8.907055e-10f, 3.8384055e-8f, -4.1959927e-7f, -2.0643e-6f,
                        6.810961e-5f, -4.8094612e-4f, -3.469732e-3f, 2.3928294e-1f, 2.21792e0f);
  } else {
    // Rounds the root of doubles once, because the bits of sqrtf depend on a compiler's flags.
    const float root = static_cast<float>(::sqrt(static_cast<double>(w)));
    over_z = Polynomial(root - 4.25f, 3.0948754e-6f, -7.4939075e-5f, 2.256801e-4f, -3.4262796e-4f,
                        6.171721e-4f, -1.5491679e-3f, 3.001461e-3f, 1.1863711e0f, 4.77174e0f);
  }
  return negative ? -(z * over_z) : z * over_z;
}

}  // namespace iris
