#include "server/account/rate_budget.h"

#include <gtest/gtest.h>

namespace iris::server {
namespace {

TEST(RateBudgetTest, ABurstAtOnceThenOneInEachInterval) {
  RateBudget budget(3, absl::Seconds(1));
  const absl::Time start = absl::UnixEpoch();
  for (int i = 0; i < 3; ++i) {
    EXPECT_LE(budget.next(), start) << i;
    budget.Spend(start);
  }
  EXPECT_EQ(budget.next(), start + absl::Seconds(1));
  budget.Spend(start + absl::Seconds(1));
  EXPECT_EQ(budget.next(), start + absl::Seconds(2));
}

TEST(RateBudgetTest, WhatIsNotUsedComesBackUpToTheBurst) {
  RateBudget budget(2, absl::Seconds(1));
  const absl::Time start = absl::UnixEpoch();
  budget.Spend(start);
  budget.Spend(start);
  const absl::Time later = start + absl::Hours(1);
  budget.Spend(later);
  EXPECT_LE(budget.next(), later);
  budget.Spend(later);
  EXPECT_EQ(budget.next(), later + absl::Seconds(1));
}

}  // namespace
}  // namespace iris::server
