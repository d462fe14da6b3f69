#include "server/rpc/listing_page.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace iris::server {

std::string MakePageToken(absl::string_view listing, absl::string_view filter, ListPosition last) {
  // FNV-1a, 64 bits. The check detects mistakes; a forged token does no harm.
  uint64_t check = 0xcbf29ce484222325;
  for (const char c : absl::StrCat(listing, "\n", last.id, "\n", last.item, "\n", filter)) {
    check = (check ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return absl::StrFormat("%016x%016x%016x", last.id, last.item, check);
}

absl::StatusOr<ListPosition> ReadPageToken(absl::string_view listing, absl::string_view filter,
                                           absl::string_view token) {
  ListPosition last;
  if (token.empty()) return last;
  if (token.size() == 48 && absl::SimpleHexAtoi(token.substr(0, 16), &last.id) &&
      absl::SimpleHexAtoi(token.substr(16, 16), &last.item) &&
      token == MakePageToken(listing, filter, last)) {
    return last;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("list ", listing, ": this page_token of ", token.size(),
                   " bytes does not come from a reply to the same listing with the same filter: "
                   "list again from the start, without a token"));
}

}  // namespace iris::server
