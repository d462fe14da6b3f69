#include "server/rpc/listing_page.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "absl/strings/match.h"

namespace iris::server {
namespace {

void ExpectRefused(absl::string_view listing, absl::string_view filter, const std::string& token) {
  const absl::Status status = ReadPageToken(listing, filter, token).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "without a token")) << status;
}

TEST(PageTokenTest, NoTokenIsTheBeginning) {
  EXPECT_EQ(*ReadPageToken("jobs", "train", ""), ListPosition());
}

TEST(PageTokenTest, ReadsWhatItMade) {
  for (const uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{0x123456789abcdef}, UINT64_MAX}) {
    const ListPosition last{value, UINT64_MAX - value};
    const std::string token = MakePageToken("allocations", "train", last);
    EXPECT_EQ(*ReadPageToken("allocations", "train", token), last);
  }
}

TEST(PageTokenTest, IsOfOneListingAndOneFilter) {
  const std::string token = MakePageToken("jobs", "train", {7, 0});
  ExpectRefused("heaps", "train", token);
  ExpectRefused("jobs", "", token);
  ExpectRefused("jobs", "train2", token);
}

TEST(PageTokenTest, RefusesEveryChangedByteAndEveryPart) {
  const std::string token = MakePageToken("jobs", "", {7, 3});
  for (size_t i = 0; i < token.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = token;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      ExpectRefused("jobs", "", changed);
    }
    ExpectRefused("jobs", "", token.substr(0, i + 1 == token.size() ? i : i + 1));
  }
  ExpectRefused("jobs", "", token + "0");
  ExpectRefused("jobs", "", std::string(1 << 20, '\xff'));
  ExpectRefused("jobs", "", std::string(48, '\0'));
}

}  // namespace
}  // namespace iris::server
