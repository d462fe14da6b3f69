#include "server/heap/ledger.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::server {
namespace {

using ::testing::HasSubstr;

Ledger TwoDevices() { return Ledger({{"dev-a", 1000, 10, 0}, {"dev-b", 500, 10, 0}}); }

TEST(Ledger, BooksPerDevice) {
  Ledger ledger = TwoDevices();
  EXPECT_TRUE(ledger.Reserve(0, 600, "job=x rank=0 uid=1").ok());
  EXPECT_TRUE(ledger.Reserve(1, 500, "job=x rank=1 uid=1").ok());
  EXPECT_EQ(ledger.devices()[0].used_bytes, 600u);
  EXPECT_EQ(ledger.devices()[1].used_bytes, 500u);
  EXPECT_EQ(ledger.used_bytes_total(), 1100u);
}

TEST(Ledger, RefusalNamesWhatIsFreeAndWhoHoldsTheMost) {
  Ledger ledger = TwoDevices();
  ASSERT_TRUE(ledger.Reserve(0, 100, "small").ok());
  ASSERT_TRUE(ledger.Reserve(0, 700, "large").ok());
  const absl::Status status = ledger.Reserve(0, 300, "job=y rank=0 uid=2");
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("200 of 1000 bytes are free"));
  EXPECT_THAT(status.message(), HasSubstr("large holds the most, 700"));
  EXPECT_THAT(status.message(), HasSubstr("job=y rank=0 uid=2"));
  EXPECT_EQ(ledger.devices()[0].used_bytes, 800u);
}

TEST(Ledger, HugeRequestsDoNotWrap) {
  Ledger ledger = TwoDevices();
  ASSERT_TRUE(ledger.Reserve(0, 1, "a").ok());
  EXPECT_TRUE(
      absl::IsResourceExhausted(ledger.Reserve(0, std::numeric_limits<uint64_t>::max(), "b")));
  EXPECT_EQ(ledger.devices()[0].used_bytes, 1u);
}

TEST(Ledger, ReleaseGivesBack) {
  Ledger ledger = TwoDevices();
  ASSERT_TRUE(ledger.Reserve(0, 1000, "a").ok());
  EXPECT_FALSE(ledger.Reserve(0, 1, "b").ok());
  ledger.Release(0, 400, "a");
  EXPECT_TRUE(ledger.Reserve(0, 400, "b").ok());
  ledger.Release(0, 600, "a");
  ledger.Release(0, 400, "b");
  EXPECT_EQ(ledger.used_bytes_total(), 0u);
}

TEST(Ledger, FindsDevicesByUuid) {
  const Ledger ledger = TwoDevices();
  EXPECT_EQ(ledger.IndexOf("dev-b"), 1);
  EXPECT_EQ(ledger.IndexOf("dev-c"), -1);
  EXPECT_EQ(ledger.IndexOf(""), -1);
}

TEST(LedgerDeathTest, ReleaseOfWhatWasNotBookedIsABug) {
  Ledger ledger = TwoDevices();
  ASSERT_TRUE(ledger.Reserve(0, 10, "a").ok());
  EXPECT_DEATH(ledger.Release(0, 11, "a"), "check failed");
  EXPECT_DEATH(ledger.Release(0, 1, "b"), "check failed");
}

}  // namespace
}  // namespace iris::server
