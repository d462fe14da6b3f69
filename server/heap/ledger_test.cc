#include "server/heap/ledger.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::server {
namespace {

using ::testing::HasSubstr;

Ledger TwoDevices() { return Ledger({{"dev-a", 1000, 10, 0}, {"dev-b", 500, 10, 0}}); }

const Ledger::Holder kX0{"x", 0, {1}}, kX1{"x", 1, {1}}, kY{"y", 0, {2}};

TEST(Ledger, BooksPerDevice) {
  Ledger ledger = TwoDevices();
  EXPECT_TRUE(ledger.Reserve(0, 600, kX0).ok());
  EXPECT_TRUE(ledger.Reserve(1, 500, kX1).ok());
  EXPECT_EQ(ledger.devices()[0].used_bytes, 600u);
  EXPECT_EQ(ledger.devices()[1].used_bytes, 500u);
  EXPECT_EQ(ledger.used_bytes_total(), 1100u);
}

TEST(Ledger, RefusalSaysWhatIsFreeAndWhichJobsHoldTheRest) {
  Ledger ledger = TwoDevices();
  ASSERT_TRUE(ledger.Reserve(0, 100, {"small", 0, {1}}).ok());
  ASSERT_TRUE(ledger.Reserve(0, 300, kX0).ok());
  ASSERT_TRUE(ledger.Reserve(0, 400, kX1).ok());
  const absl::Status status = ledger.Reserve(0, 300, kX0);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_EQ(status.message(),
            "reserve 300 bytes for rank 0: device 0 (dev-a): 200 bytes of 1000 bytes are "
            "free; held: 700 bytes by job 'x', 100 bytes by job 'small'");
  EXPECT_EQ(ledger.devices()[0].used_bytes, 800u);
}

TEST(Ledger, OtherUsersJobsComeAsASum) {
  Ledger ledger({{"dev-a", 1000, 10, 0}}, /*operator_uid=*/33);
  ASSERT_TRUE(ledger.Reserve(0, 100, kX0).ok());
  ASSERT_TRUE(ledger.Reserve(0, 200, kY).ok());
  ASSERT_TRUE(ledger.Reserve(0, 300, {"z", 0, {3}}).ok());
  const char* const kAll =
      "device 0 (dev-a): 400 bytes of 1000 bytes are free; held: 300 bytes by job 'z' of uid 3, "
      "200 "
      "bytes by job "
      "'y' of uid 2, 100 bytes by job 'x' of uid 1";
  EXPECT_EQ(ledger.Describe(0, {0}), kAll);
  EXPECT_EQ(ledger.Describe(0, {33}), kAll);
  EXPECT_EQ(
      ledger.Describe(0, {2}),
      "device 0 (dev-a): 400 bytes of 1000 bytes are free; held: 200 bytes by job 'y', 400 bytes "
      "by jobs of "
      "other users");
  EXPECT_EQ(
      ledger.Describe(0, {9}),
      "device 0 (dev-a): 400 bytes of 1000 bytes are free; held: 600 bytes by jobs of other users");
}

TEST(Ledger, ManyJobsAreSummedUp) {
  Ledger ledger = TwoDevices();
  for (uint32_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(ledger.Reserve(0, 10 + i, {absl::StrCat("job-", i), 0, {1}}).ok());
  }
  EXPECT_THAT(ledger.Describe(0, {1}),
              HasSubstr("12 bytes by job 'job-2', 21 bytes by 2 more jobs"));
}

TEST(Ledger, TellsWhatTheDriverCounts) {
  Ledger ledger = TwoDevices();
  ledger.SetDriverFree(0, 77);
  EXPECT_EQ(ledger.Describe(0, {1}),
            "device 0 (dev-a): 1000 bytes of 1000 bytes are free, 77 bytes by the driver's count");
}

TEST(Ledger, HugeRequestsDoNotWrap) {
  Ledger ledger = TwoDevices();
  ASSERT_TRUE(ledger.Reserve(0, 1, kX0).ok());
  EXPECT_TRUE(
      absl::IsResourceExhausted(ledger.Reserve(0, std::numeric_limits<uint64_t>::max(), kY)));
  EXPECT_EQ(ledger.devices()[0].used_bytes, 1u);
}

TEST(Ledger, ReleaseGivesBack) {
  Ledger ledger = TwoDevices();
  ASSERT_TRUE(ledger.Reserve(0, 1000, kX0).ok());
  EXPECT_FALSE(ledger.Reserve(0, 1, kY).ok());
  ledger.Release(0, 400, kX0);
  EXPECT_TRUE(ledger.Reserve(0, 400, kY).ok());
  ledger.Release(0, 600, kX0);
  ledger.Release(0, 400, kY);
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
  ASSERT_TRUE(ledger.Reserve(0, 10, kX0).ok());
  EXPECT_DEATH(ledger.Release(0, 11, kX0), "check failed");
  EXPECT_DEATH(ledger.Release(0, 1, kY), "check failed");
}

}  // namespace
}  // namespace iris::server
