#include "server/rpc/page_token.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace iris::server {
namespace {

constexpr size_t kWordDigits = 16;
constexpr size_t kTokenBytes = 3 * kWordDigits;

// FNV-1a, 64 bits. It finds mistakes; it need not stop anybody (see page_token.h).
uint64_t Check(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

uint64_t CheckOf(absl::string_view listing, absl::string_view filter, ListPosition last) {
  return Check(absl::StrCat(listing, "\n", last.id, "\n", last.item, "\n", filter));
}

// Sixteen digits as MakePageToken writes them. False: they are not.
bool ReadWord(absl::string_view digits, uint64_t* value) {
  *value = 0;
  for (const char c : digits) {
    const bool number = c >= '0' && c <= '9';
    if (!number && (c < 'a' || c > 'f')) return false;
    *value = *value << 4 | static_cast<uint64_t>(number ? c - '0' : c - 'a' + 10);
  }
  return true;
}

}  // namespace

std::string MakePageToken(absl::string_view listing, absl::string_view filter, ListPosition last) {
  return absl::StrFormat("%016x%016x%016x", last.id, last.item, CheckOf(listing, filter, last));
}

absl::StatusOr<ListPosition> ReadPageToken(absl::string_view listing, absl::string_view filter,
                                           absl::string_view token) {
  ListPosition last;
  if (token.empty()) return last;
  uint64_t check = 0;
  const bool well_formed = token.size() == kTokenBytes &&
                           ReadWord(token.substr(0, kWordDigits), &last.id) &&
                           ReadWord(token.substr(kWordDigits, kWordDigits), &last.item) &&
                           ReadWord(token.substr(2 * kWordDigits), &check);
  if (!well_formed || check != CheckOf(listing, filter, last)) {
    return absl::InvalidArgumentError(
        absl::StrCat("list ", listing, ": this page_token of ", token.size(),
                     " bytes does not come from a reply to the same listing with the same filter: "
                     "list again from the start, without a token"));
  }
  return last;
}

}  // namespace iris::server
