#include "server/account/in_flight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace iris::server {
namespace {

constexpr Applicant kAnn{{1000}}, kBob{{1001}}, kRoot{{0}, /*is_operator=*/true};

AdmissionLimits Limits(uint32_t max_total, uint32_t max_per_tenant) {
  AdmissionLimits limits;
  limits.max_in_flight = max_total;
  limits.max_in_flight_per_tenant = max_per_tenant;
  return limits;
}

// Takes whatever it gets.
uint32_t TakeAll(InFlight::Hold& hold) {
  uint32_t taken = 0;
  while (const uint32_t room = hold.Room()) {
    hold.Add(room);
    taken += room;
  }
  return taken;
}

TEST(InFlightTest, ATenantLeavesAsManyAsItHas) {
  InFlight in_flight(Limits(128, 1000));
  InFlight::Hold ann(&in_flight, kAnn), more(&in_flight, kAnn), bob(&in_flight, kBob);
  EXPECT_EQ(TakeAll(ann), 64u);
  EXPECT_EQ(more.Room(), 0u) << "another session has no share of its own";
  EXPECT_EQ(TakeAll(bob), 32u);
  ann.Clear();
  EXPECT_EQ(in_flight.of(kAnn.tenant), 0u);
  EXPECT_GT(bob.Room(), 0u);
}

TEST(InFlightTest, ATenantHasALimitOfItsOwn) {
  InFlight in_flight(Limits(1000, 20));
  InFlight::Hold ann(&in_flight, kAnn);
  EXPECT_EQ(TakeAll(ann), 20u);
  EXPECT_TRUE(absl::StrContains(ann.Why(), "uid 1000 has 20 descriptors on their way"))
      << ann.Why();
}

TEST(InFlightTest, TheOperatorMayHaveTheRest) {
  InFlight in_flight(Limits(128, 128));
  InFlight::Hold ann(&in_flight, kAnn), root(&in_flight, kRoot);
  EXPECT_EQ(TakeAll(ann), 64u);
  EXPECT_EQ(TakeAll(root), 64u);
  EXPECT_EQ(in_flight.total(), 128u);
}

TEST(InFlightTest, OneAloneIsStillServed) {
  InFlight in_flight(Limits(1, 1));
  InFlight::Hold ann(&in_flight, kAnn);
  EXPECT_EQ(TakeAll(ann), 1u);
}

TEST(InFlightTest, AMovedHoldCountsOnce) {
  InFlight in_flight(Limits(128, 128));
  {
    InFlight::Hold ann(&in_flight, kAnn);
    ann.Add(5);
    const InFlight::Hold moved = std::move(ann);
    EXPECT_EQ(in_flight.total(), 5u);
  }
  EXPECT_EQ(in_flight.total(), 0u);
}

// Whatever tenants do, the sums are right, nothing exceeds its limit, and a few greedy tenants
// leave something for one that has nothing.
TEST(InFlightTest, HoldsItsPromisesInRandomHistories) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    InFlight in_flight(Limits(256, 200));
    std::vector<std::pair<uint32_t, InFlight::Hold>> holds;
    for (uint32_t uid = 1; uid <= 6; ++uid) {
      for (int i = 0; i < 3; ++i) holds.emplace_back(uid, InFlight::Hold(&in_flight, {{uid}}));
    }
    for (int step = 0; step < 2000; ++step) {
      InFlight::Hold& hold = holds[random() % holds.size()].second;
      if (random() % 4 == 0) {
        hold.Clear();
      } else {
        hold.Add(std::min<uint32_t>(hold.Room(), 1 + random() % 16));
      }
      uint64_t total = 0;
      std::map<uint32_t, uint64_t> of;
      for (const auto& [uid, each] : holds) {
        total += each.count();
        of[uid] += each.count();
      }
      ASSERT_EQ(in_flight.total(), total) << "step " << step;
      ASSERT_LE(total, 256u);
      for (const auto& [uid, n] : of) ASSERT_EQ(in_flight.of({uid}), n) << "step " << step;
      ASSERT_GT(InFlight::Hold(&in_flight, {{99}}).Room(), 0u) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace iris::server
