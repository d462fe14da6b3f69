#include "iris/backend/numeric.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

namespace iris {
namespace {

// Returns the value of a pattern, by the definition of the format and in double arithmetic.
double MeaningOf(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(bits & ((1 << fraction_bits) - 1), -fraction_bits);
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, exponent - bias);
}

template <typename T>
double Meaning(uint16_t bits) {
  return std::is_same_v<T, Half> ? MeaningOf(bits, 5, 10) : MeaningOf(bits, 8, 7);
}

// The nearest value of the format, ties to the even pattern, found by search among all patterns of
// the sign.
template <typename T>
uint16_t NearestBits(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint16_t infinity = std::is_same_v<T, Half> ? 0x7c00 : 0x7f80;
  // Rounding treats infinity as if it were the next value after the largest.
  auto position = [&](uint16_t bits) {
    if (bits != infinity) return Meaning<T>(bits);
    return 2 * Meaning<T>(static_cast<uint16_t>(infinity - 1)) -
           Meaning<T>(static_cast<uint16_t>(infinity - 2));
  };
  if (magnitude >= position(infinity)) return sign | infinity;
  uint16_t low = 0;
  uint16_t high = infinity;
  while (high - low > 1) {
    const uint16_t middle = static_cast<uint16_t>((low + high) / 2);
    (position(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - position(low);
  const double above = position(high) - magnitude;
  const bool up = above < below || (above == below && (low & 1) != 0);
  return sign | (up ? high : low);
}

template <typename T>
class NarrowFloatTest : public testing::Test {};
using NarrowFloats = testing::Types<Half, Bfloat16>;
TYPED_TEST_SUITE(NarrowFloatTest, NarrowFloats);

TYPED_TEST(NarrowFloatTest, IsTwoTrivialBytes) {
  EXPECT_EQ(sizeof(TypeParam), 2u);
  EXPECT_TRUE(std::is_trivially_copyable_v<TypeParam>);
  EXPECT_EQ(TypeParam().bits, 0);
}

TYPED_TEST(NarrowFloatTest, EveryPatternMeansWhatTheFormatSays) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t pattern = static_cast<uint16_t>(bits);
    const float value = static_cast<float>(TypeParam::FromBits(pattern));
    const double meaning = Meaning<TypeParam>(pattern);
    if (std::isnan(meaning)) {
      ASSERT_TRUE(std::isnan(value)) << "pattern " << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), meaning) << "pattern " << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << "pattern " << bits;
    }
  }
}

TYPED_TEST(NarrowFloatTest, EveryPatternSurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const TypeParam value = TypeParam::FromBits(static_cast<uint16_t>(bits));
    const TypeParam back(static_cast<float>(value));
    if (std::isnan(static_cast<float>(value))) {
      ASSERT_TRUE(std::isnan(static_cast<float>(back))) << "pattern " << bits;
      ASSERT_EQ(back.bits & 0x8000, value.bits & 0x8000) << "pattern " << bits;
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

TYPED_TEST(NarrowFloatTest, HalfwayBetweenNeighboursGoesToTheEvenOne) {
  const uint32_t infinity = std::is_same_v<TypeParam, Half> ? 0x7c00 : 0x7f80;
  for (uint32_t sign : {0x0000u, 0x8000u}) {
    for (uint32_t bits = 0; bits + 1 < infinity; ++bits) {
      const uint16_t low = static_cast<uint16_t>(sign | bits);
      const uint16_t high = static_cast<uint16_t>(low + 1);
      const float middle =
          static_cast<float>((Meaning<TypeParam>(low) + Meaning<TypeParam>(high)) / 2);
      ASSERT_EQ(TypeParam(middle).bits, (low & 1) == 0 ? low : high) << "pattern " << low;
      const float farther = std::nextafter(middle, static_cast<float>(Meaning<TypeParam>(high)));
      ASSERT_EQ(TypeParam(farther).bits, high) << "pattern " << low;
      const float nearer = std::nextafter(middle, static_cast<float>(Meaning<TypeParam>(low)));
      ASSERT_EQ(TypeParam(nearer).bits, low) << "pattern " << low;
    }
  }
}

TYPED_TEST(NarrowFloatTest, RandomFloatsRoundToTheNearest) {
  constexpr uint32_t kSeed = 20240607;
  std::mt19937 random(kSeed);
  for (int i = 0; i < 200000; ++i) {
    const float value = numeric::FloatOf(static_cast<uint32_t>(random()));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(value))));
    } else {
      ASSERT_EQ(TypeParam(value).bits, NearestBits<TypeParam>(value))
          << value << ", seed " << kSeed << ", step " << i;
    }
  }
}

