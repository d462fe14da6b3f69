#include "client/base/printable.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "client/base/utf8.h"

namespace iris::base {

size_t PrintableCharacterBytes(absl::string_view text) {
  const auto [bytes, code] = internal::ReadUtf8(text);
  const bool control =
      code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029;
  const bool direction = (code >= 0x200b && code <= 0x200f) || (code >= 0x202a && code <= 0x202e) ||
                         (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
  return control || direction ? 0 : bytes;
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
