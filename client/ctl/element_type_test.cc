#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "client/ctl/peek.h"
#include "gtest/gtest.h"

namespace iris::ctl {
namespace {

template <typename T>
std::string Bytes(std::initializer_list<T> values) {
  std::string bytes(1, '\0');  // so that values are not aligned
  for (const T value : values) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes.append(raw, sizeof(T));
  }
  return bytes;
}

template <typename T>
std::string Text(const char* type, T value) {
  return FindElementType(type)->text(Bytes<T>({value}).data() + 1);
}
template <typename T>
std::string JsonText(const char* type, T value) {
  return FindElementType(type)->json(Bytes<T>({value}).data() + 1).dump();
}

TEST(ElementTypeTest, EveryTypeIsFoundByItsName) {
  for (const std::string& name : ElementTypeNames()) {
    ASSERT_NE(FindElementType(name), nullptr) << name;
    EXPECT_EQ(FindElementType(name)->name, name);
  }
}

TEST(ElementTypeTest, OtherNames) {
  const std::pair<const char*, const char*> names[] = {
      {"float32", "f32"},       {"float", "f32"}, {"double", "f64"}, {"half", "f16"},
      {"bfloat16", "bf16"},     {"uint8", "u8"},  {"int64", "i64"},  {"float8_e4m3fn", "f8e4m3"},
      {"float8_e5m2", "f8e5m2"}};
  for (const auto& [other, own] : names) {
    ASSERT_NE(FindElementType(other), nullptr) << other;
    EXPECT_STREQ(FindElementType(other)->name, own);
  }
  for (const char* name : {"", "f", "f8", "int", "uint", "float3", "F32", "f32 ", "hex"}) {
    EXPECT_EQ(FindElementType(name), nullptr) << name;
  }
}

TEST(ElementTypeTest, IntegersToTheirLimits) {
  EXPECT_EQ(Text<int8_t>("i8", -128), "-128");
  EXPECT_EQ(Text<uint8_t>("u8", 255), "255");
  EXPECT_EQ(Text<int64_t>("i64", INT64_MIN), "-9223372036854775808");
  EXPECT_EQ(Text<uint64_t>("u64", UINT64_MAX), "18446744073709551615");
  EXPECT_EQ(JsonText<uint64_t>("u64", UINT64_MAX), "18446744073709551615");
  EXPECT_EQ(JsonText<int8_t>("i8", -1), "-1");
}

TEST(ElementTypeTest, FloatsAreReadBackAsTheyAre) {
  for (const float value : {0.1f, -1.0f / 3, 3.4028235e38f, 1e-45f}) {
    EXPECT_EQ(std::strtof(Text<float>("f32", value).c_str(), nullptr), value);
  }
  EXPECT_EQ(Text<float>("f32", 0.5f), "0.5");
  EXPECT_EQ(std::strtod(Text<double>("f64", 0.1).c_str(), nullptr), 0.1);
}

TEST(ElementTypeTest, FloatsOfEightBits) {
  EXPECT_EQ(Text<uint8_t>("f8e4m3", 0x38), "1");
  EXPECT_EQ(Text<uint8_t>("f8e4m3", 0x7e), "448");
  EXPECT_EQ(Text<uint8_t>("f8e4m3", 0x78), "256");
  EXPECT_EQ(Text<uint8_t>("f8e4m3", 0x01), "0.00195");
  EXPECT_EQ(Text<uint8_t>("f8e4m3", 0x7f), "nan");
  EXPECT_EQ(Text<uint8_t>("f8e4m3", 0xff), "nan");
  EXPECT_EQ(Text<uint8_t>("f8e5m2", 0xbc), "-1");
  EXPECT_EQ(Text<uint8_t>("f8e5m2", 0x7b), "5.73e+04");
  EXPECT_EQ(Text<uint8_t>("f8e5m2", 0xfc), "-inf");
  EXPECT_EQ(Text<uint8_t>("f8e5m2", 0x7e), "nan");
}

TEST(ElementTypeTest, Bools) {
  EXPECT_EQ(Text<uint8_t>("bool", 0), "false");
  EXPECT_EQ(Text<uint8_t>("bool", 1), "true");
  EXPECT_EQ(JsonText<uint8_t>("bool", 1), "true");
}

TEST(ElementTypeTest, NarrowFloats) {
  EXPECT_EQ(Text<uint16_t>("f16", 0x3c00), "1");
  EXPECT_EQ(Text<uint16_t>("f16", 0xc000), "-2");
  EXPECT_EQ(Text<uint16_t>("f16", 0x7bff), "65504");
  EXPECT_EQ(Text<uint16_t>("f16", 0x0001), "5.9605e-08");
  EXPECT_EQ(Text<uint16_t>("f16", 0x7c00), "inf");
  EXPECT_EQ(Text<uint16_t>("bf16", 0x3f80), "1");
  EXPECT_EQ(Text<uint16_t>("bf16", 0xc049), "-3.141");
  EXPECT_EQ(Text<uint16_t>("bf16", 0xff80), "-inf");
  EXPECT_EQ(Text<uint16_t>("bf16", 0x7fc0), "nan");
}

TEST(ElementTypeTest, JsonHasNoNumberForSome) {
  EXPECT_EQ(JsonText<float>("f32", std::numeric_limits<float>::infinity()), "\"inf\"");
  EXPECT_EQ(JsonText<double>("f64", -std::numeric_limits<double>::infinity()), "\"-inf\"");
  EXPECT_EQ(JsonText<float>("f32", NAN), "\"nan\"");
  EXPECT_EQ(JsonText<float>("f32", 1.5f), "1.5");
}

TEST(ValueDumpTest, LinesBeginWithTheIndex) {
  std::string bytes;
  for (int i = 0; i < 10; ++i) bytes.push_back(static_cast<char>(i * 12));
  EXPECT_EQ(ValueDump(*FindElementType("u8"), bytes, 96),
            " 96    0  12  24  36  48  60  72  84\n"
            "104   96 108\n");
}

TEST(ValueDumpTest, FoldsRepeatedLines) {
  EXPECT_EQ(ValueDump(*FindElementType("u64"), std::string(8 * 13, '\0'), 0),
            " 0  0 0 0 0\n"
            "*\n"
            "12  0\n");
  EXPECT_EQ(ValueDump(*FindElementType("f32"), "", 0), "");
}

}  // namespace
}  // namespace iris::ctl