TYPED_TEST(NarrowFloatTest, ZerosAndInfinitiesKeepTheirSign) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(TypeParam(0.0f).bits, 0x0000);
  EXPECT_EQ(TypeParam(-0.0f).bits, 0x8000);
  EXPECT_EQ(static_cast<float>(TypeParam(infinity)), infinity);
  EXPECT_EQ(static_cast<float>(TypeParam(-infinity)), -infinity);
  EXPECT_TRUE(TypeParam(0.0f) == TypeParam(-0.0f));
}

TYPED_TEST(NarrowFloatTest, NanStaysNanWhateverItsPayload) {
  for (uint32_t payload : {0x1u, 0x2000u, 0x3fffu, 0x200000u, 0x400000u, 0x7fffffu}) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const TypeParam nan(numeric::FloatOf(sign | 0x7f800000u | payload));
      EXPECT_TRUE(std::isnan(static_cast<float>(nan))) << payload;
      EXPECT_EQ(nan.bits >> 15, sign >> 31);
      EXPECT_FALSE(nan == nan);
      EXPECT_TRUE(nan != nan);
      EXPECT_FALSE(nan < nan);
    }
  }
}

TYPED_TEST(NarrowFloatTest, ArithmeticRoundsOnce) {
  EXPECT_EQ(static_cast<float>(TypeParam(1.5f) + TypeParam(2.25f)), 3.75f);
  EXPECT_EQ(static_cast<float>(TypeParam(1.5f) - TypeParam(2.25f)), -0.75f);
  EXPECT_EQ(static_cast<float>(TypeParam(1.5f) * TypeParam(2.5f)), 3.75f);
  EXPECT_TRUE(TypeParam(1.0f) < TypeParam(2.0f));
  EXPECT_FALSE(TypeParam(2.0f) < TypeParam(1.0f));
  // A unit below the last place vanishes when it is added alone.
  const float unit = std::is_same_v<TypeParam, Half> ? 2048.0f : 256.0f;
  EXPECT_EQ(static_cast<float>(TypeParam(unit) + TypeParam(1.0f)), unit);
}

TEST(HalfTest, KnownPatterns) {
  EXPECT_EQ(Half(1.0f).bits, 0x3c00);
  EXPECT_EQ(Half(-2.0f).bits, 0xc000);
  EXPECT_EQ(Half(65504.0f).bits, 0x7bff);
  EXPECT_EQ(Half(65519.996f).bits, 0x7bff);
  EXPECT_EQ(Half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Half(5.9604645e-08f).bits, 0x0001);
  EXPECT_EQ(Half(2.9802322e-08f).bits, 0x0000);
  EXPECT_EQ(Half(2.9802326e-08f).bits, 0x0001);
  EXPECT_EQ(Half(6.103515625e-05f).bits, 0x0400);
}

TEST(Bfloat16Test, KnownPatterns) {
  EXPECT_EQ(Bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(Bfloat16(-2.0f).bits, 0xc000);
  EXPECT_EQ(Bfloat16(3.14159265f).bits, 0x4049);
  EXPECT_EQ(Bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(Bfloat16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
}

}  // namespace
}  // namespace iris
