#include "iris/share.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace iris {
namespace {

TEST(ShareTest, EvenShares) {
  EXPECT_EQ(ShareOf(12, 4, 0).begin, 0u);
  EXPECT_EQ(ShareOf(12, 4, 3).begin, 9u);
  EXPECT_EQ(ShareOf(12, 4, 3).count, 3u);
  EXPECT_EQ(ShareOf(12, 4, 3).end(), 12u);
}

TEST(ShareTest, TheFirstOnesAreLonger) {
  static_assert(ShareOf(10, 4, 1).count == 3, "it is a constant where its arguments are");
  const uint64_t counts[] = {3, 3, 2, 2};
  for (uint32_t part = 0; part < 4; ++part) EXPECT_EQ(ShareOf(10, 4, part).count, counts[part]);
}

TEST(ShareTest, SharesFollowEachOtherAndAreAll) {
  const uint64_t large = (uint64_t{1} << 40) + 5;
  for (const uint64_t n : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{64}, large}) {
    for (const uint32_t parts : {1u, 2u, 7u, 64u, 1000u}) {
      uint64_t end = 0;
      for (uint32_t part = 0; part < parts; ++part) {
        const Share share = ShareOf(n, parts, part);
        ASSERT_EQ(share.begin, end) << n << " in " << parts << ", part " << part;
        ASSERT_LE(share.count, n / parts + 1);
        ASSERT_GE(share.count, n / parts);
        end = share.end();
      }
      EXPECT_EQ(end, n) << parts;
    }
  }
}

}  // namespace
}  // namespace iris
