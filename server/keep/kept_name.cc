#include "server/keep/kept_name.h"

#include <algorithm>

namespace iris::server {
namespace {

constexpr absl::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
static_assert(kDigits.size() == 64);
constexpr size_t kMaxDigits = 9;  // of 6 bits

}  // namespace

std::string KeptName::Text() const {
  std::string text;
  for (uint64_t left = id; left > 0; left /= 64) text += kDigits[left % 64];
  text += static_cast<char>(kind);
  std::reverse(text.begin(), text.end());
  return text;
}

std::optional<KeptName> KeptName::Parse(absl::string_view text) {
  if (text.size() < 2 || text.size() > 1 + kMaxDigits) return std::nullopt;
  KeptName name;
  name.kind = static_cast<Kind>(text[0]);
  if (name.kind != Kind::kSegment && name.kind != Kind::kPages && name.kind != Kind::kSession &&
      name.kind != Kind::kPort) {
    return std::nullopt;
  }
  for (const char each : text.substr(1)) {
    const size_t digit = kDigits.find(each);
    if (digit == kDigits.npos || (name.id == 0 && digit == 0)) return std::nullopt;
    name.id = name.id * 64 + digit;
  }
  return name;
}

}  // namespace iris::server
