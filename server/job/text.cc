#include "server/job/text.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"

namespace iris::server {
namespace {

constexpr absl::string_view kReservedPrefix = "iris.";

// Bytes of the printable character that `text` begins with; 0 if it begins with none.
size_t PrintableLength(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (text.empty()) return 0;
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) != 0x7f ? 1 : 0;
  const size_t length = byte(0) >> 5 == 6 ? 2 : byte(0) >> 4 == 14 ? 3 : byte(0) >> 3 == 30 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  uint32_t code = byte(0) & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) >> 6 != 2) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool control = code < 0xa0 || code == 0x2028 || code == 0x2029;
  if (code < kSmallest[length] || code > 0x10ffff || surrogate || control) return 0;
  return length;
}

}  // namespace

bool IsPrintable(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = PrintableLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

absl::Status CheckText(absl::string_view what, absl::string_view text, size_t min_bytes,
                       size_t max_bytes) {
  if (text.size() < min_bytes || text.size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(what, " has ", text.size(), " bytes; ",
                                                   min_bytes, " to ", max_bytes, " are allowed"));
  }
  if (!IsPrintable(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " contains control characters or is not UTF-8"));
  }
  return absl::OkStatus();
}

std::string CleanText(absl::string_view text, size_t max_bytes) {
  std::string clean;
  while (!text.empty()) {
    const size_t length = PrintableLength(text);
    const size_t taken = length == 0 ? 1 : length;
    if (clean.size() + taken > max_bytes) break;
    if (length == 0) {
      clean += '?';
    } else {
      clean.append(text.data(), length);
    }
    text.remove_prefix(taken);
  }
  return clean;
}

absl::Status CheckAllocationName(absl::string_view name, size_t min_bytes) {
  if (absl::Status s = CheckText("the name", name, min_bytes, wire::kMaxAllocationNameBytes);
      !s.ok()) {
    return s;
  }
  if (name.substr(0, kReservedPrefix.size()) == kReservedPrefix) {
    return absl::InvalidArgumentError(
        absl::StrCat("names that begin with '", kReservedPrefix, "' are irisd's own"));
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const TensorInfo& tensor) {
  if (absl::Status s = CheckText("the dtype", tensor.dtype, 0, wire::kMaxDtypeBytes); !s.ok()) {
    return s;
  }
  if (tensor.shape.size() <= wire::kMaxDims) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the shape has ", tensor.shape.size(),
                                                 " dimensions; ", wire::kMaxDims, " are allowed"));
}

std::string TeamText(TeamId team) {
  return IsOwnTeam(team) ? absl::StrCat("rank ", OwnerOf(team), " alone")
                         : absl::StrCat("team ", team);
}

}  // namespace iris::server
