#include "server/account/admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace iris::server {
namespace {

constexpr Applicant kAnn{{1000}}, kBob{{1001}}, kEve{{1002}}, kRoot{{0}, /*is_operator=*/true};
// Two containers of root.
constexpr Applicant kBlue{{0, 77}}, kGreen{{0, 78}};

AdmissionLimits Small() {
  AdmissionLimits limits;
  limits.max_sessions = 4;
  limits.max_sessions_per_tenant = 3;
  limits.max_unattested = 4;
  limits.max_unattested_per_tenant = 2;
  limits.max_admin_connections = 4;
  limits.max_admin_connections_per_tenant = 3;
  return limits;
}

class AdmissionTest : public ::testing::Test {
 protected:
  // A session that has finished its handshake.
  void Hold(const Applicant& applicant) {
    auto place = admission_.AdmitHandshake(applicant, ++next_key_);
    ASSERT_TRUE(place.ok()) << place.status();
    const absl::Status attested = place->Attested();
    ASSERT_TRUE(attested.ok()) << attested;
    held_.push_back(*std::move(place));
  }
  // A silent handshake, for which others go if they have to, as in the session server. Its key.
  uint64_t Connect(const Applicant& applicant) {
    while (const auto goes = admission_.WhoGoesForHandshake(applicant)) {
      EXPECT_EQ(goes->reason.code(), absl::StatusCode::kUnavailable);
      EXPECT_EQ(silent_.erase(goes->key), 1u);
      last_reason_ = std::string(goes->reason.message());
    }
    auto place = admission_.AdmitHandshake(applicant, ++next_key_);
    EXPECT_TRUE(place.ok()) << place.status();
    if (place.ok()) silent_[next_key_] = *std::move(place);
    return next_key_;
  }
  bool Waits(uint64_t key) const { return silent_.count(key) != 0; }
  absl::Status HoldAdmin(const Applicant& applicant) {
    auto place = admission_.AdmitAdmin(applicant, ++next_key_);
    if (place.ok()) silent_[next_key_] = *std::move(place);
    return place.status();
  }
  static void ExpectRefused(const absl::Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
  }

