// UTF-8, which the text fields of messages must be. Pure functions; thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace iris::internal {

struct Utf8Character {
  size_t bytes = 0;  // 0: no character
  uint32_t number = 0;
};

// Returns the character with which `text` begins. Surrogates, numbers above 0x10FFFF and overlong
// forms are no characters.
inline Utf8Character ReadUtf8(absl::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (text.empty()) return {};
  const uint8_t first = at(0);
  if (first < 0x80) return {1, first};
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return {};
  uint32_t number = first & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return {};
    number = number << 6 | (at(i) & 0x3F);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = number >= 0xD800 && number <= 0xDFFF;
  if (number < kLeast[bytes] || surrogate || number > 0x10FFFF) return {};
  return {bytes, number};
}

inline bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t bytes = ReadUtf8(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

// Returns the text with a question mark in place of each byte that belongs to no character, cut
// after the last character that fits into `max_bytes`.
inline std::string ToUtf8(absl::string_view text, size_t max_bytes) {
  std::string result;
  while (!text.empty()) {
    const size_t bytes = ReadUtf8(text).bytes;
    const absl::string_view character = bytes == 0 ? "?" : text.substr(0, bytes);
    if (result.size() + character.size() > max_bytes) break;
    result.append(character.data(), character.size());
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return result;
}

}  // namespace iris::internal
