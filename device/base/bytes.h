// ParseBytes parses a number of bytes, with one grammar for configuration files, flags, environment
// variables and rules; HumanBytes and SizeText write one for people. Thread-safe.
//
//   size   = number [" "] [unit]
//   number = decimal digits, or "0x" and hexadecimal digits
//   unit   = "B", or one of K M G T, optionally followed by "B" or "iB"
//
// Units are powers of 1,024, in upper or lower case. There are no signs and no fractions.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

namespace iris::base {

// Error messages put this after "is not" or "write".
inline constexpr char kBytesGrammar[] = "a number of bytes such as 1073741824, 0x400, 512M or 4GiB";

// Reads all of `text`. Returns false and leaves *bytes unchanged if it is no size, or exceeds 64
// bits.
inline bool ParseBytes(std::string_view text, uint64_t* bytes) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && lower(text[1]) == 'x') {
    base = 16;
    text.remove_prefix(2);
  }
  uint64_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  if (text.size() > 1 && text[0] == ' ') text.remove_prefix(1);
  uint32_t shift = 0;
  if (!text.empty() && lower(text[0]) != 'b') {
    const size_t unit = std::string_view("kmgt").find(lower(text[0]));
    if (unit == std::string_view::npos) return false;
    shift = 10 * (static_cast<uint32_t>(unit) + 1);
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

// Returns a size for tables: three digits, or all of a whole number: "8 MiB", "1.50 KiB", "400 B".
inline std::string HumanBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  while (unit + 1 < std::size(kUnits) && bytes >> (10 * (unit + 1)) != 0) ++unit;
  const uint64_t one = uint64_t{1} << (10 * unit);
  const double value = static_cast<double>(bytes) / static_cast<double>(one);
  const int digits = bytes % one == 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f %s", digits, value, kUnits[unit]);
  return text;
}

// Returns an exact size for sentences: "8 MiB", "1.50 KiB (1536 bytes)", "400 bytes".
inline std::string SizeText(uint64_t bytes) {
  const std::string exact = std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  if (bytes < 1024) return exact;
  const std::string human = HumanBytes(bytes);
  uint64_t read = 0;
  return ParseBytes(human, &read) && read == bytes ? human : human + " (" + exact + ")";
}

}  // namespace iris::base