  Admission admission_{Small()};
  uint64_t next_key_ = 0;
  std::vector<Admission::Place> held_;
  std::map<uint64_t, Admission::Place> silent_;
  std::string last_reason_;
};

TEST_F(AdmissionTest, ALimitOfOneTenantLeavesRoomForOthers) {
  for (int i = 0; i < 3; ++i) Hold(kAnn);
  ExpectRefused(admission_.AdmitHandshake(kAnn, 99).status(), "uid 1000 has 3 sessions");
  Hold(kBob);
}

TEST_F(AdmissionTest, TwoContainersOfRootAreCountedApart) {
  for (int i = 0; i < 3; ++i) Hold(kBlue);
  ExpectRefused(admission_.AdmitHandshake(kBlue, 99).status(), "uid 0 of container 77 has 3");
  Hold(kGreen);
}

TEST_F(AdmissionTest, TheTotalCountsAllTenants) {
  for (int i = 0; i < 3; ++i) Hold(kAnn);
  Hold(kBob);
  ExpectRefused(admission_.AdmitHandshake(kBob, 99).status(), "irisd has 4 sessions");
  EXPECT_EQ(admission_.n_sessions(), 4u);
}

TEST_F(AdmissionTest, ADestroyedPlaceIsFree) {
  for (int i = 0; i < 3; ++i) Hold(kAnn);
  held_.pop_back();
  EXPECT_EQ(admission_.n_sessions(), 2u);
  Hold(kAnn);
  held_.clear();
  EXPECT_EQ(admission_.n_sessions(), 0u);
}

TEST_F(AdmissionTest, AHandshakeBecomesASessionOnlyWithinTheLimit) {
  for (int i = 0; i < 2; ++i) Hold(kAnn);
  auto first = admission_.AdmitHandshake(kAnn, 98), second = admission_.AdmitHandshake(kAnn, 99);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(first->Attested().ok());
  ExpectRefused(second->Attested(), "uid 1000 has 3 sessions, the limit of one tenant");
  EXPECT_EQ(admission_.n_handshakes(), 1u) << "its place is as it was";
}

TEST_F(AdmissionTest, AMovedPlaceIsHeldOnce) {
  Hold(kAnn);
  Admission::Place moved = std::move(held_[0]);
  held_.clear();
  EXPECT_EQ(admission_.n_sessions(), 1u);
  moved = Admission::Place();
  // Assignment swaps: the old place went with the temporary.
  EXPECT_EQ(admission_.n_sessions(), 0u);
}

TEST_F(AdmissionTest, SilentHandshakesTakeNobodysSession) {
  for (const Applicant& each : {kAnn, kAnn, kBob, kBob}) Connect(each);
  EXPECT_EQ(admission_.n_handshakes(), 4u);
  EXPECT_EQ(admission_.n_sessions(), 0u);
}

TEST_F(AdmissionTest, WithinATenantTheOldestSilentOneGoes) {
  const uint64_t first = Connect(kAnn), second = Connect(kAnn), bobs = Connect(kBob);
  const uint64_t third = Connect(kAnn);
  EXPECT_FALSE(Waits(first));
  EXPECT_TRUE(absl::StrContains(last_reason_, "uid 1000 has 2 connections in the handshake"))
      << last_reason_;
  EXPECT_TRUE(Waits(second) && Waits(third) && Waits(bobs));
}

TEST_F(AdmissionTest, InTheTotalTheOldestOfTheTenantThatHasMostGoes) {
  const uint64_t bobs = Connect(kBob);
  const uint64_t first = Connect(kAnn), second = Connect(kAnn);
  const uint64_t blue = Connect(kBlue);
  const uint64_t eves = Connect(kEve);  // the fifth
  EXPECT_FALSE(Waits(first));
  EXPECT_TRUE(absl::StrContains(last_reason_, "most of them, 2, are of uid 1000")) << last_reason_;
  EXPECT_TRUE(Waits(bobs) && Waits(second) && Waits(blue) && Waits(eves));
}

TEST_F(AdmissionTest, ATenantWithFewerNeverLosesOne) {
  const uint64_t bobs = Connect(kBob), eves = Connect(kEve);
  for (int i = 0; i < 100; ++i) Connect(i % 2 == 0 ? kAnn : kBlue);
  EXPECT_TRUE(Waits(bobs) && Waits(eves));
  EXPECT_EQ(admission_.n_handshakes(), 4u);
}

TEST_F(AdmissionTest, AnyNumberOfTenantsWithOneEachLockNobodyOut) {
  for (uint32_t uid = 1; uid < 100; ++uid) Connect({{uid}});
  const uint64_t anns = Connect(kAnn);
  EXPECT_TRUE(Waits(anns));
  for (uint32_t uid = 1; uid < 4; ++uid) Connect({{uid}});
  EXPECT_TRUE(Waits(anns)) << "older ones go first";
}

TEST_F(AdmissionTest, WhoHasSpokenGoesAfterTheSilentOnes) {
  const uint64_t first = Connect(kAnn), second = Connect(kAnn);
  silent_[first].Heard();
  Connect(kAnn);
  EXPECT_TRUE(Waits(first));
  EXPECT_FALSE(Waits(second));
}

TEST_F(AdmissionTest, ALimitOfOneHandshakeStillLetsAnybodyIn) {
  AdmissionLimits limits;
  limits.max_unattested = limits.max_unattested_per_tenant = 1;
  Admission admission(limits);
  auto anns = admission.AdmitHandshake(kAnn, 1);
  ASSERT_TRUE(anns.ok());
  EXPECT_EQ(admission.WhoGoesForHandshake(kAnn)->key, 1u);
  EXPECT_EQ(admission.WhoGoesForHandshake(kBob)->key, 1u);
  ExpectRefused(admission.AdmitHandshake(kBob, 2).status(), "connect again");
}

TEST(OperatorTest, HasPlacesThatNobodyElseMayTake) {
  AdmissionLimits limits;
  limits.max_sessions = limits.max_unattested = limits.max_admin_connections = 16;
  limits.max_sessions_per_tenant = limits.max_unattested_per_tenant =
      limits.max_admin_connections_per_tenant = 16;
  ASSERT_EQ(KeptForOperator(16), 2u);
  Admission admission(limits);
  std::vector<Admission::Place> places;
  for (uint64_t i = 0; i < 14; ++i) {
    places.push_back(*admission.AdmitAdmin(kAnn, i));
    places.push_back(*admission.AdmitHandshake(kAnn, i));
    ASSERT_TRUE(places.back().Attested().ok());
  }
  const absl::Status admin = admission.AdmitAdmin({{0, 77}}, 99).status();
  EXPECT_TRUE(absl::StrContains(admin.message(), "2 are kept for the operator")) << admin;
  const absl::Status session = admission.AdmitHandshake(kBob, 99).status();
  EXPECT_TRUE(absl::StrContains(session.message(), "2 are kept for the operator")) << session;
  EXPECT_TRUE(admission.AdmitAdmin(kRoot, 99).ok());
  auto roots = admission.AdmitHandshake(kRoot, 99);
  ASSERT_TRUE(roots.ok()) << roots.status();
  EXPECT_TRUE(roots->Attested().ok());

  Admission silent(limits);
  for (uint32_t i = 0; i < 14; ++i) places.push_back(*silent.AdmitHandshake({{i + 1}}, i));
  EXPECT_TRUE(silent.WhoGoesForHandshake(kAnn).has_value());
  EXPECT_FALSE(silent.WhoGoesForHandshake(kRoot).has_value());
  EXPECT_TRUE(silent.AdmitHandshake(kRoot, 99).ok());
  places.clear();  // before their Admission
}

TEST(OperatorTest, AVerySmallLimitKeepsNothingAndALargeOneEight) {
  EXPECT_EQ(KeptForOperator(1), 0u);
  EXPECT_EQ(KeptForOperator(7), 0u);
  EXPECT_EQ(KeptForOperator(63), 7u);
  EXPECT_EQ(KeptForOperator(4096), 8u);
}

TEST_F(AdmissionTest, AdminConnectionsHaveLimitsOfTheirOwn) {
  for (int i = 0; i < 3; ++i) Hold(kAnn);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(HoldAdmin(kAnn).ok());
  ExpectRefused(HoldAdmin(kAnn), "uid 1000 has 3 connections on irisd.sock");
  EXPECT_FALSE(admission_.WhoGoesForAdmin(kAnn).has_value()) << "nobody loses one to himself";
  EXPECT_TRUE(HoldAdmin(kBob).ok());
  ExpectRefused(HoldAdmin(kEve), "irisd has 4 connections on irisd.sock");
}

TEST_F(AdmissionTest, WhoHasMostAdminConnectionsGivesOneToWhoHasFewer) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(HoldAdmin(kAnn).ok());
  EXPECT_TRUE(HoldAdmin(kBob).ok());
  const auto goes = admission_.WhoGoesForAdmin(kEve);
  ASSERT_TRUE(goes.has_value());
  EXPECT_EQ(goes->key, 1u) << "Ann's oldest";
  EXPECT_TRUE(absl::StrContains(goes->reason.message(), "3, are of uid 1000")) << goes->reason;
  silent_.erase(goes->key);
  EXPECT_TRUE(HoldAdmin(kEve).ok());
  // They have two, one and one: a tenant that took another would have more than the one that lost
  // it.
  EXPECT_FALSE(admission_.WhoGoesForAdmin(kBob).has_value());
}

