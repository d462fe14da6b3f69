// ParseBytes: the one grammar of a number of bytes, for configuration files, flags, environment
// variables and rules alike. Free functions without state; thread-safe; they own nothing.
//
//   size   = number [" "] [unit]
//   number = decimal digits, or "0x" and hexadecimal digits
//   unit   = "B", or one of K M G T, which may have "B" or "iB" behind it
//
// Units are powers of 1,024, in upper or lower case: 512M, 512MB, 512MiB and "512 mib" are the
// same. There are no signs and no fractions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace iris::base {

// What an error message says is right, behind "is not" or "write".
inline constexpr char kBytesGrammar[] = "a number of bytes such as 1073741824, 0x400, 512M or 4GiB";

// Reads `text` as a whole. Returns false, with *bytes unchanged, if it is no size, or if the size
// does not fit into 64 bits.
inline bool ParseBytes(std::string_view text, uint64_t* bytes) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  uint64_t base = 10;
  if (text.size() > 2 && text[0] == '0' && lower(text[1]) == 'x') {
    base = 16;
    text.remove_prefix(2);
  }
  uint64_t value = 0;
  size_t n_digits = 0;
  for (; n_digits < text.size(); ++n_digits) {
    const char c = lower(text[n_digits]);
    uint64_t digit = base;
    if (c >= '0' && c <= '9') digit = static_cast<uint64_t>(c - '0');
    if (c >= 'a' && c <= 'f') digit = static_cast<uint64_t>(c - 'a') + 10;
    if (digit >= base) break;
    if (value > (std::numeric_limits<uint64_t>::max() - digit) / base) return false;
    value = base * value + digit;
  }
  if (n_digits == 0) return false;
  text.remove_prefix(n_digits);
  if (text.size() > 1 && text[0] == ' ') text.remove_prefix(1);
  uint32_t shift = 0;
  if (!text.empty() && lower(text[0]) != 'b') {
    switch (lower(text[0])) {
      case 'k':
        shift = 10;
        break;
      case 'm':
        shift = 20;
        break;
      case 'g':
        shift = 30;
        break;
      case 't':
        shift = 40;
        break;
      default:
        return false;
    }
    text.remove_prefix(1);
    if (!text.empty() && lower(text[0]) == 'i') {
      text.remove_prefix(1);
      if (text.empty()) return false;
    }
  }
  if (!text.empty()) {
    if (text.size() > 1 || lower(text[0]) != 'b') return false;
  }
  if (value > (std::numeric_limits<uint64_t>::max() >> shift)) return false;
  *bytes = value << shift;
  return true;
}

}  // namespace iris::base
