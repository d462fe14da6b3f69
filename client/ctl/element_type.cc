#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/ctl/peek.h"
#include "client/ctl/text.h"
#include "iris/dtype.h"

namespace iris::ctl {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
T Load(const char* data) {
  T value;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

template <typename T>
Json IntegerJson(const char* data) {
  return Load<T>(data);
}

// Loads a binary floating-point number in a T, with kExponentBits bits of exponent. It includes the
// 8-bit types, which kernels only move. With kOnlyNan, numbers with the greatest exponent are
// finite too, except the one with all bits set, which is NaN.
template <typename T, int kExponentBits, bool kOnlyNan = false>
double LoadNarrow(const char* data) {
  constexpr int kFractionBits = int{sizeof(T)} * 8 - 1 - kExponentBits;
  constexpr int kMaxExponent = (1 << kExponentBits) - 1;
  constexpr int kMaxFraction = (1 << kFractionBits) - 1;
  constexpr int kBias = kMaxExponent / 2;
  const T bits = Load<T>(data);
  const int exponent = (bits >> kFractionBits) & kMaxExponent;
  const int fraction = bits & kMaxFraction;
  double value = 0;
  if (exponent == kMaxExponent && (!kOnlyNan || fraction == kMaxFraction)) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - kBias - kFractionBits);
  } else {
    value = std::ldexp((1 << kFractionBits) + fraction, exponent - kBias - kFractionBits);
  }
  return (bits >> (kFractionBits + kExponentBits)) != 0 ? -value : value;
}

template <typename T>
double LoadFloat(const char* data) {
  return Load<T>(data);
}

std::string SpecialText(double value) {
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

// Returns the shortest text that is read back as the same value.
template <typename T>
std::string FloatText(const char* data) {
  const T value = Load<T>(data);
  if (!std::isfinite(value)) return SpecialText(value);
  char text[32];
  return std::string(text, std::to_chars(std::begin(text), std::end(text), value).ptr);
}
// `kDigits` digits distinguish all values of the type.
template <double (*load)(const char*), int kDigits>
std::string NarrowText(const char* data) {
  const double value = load(data);
  return std::isfinite(value) ? absl::StrFormat("%.*g", kDigits, value) : SpecialText(value);
}
template <double (*load)(const char*)>
Json FloatJson(const char* data) {
  const double value = load(data);
  return std::isfinite(value) ? Json(value) : Json(SpecialText(value));
}

Json BoolJson(const char* data) { return *data != 0; }

constexpr ElementType Type(DType type, std::string (*text)(const char*),
                           Json (*json)(const char*)) {
  return {DTypeName(type), DTypeBytes(type), text, json};
}
template <Json (*json)(const char*)>
std::string JsonText(const char* data) {
  return json(data).dump();
}
template <typename T>
constexpr ElementType Integer() {
  return Type(DTypeOf<T>(), JsonText<IntegerJson<T>>, IntegerJson<T>);
}
template <typename T>
constexpr ElementType Float() {
  return Type(DTypeOf<T>(), FloatText<T>, FloatJson<LoadFloat<T>>);
}
template <double (*load)(const char*), int kDigits>
constexpr ElementType Narrow(DType type) {
  return Type(type, NarrowText<load, kDigits>, FloatJson<load>);
}

constexpr ElementType kTypes[] = {Float<float>(),
                                  Float<double>(),
                                  Narrow<LoadNarrow<uint16_t, 5>, 5>(DType::kF16),
                                  Narrow<LoadNarrow<uint16_t, 8>, 4>(DType::kBf16),
                                  Integer<int32_t>(),
                                  Integer<int64_t>(),
                                  Integer<uint8_t>(),
                                  Integer<int8_t>(),
                                  Integer<int16_t>(),
                                  Integer<uint16_t>(),
                                  Integer<uint32_t>(),
                                  Integer<uint64_t>(),
                                  Type(DType::kBool, JsonText<BoolJson>, BoolJson),
                                  Narrow<LoadNarrow<uint8_t, 4, true>, 3>(DType::kF8E4M3),
                                  Narrow<LoadNarrow<uint8_t, 5>, 3>(DType::kF8E5M2)};
static_assert(std::size(kTypes) == kDTypeCount - 1, "every DType but kNone");

// Prefixes in other software: "bfloat16" is bf16. "half", "float" and "double" are separate names.
constexpr std::pair<const char*, const char*> kBeginnings[] = {
    {"bfloat", "bf"}, {"float", "f"}, {"uint", "u"}, {"int", "i"}};
constexpr std::pair<const char*, const char*> kOtherNames[] = {{"half", "f16"},
                                                               {"float", "f32"},
                                                               {"double", "f64"},
                                                               {"float8_e4m3fn", "f8e4m3"},
                                                               {"float8_e5m2", "f8e5m2"}};

}  // namespace

const ElementType* FindElementType(absl::string_view name) {
  std::string wanted(name);
  for (const auto& [long_beginning, beginning] : kBeginnings) {
    absl::string_view rest = name;
    if (!absl::ConsumePrefix(&rest, long_beginning) || rest.empty()) continue;
    wanted = absl::StrCat(beginning, rest);
    break;
  }
  for (const auto& [other, own] : kOtherNames) {
    if (name == other) wanted = own;
  }
  const auto* const found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                         [&](const ElementType& t) { return wanted == t.name; });
  return found == std::end(kTypes) ? nullptr : found;
}

std::vector<std::string> ElementTypeNames() {
  std::vector<std::string> names;
  for (const ElementType& type : kTypes) names.push_back(type.name);
  return names;
}

std::string ValueDump(const ElementType& type, absl::string_view bytes, uint64_t first) {
  const size_t per_line = type.bytes >= 8 ? 4 : 8;
  const size_t line_bytes = per_line * type.bytes;
  std::vector<std::string> texts;
  size_t width = 0;
  for (size_t at = 0; at < bytes.size(); at += type.bytes) {
    texts.push_back(type.text(bytes.data() + at));
    width = std::max(width, texts.back().size());
  }
  const int index_width = static_cast<int>(absl::StrCat(first + texts.size()).size());
  return DumpLines(bytes, line_bytes, [&](size_t at, absl::string_view line) {
    const size_t i = at / type.bytes;
    std::string text = absl::StrFormat("%*d ", index_width, first + i);
    for (size_t j = i; j < i + line.size() / type.bytes; ++j) {
      absl::StrAppendFormat(&text, " %*s", static_cast<int>(width), texts[j]);
    }
    return text;
  });
}

}  // namespace iris::ctl
