// Pages of listings, and the tokens that request the next page. Pure; not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/limits.h"
#include "server/job/snapshots.h"

namespace iris::server {

// Returns the token of a position. A token gives no rights: a client that invents one sees only
// entries that it may list anyway. `listing` is the name of the listing and `filter` the request's
// filter: another listing, or the same one with another filter, does not accept the token.
std::string MakePageToken(absl::string_view listing, absl::string_view filter, ListPosition last);

// Returns the position in a token of MakePageToken, or the beginning if `token` is empty. Returns
// kInvalidArgument if it is no such token.
absl::StatusOr<ListPosition> ReadPageToken(absl::string_view listing, absl::string_view filter,
                                           absl::string_view token);

inline constexpr size_t kItemOverheadBytes = 1 + 4;  // tag and length of a message in another
inline constexpr size_t kTokenRoomBytes = 64;        // tag, length and text of the token

inline uint32_t PageSize(uint32_t asked) {
  return asked == 0 ? wire::kListPageDefault : std::min(asked, wire::kListPageMax);
}

// A page that is being filled. `Items` is the repeated field of the reply.
template <typename Items>
class Page {
 public:
  Page(uint32_t page_size, Items* items) : room_(PageSize(page_size)), items_(*items) {}

  // Adds a message for the entry at `at`; `fill(message)` sets the message. Returns false if the
  // page is full: the next page begins with this entry. A page has room for any single entry.
  template <typename Fill>
  bool Add(ListPosition at, Fill fill) {
    if (room_ == 0) return Full();
    auto* const item = items_.Add();
    fill(item);
    const size_t bytes = item->ByteSizeLong() + kItemOverheadBytes;
    if (bytes_ + bytes > wire::kMaxListBytes && items_.size() > 1) {
      items_.RemoveLast();
      return Full();
    }
    bytes_ += bytes;
    --room_;
    last_ = at;
    return true;
  }

  // Returns the token of the next page, or an empty one if there is no next page.
  std::string NextToken(absl::string_view listing, absl::string_view filter) const {
    return more_ ? MakePageToken(listing, filter, last_) : std::string();
  }

 private:
  bool Full() {
    more_ = true;
    return false;
  }

  uint32_t room_;
  Items& items_;
  size_t bytes_ = kTokenRoomBytes;
  ListPosition last_;
  bool more_ = false;
};

// Answers a request for a page. `fill(after, &page)` adds the entries after `after`.
template <typename Request, typename Reply, typename Items, typename Fill>
absl::Status FillPage(absl::string_view listing, absl::string_view filter, const Request& request,
                      Reply* reply, Items* items, Fill fill) {
  const auto after = ReadPageToken(listing, filter, request.page_token());
  if (!after.ok()) return after.status();
  Page<Items> page(request.page_size(), items);
  if (absl::Status filled = fill(*after, &page); !filled.ok()) return filled;
  reply->set_next_page_token(page.NextToken(listing, filter));
  return absl::OkStatus();
}

}  // namespace iris::server
