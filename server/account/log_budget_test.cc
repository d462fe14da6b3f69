#include "server/account/log_budget.h"

#include <gtest/gtest.h>

namespace iris::server {
namespace {

constexpr Party kAnn{1000}, kBob{1001};
constexpr LogRates kRates = {{3, absl::Seconds(10)}, {5, absl::Seconds(1)}};

class LogBudgetTest : public ::testing::Test {
 protected:
  // How many of `n` lines may be written now.
  int Written(const Party& tenant, int n) {
    int written = 0;
    for (int i = 0; i < n; ++i) written += budget_.Take(tenant, now_).has_value();
    return written;
  }
  LogBudget budget_{kRates};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(LogBudgetTest, AFloodGetsItsBurstAndThenALineNowAndThen) {
  EXPECT_EQ(Written(kAnn, 10'000), 3);
  now_ += absl::Seconds(10);
  EXPECT_EQ(budget_.Take(kAnn, now_), 9'997u) << "it says how many were left out";
  EXPECT_EQ(Written(kAnn, 100), 0);
  now_ += absl::Seconds(10);
  EXPECT_EQ(budget_.Take(kAnn, now_), 100u);
}

TEST_F(LogBudgetTest, OneTenantsFloodLeavesAnothersLines) {
  EXPECT_EQ(Written(kAnn, 100), 3);
  EXPECT_EQ(budget_.Take(kBob, now_), 0u);
}

TEST_F(LogBudgetTest, AllTogetherHaveALimitToo) {
  int written = 0;
  for (uint32_t uid = 0; uid < 100; ++uid) written += Written({uid}, 10);
  EXPECT_EQ(written, 5);
  now_ += absl::Seconds(2);
  written = 0;
  for (uint32_t uid = 0; uid < 100; ++uid) written += Written({uid}, 10);
  EXPECT_EQ(written, 2);
}

TEST_F(LogBudgetTest, AQuietTenantIsForgottenAndWhatWasLeftOutIsSaidOnce) {
  Written(kAnn, 10);
  Written(kBob, 1);
  EXPECT_FALSE(budget_.settled());
  EXPECT_EQ(budget_.Settle(now_ + absl::Seconds(5)).lines, 0u);
  now_ += absl::Seconds(40);
  const LogBudget::LeftOut left_out = budget_.Settle(now_);
  EXPECT_EQ(left_out.lines, 7u);
  EXPECT_EQ(left_out.n_tenants, 1u);
  EXPECT_EQ(left_out.one, kAnn);
  EXPECT_TRUE(budget_.settled());
  EXPECT_EQ(budget_.Settle(now_).lines, 0u);
  EXPECT_EQ(Written(kAnn, 10), 3);
}

TEST_F(LogBudgetTest, NoNumberOfTenantsTakesMoreMemoryThanItsBound) {
  for (uint32_t uid = 0; uid < 3 * LogBudget::kMaxTenants; ++uid) budget_.Take({uid}, now_);
  now_ += absl::Minutes(5);
  // The first five were written.
  EXPECT_EQ(budget_.Settle(now_).lines, 3 * LogBudget::kMaxTenants - 5);
  EXPECT_TRUE(budget_.settled());
}

TEST_F(LogBudgetTest, AClockThatStandsOrGoesBackGivesNothing) {
  Written(kAnn, 3);
  now_ -= absl::Hours(1);
  EXPECT_EQ(Written(kAnn, 5), 0);
}

}  // namespace
}  // namespace iris::server
