#include "server/account/accounts.h"

#include <chrono>
#include <memory>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::server {
namespace {

using testing::HasSubstr;

// Holds bytes of an account as long as it lives.
class Held {
 public:
  Held(const Account& account, int64_t bytes) : slot_(account.slot), bytes_(bytes) {
    CoreMemory::Count(slot_, bytes_);
  }
  ~Held() { CoreMemory::Count(slot_, -bytes_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  const MemorySlot slot_;
  const int64_t bytes_;
};

absl::Status RoomFor(const Accounts& accounts, const Account& account) {
  const OnBehalfOf on_behalf(account.slot);
  return accounts.Room();
}

TEST(AccountsTest, ATenantHasOneAccountAndItsPlaceIsUsedAgain) {
  Accounts accounts(100 << 20);
  const auto one = accounts.Open(Party{1000}, false);
  EXPECT_EQ(accounts.Open(Party{1000}, false), one);
  EXPECT_NE(accounts.Open(Party{1001}, false)->slot, one->slot);
  EXPECT_EQ(accounts.List().size(), 1u);  // the other has been closed meanwhile
  for (size_t i = 0; i < 3 * kMemorySlots; ++i) {
    const auto other = accounts.Open(Party{static_cast<uint32_t>(2000 + i)}, false);
    ASSERT_NE(other->slot, one->slot);
    ASSERT_NE(other->slot, kIrisdsSlot);
    ASSERT_NE(other->slot, kOthersSlot);
  }
}

TEST(AccountsTest, WhoeverHasMoreThanHisPartIsRefusedWhenMemoryIsShort) {
  Accounts accounts(100 << 20);
  const auto greedy = accounts.Open(Party{1000}, false);
  const auto modest = accounts.Open(Party{1001}, false);
  const auto root = accounts.Open(Party{0}, true);
  const Held much(*greedy, 79 << 20);
  EXPECT_TRUE(RoomFor(accounts, *greedy).ok());
  const Held more(*greedy, 2 << 20);
  const absl::Status refused = RoomFor(accounts, *greedy);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("81 MiB of it for uid 1000"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("core.memory is 100 MiB"));
  EXPECT_TRUE(RoomFor(accounts, *modest).ok());
  EXPECT_TRUE(RoomFor(accounts, *root).ok());
  const Held rest(*greedy, 15 << 20);
  EXPECT_FALSE(RoomFor(accounts, *modest).ok());
  EXPECT_TRUE(RoomFor(accounts, *root).ok());
  accounts.SetLimit(200 << 20);
  EXPECT_TRUE(RoomFor(accounts, *greedy).ok());
}

TEST(AccountsTest, WhatACallTookBeyondARoundIsMissingInTheNext) {
  Accounts accounts(1 << 30);
  const auto busy = accounts.Open(Party{1000}, false);
  const auto other = accounts.Open(Party{1001}, false);
  EXPECT_TRUE(busy->MayRun());
  busy->Ran(Account::kQuantum / 2);
  EXPECT_TRUE(busy->MayRun());
  busy->Ran(Account::kQuantum * 3);  // 2.5 in debt
  EXPECT_FALSE(busy->MayRun());
  EXPECT_TRUE(other->MayRun());
  for (int round = 0; round < 2; ++round) {
    accounts.NextRound();
    EXPECT_FALSE(busy->MayRun()) << round;
  }
  accounts.NextRound();
  EXPECT_TRUE(busy->MayRun());
  // A long wait gives no more than one round's time.
  for (int round = 0; round < 1000; ++round) accounts.NextRound();
  EXPECT_TRUE(other->MayRun());
  other->Ran(Account::kQuantum);
  EXPECT_FALSE(other->MayRun());
  EXPECT_EQ(busy->core_time(), Account::kQuantum * 7 / 2);
}

TEST(AccountsTest, TimeCountsOnce) {
  Accounts accounts(1 << 30);
  const auto account = accounts.Open(Party{1000}, false);
  const auto began = std::chrono::steady_clock::now();
  {
    const AtWork work(account.get());
    const AtWork part_of_it(account.get());
    absl::SleepFor(absl::Milliseconds(2));
  }
  EXPECT_GE(account->core_time(), absl::Milliseconds(2));
  EXPECT_LE(account->core_time(), absl::FromChrono(std::chrono::steady_clock::now() - began));
}

}  // namespace
}  // namespace iris::server
