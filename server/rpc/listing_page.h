// Page: a page of a listing as it fills. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/wire/limits.h"
#include "server/rpc/page_token.h"

namespace iris::server {

// Of a message inside another: a tag of one byte and a length. Of the token: that, and its text.
inline constexpr size_t kItemOverheadBytes = 1 + 4;
inline constexpr size_t kTokenRoomBytes = 64;

inline uint32_t PageSize(uint32_t asked) {
  return asked == 0 ? wire::kListPageDefault : std::min(asked, wire::kListPageMax);
}

// A page as it fills. `Items` is the repeated field of the reply that the things go into.
template <typename Items>
class Page {
 public:
  Page(uint32_t page_size, Items* items) : room_(PageSize(page_size)), items_(*items) {}

  // Adds what `fill(message)` makes of the thing at `at`. False: the page is full without it, and
  // the listing goes on behind the last one that was added. A page has room for any one thing.
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

  // Where the next page begins; empty: nothing follows.
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

}  // namespace iris::server
