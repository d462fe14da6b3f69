// UTF-8, which the text fields of messages must be. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace iris::internal {

// The bytes of the character that `text` begins with; 0 if it begins with none. Neither surrogates
// nor numbers above 0x10FFFF are characters, and each has one form alone.
inline size_t Utf8CharacterBytes(absl::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (text.empty()) return 0;
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  const uint8_t second = at(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return bytes;
}

inline bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t bytes = Utf8CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

// The text with a question mark in place of each byte that belongs to no character, and as many
// whole characters of it as fit into `max_bytes`.
inline std::string ToUtf8(absl::string_view text, size_t max_bytes) {
  std::string result;
  while (!text.empty()) {
    const size_t bytes = Utf8CharacterBytes(text);
    const size_t taken = bytes == 0 ? 1 : bytes;
    if (result.size() + taken > max_bytes) break;
    if (bytes == 0) {
      result.push_back('?');
    } else {
      result.append(text.data(), bytes);
    }
    text.remove_prefix(taken);
  }
  return result;
}

}  // namespace iris::internal
