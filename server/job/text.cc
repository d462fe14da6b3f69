#include "server/job/text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"

namespace iris::server {
namespace {

constexpr absl::string_view kReservedPrefix = "iris.";

struct Range {
  uint32_t first;
  uint32_t last;
};
template <size_t n>
bool IsIn(const Range (&ranges)[n], uint32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges), [code](const Range& range) {
    return code >= range.first && code <= range.last;
  });
}

// Format characters (Unicode's category Cf) that are invisible, or only change adjacent characters:
// with them, two different names look the same. Line separators are included.
constexpr Range kInvisible[] = {{0xad, 0xad},       {0x61c, 0x61c},    {0x180e, 0x180e},
                                {0x200b, 0x200f},   {0x2028, 0x202e},  {0x2060, 0x206f},
                                {0xfeff, 0xfeff},   {0xfff9, 0xfffb},  {0x1bca0, 0x1bca3},
                                {0x1d173, 0x1d17a}, {0xe0000, 0xe007f}};
// Blanks, fillers and variation selectors. A name that has them needs other characters, too.
constexpr Range kBlank[] = {
    {0x20, 0x20},     {0xa0, 0xa0},     {0x34f, 0x34f},   {0x115f, 0x1160},
    {0x1680, 0x1680}, {0x17b4, 0x17b5}, {0x180b, 0x180f}, {0x2000, 0x200a},
    {0x202f, 0x202f}, {0x205f, 0x205f}, {0x2800, 0x2800}, {0x3000, 0x3000},
    {0x3164, 0x3164}, {0xfe00, 0xfe0f}, {0xffa0, 0xffa0}, {0xe0100, 0xe01ef}};

// Returns the size in bytes of the printable character at the start of `text`, and sets `*number`
// to its code point; 0 if there is none.
size_t PrintableLength(absl::string_view text, uint32_t* number = nullptr) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (text.empty()) return 0;
  const size_t length = byte(0) < 0x80       ? 1
                        : byte(0) >> 5 == 6  ? 2
                        : byte(0) >> 4 == 14 ? 3
                        : byte(0) >> 3 == 30 ? 4
                                             : 0;
  if (length == 0 || text.size() < length) return 0;
  uint32_t code = byte(0) & (length == 1 ? 0x7f : 0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (byte(i) >> 6 != 2) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  if (code < kSmallest[length] || code > 0x10ffff || surrogate || control ||
      IsIn(kInvisible, code)) {
    return 0;
  }
  if (number != nullptr) *number = code;
  return length;
}

// Returns true if printable text has a visible character.
bool ShowsSomething(absl::string_view text) {
  while (!text.empty()) {
    uint32_t code = 0;
    const size_t length = PrintableLength(text, &code);
    if (length == 0) return false;
    if (!IsIn(kBlank, code)) return true;
    text.remove_prefix(length);
  }
  return false;
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
    return Error(Code::kInvalidArgument, what, " has ", text.size(), " bytes; ", min_bytes, " to ",
                 max_bytes, " are allowed");
  }
  if (!IsPrintable(text)) {
    return Error(Code::kInvalidArgument, what,
                 " contains control characters or invisible ones, or is not UTF-8");
  }
  if (!text.empty() && !ShowsSomething(text)) {
    return Error(Code::kInvalidArgument, what, " has no visible character");
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

absl::Status CleanStatus(const absl::Status& status) {
  return absl::Status(status.code(), CleanText(status.message(), wire::kMaxErrorTextBytes));
}

absl::Status CheckAllocationName(absl::string_view name, size_t min_bytes) {
  if (absl::Status s = CheckText("the name", name, min_bytes, wire::kMaxAllocationNameBytes);
      !s.ok()) {
    return s;
  }
  if (name.substr(0, kReservedPrefix.size()) == kReservedPrefix) {
    return Error(Code::kInvalidArgument, "names that begin with '", kReservedPrefix,
                 "' are irisd's own");
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const TensorInfo& tensor) {
  if (absl::Status s = CheckText("the dtype", tensor.dtype, 0, wire::kMaxDtypeBytes); !s.ok()) {
    return s;
  }
  if (tensor.shape.size() <= wire::kMaxDims) return absl::OkStatus();
  return Error(Code::kInvalidArgument, "the shape has ", tensor.shape.size(), " dimensions; ",
               wire::kMaxDims, " are allowed");
}

absl::Status WithPrefix(absl::string_view what, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(what, why.message()));
}

std::string TeamText(TeamId team) {
  return IsOwnTeam(team) ? absl::StrCat("rank ", OwnerOf(team), " alone")
                         : absl::StrCat("team ", team);
}

}  // namespace iris::server
