#include "device/base/bytes.h"

#include <gtest/gtest.h>

#include <string>

namespace iris::base {
namespace {

constexpr uint64_t kUntouched = 77;

uint64_t Parsed(std::string_view text) {
  uint64_t bytes = kUntouched;
  EXPECT_TRUE(ParseBytes(text, &bytes)) << text;
  return bytes;
}

TEST(ParseBytesTest, PlainNumbers) {
  EXPECT_EQ(Parsed("0"), 0u);
  EXPECT_EQ(Parsed("1048576"), 1u << 20);
  EXPECT_EQ(Parsed("007"), 7u);
  EXPECT_EQ(Parsed("0x10"), 16u);
  EXPECT_EQ(Parsed("0XfF"), 255u);
  EXPECT_EQ(Parsed("18446744073709551615"), UINT64_MAX);
}

TEST(ParseBytesTest, EverySpellingOfAUnit) {
  const struct {
    char letter;
    int shift;
  } units[] = {{'k', 10}, {'m', 20}, {'g', 30}, {'t', 40}};
  for (const auto& unit : units) {
    const std::string lower(1, unit.letter);
    const std::string upper(1, static_cast<char>(unit.letter - 32));
    for (const std::string& text :
         {lower, upper, lower + "b", upper + "B", lower + "ib", upper + "iB", upper + "IB"}) {
      EXPECT_EQ(Parsed("3" + text), 3ull << unit.shift) << text;
      EXPECT_EQ(Parsed("3 " + text), 3ull << unit.shift) << text;
    }
  }
  EXPECT_EQ(Parsed("7B"), 7u);
  EXPECT_EQ(Parsed("7 b"), 7u);
  EXPECT_EQ(Parsed("0x10KiB"), 16u << 10);
}

TEST(ParseBytesTest, RefusesWhatIsNoSize) {
  for (const char* text :
       {"",     " ",    "B",   "K",   "GiB",   "x",   "0x",  "0xg", "-1",   "+1",
        "1.5G", "1e3",  " 4",  "4 ",  "4  K",  "1Ki", "1i",  "1iB", "1GG",  "1GiBB",
        "1BK",  "1KBi", "any", "4,0", "4GiB ", "1P",  "12z", "4_0", "0x1 z"}) {
    uint64_t bytes = kUntouched;
    EXPECT_FALSE(ParseBytes(text, &bytes)) << '"' << text << '"';
    EXPECT_EQ(bytes, kUntouched) << '"' << text << '"';
  }
}

TEST(ParseBytesTest, RefusesWhatDoesNotFit) {
  for (const char* text : {"18446744073709551616", "99999999999999999999", "16777216TiB",
                           "18446744073709551615K", "0x10000000000000000"}) {
    uint64_t bytes = kUntouched;
    EXPECT_FALSE(ParseBytes(text, &bytes)) << text;
    EXPECT_EQ(bytes, kUntouched) << text;
  }
  EXPECT_EQ(Parsed("16777215TiB"), 16777215ull << 40);
}

TEST(HumanBytesTest, CountsSmallOnesExactly) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
}

TEST(HumanBytesTest, WritesWholeUnitsWithoutAFraction) {
  EXPECT_EQ(HumanBytes(1024), "1 KiB");
  EXPECT_EQ(HumanBytes(64ull << 20), "64 MiB");
  EXPECT_EQ(HumanBytes(1000ull << 30), "1000 GiB");
  EXPECT_EQ(HumanBytes(1ull << 40), "1 TiB");
}

TEST(HumanBytesTest, RoundsToThreeDigits) {
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanBytes((10ull << 20) + (512 << 10)), "10.5 MiB");
  EXPECT_EQ(HumanBytes((100ull << 20) + 1), "100 MiB");
  EXPECT_EQ(HumanBytes((1ull << 20) - 1), "1024 KiB");
}

TEST(HumanBytesTest, KnowsTheLargestNumber) { EXPECT_EQ(HumanBytes(UINT64_MAX), "16.0 EiB"); }

TEST(SizeTextTest, IsExact) {
  EXPECT_EQ(SizeText(1), "1 byte");
  EXPECT_EQ(SizeText(400), "400 bytes");
  EXPECT_EQ(SizeText(8 << 20), "8 MiB");
  EXPECT_EQ(SizeText(1536), "1.50 KiB (1536 bytes)");
  EXPECT_EQ(SizeText((100ull << 20) + 1), "100 MiB (104857601 bytes)");
}

}  // namespace
}  // namespace iris::base