TEST(FitToDescriptorsTest, LeavesAQuarterForMemory) {
  for (const uint64_t fd_limit : {256u, 1024u, 4096u, 65536u, 1u << 20}) {
    const AdmissionLimits fitted = FitToDescriptors(AdmissionLimits(), fd_limit);
    EXPECT_GE(DescriptorsForMemory(fitted, fd_limit), fd_limit / 4) << fd_limit;
    EXPECT_LE(fitted.max_unattested_per_tenant, std::max(1u, fitted.max_unattested / 2 + 1));
    EXPECT_LE(fitted.max_in_flight, fd_limit / 8 + 8) << fd_limit;
    EXPECT_LE(fitted.max_closing, fd_limit / 16) << fd_limit;
    EXPECT_LE(fitted.max_closing_per_tenant, (fitted.max_closing + 1) / 2) << fd_limit;
    EXPECT_GE(fitted.max_sessions, 1u) << fd_limit;
  }
  EXPECT_EQ(FitToDescriptors(AdmissionLimits(), 1u << 20).max_sessions, 4096u);
}

TEST(FitToDescriptorsTest, EvenAFewDescriptorsLetOneIn) {
  const AdmissionLimits fitted = FitToDescriptors(AdmissionLimits(), 64);
  EXPECT_EQ(fitted.max_sessions, 1u);
  EXPECT_EQ(fitted.max_unattested, 4u);
  EXPECT_EQ(fitted.max_admin_connections, 2u);
}

}  // namespace
}  // namespace iris::server
