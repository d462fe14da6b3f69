#include "client/base/printable.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace iris::base {

size_t PrintableCharacterBytes(absl::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
  if (length == 0 || first > 0xf4 || text.size() < length) return 0;
  uint32_t code = first & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool control = code < 0xa0 || code == 0x2028 || code == 0x2029;
  const bool direction = (code >= 0x200b && code <= 0x200f) || (code >= 0x202a && code <= 0x202e) ||
                         (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return overlong || control || direction || surrogate || code > 0x10ffff ? 0 : length;
}

std::string Printable(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const size_t length = PrintableCharacterBytes(text);
    if (length > 0) {
      absl::StrAppend(&result, text.substr(0, length));
    } else if (text[0] == '\n') {
      result += "\\n";
    } else if (text[0] == '\t') {
      result += "\\t";
    } else {
      absl::StrAppend(&result, "\\x", absl::Hex(static_cast<uint8_t>(text[0]), absl::kZeroPad2));
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

}  // namespace iris::base
