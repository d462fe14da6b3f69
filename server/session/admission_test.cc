#include "server/session/admission.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace iris::server {
namespace {

constexpr uint32_t kAnn = 1000, kBob = 1001;

AdmissionLimits Small() {
  AdmissionLimits limits;
  limits.max_sessions = 4;
  limits.max_sessions_per_uid = 3;
  limits.max_unattested = 4;
  limits.max_admin_connections = 3;
  limits.max_admin_connections_per_uid = 2;
  return limits;
}

class AdmissionTest : public ::testing::Test {
 protected:
  // A session of `uid` that has finished its handshake.
  void Hold(uint32_t uid) {
    auto place = admission_.AdmitSession(uid);
    ASSERT_TRUE(place.ok()) << place.status();
    place->Attested();
    held_.push_back(*std::move(place));
  }
  void ExpectRefused(const absl::Status& status, const std::string& text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
  }

  Admission admission_{Small()};
  std::vector<Admission::Place> held_;
};

TEST_F(AdmissionTest, ALimitOfOneUserLeavesRoomForOthers) {
  for (int i = 0; i < 3; ++i) Hold(kAnn);
  ExpectRefused(admission_.AdmitSession(kAnn).status(), "uid 1000 has 3 sessions");
  Hold(kBob);
}

TEST_F(AdmissionTest, TheTotalCountsAllUsers) {
  for (int i = 0; i < 3; ++i) Hold(kAnn);
  Hold(kBob);
  ExpectRefused(admission_.AdmitSession(kBob).status(), "irisd has 4 sessions");
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

TEST_F(AdmissionTest, OneUserTakesAtMostHalfOfTheHandshakes) {
  auto first = admission_.AdmitSession(kAnn);
  auto second = admission_.AdmitSession(kAnn);
  ASSERT_TRUE(first.ok() && second.ok());
  ExpectRefused(admission_.AdmitSession(kAnn).status(), "2 connections of uid 1000");
  auto third = admission_.AdmitSession(kBob);
  EXPECT_TRUE(third.ok()) << third.status();
  // Attested, or gone: both make room.
  first->Attested();
  auto fourth = admission_.AdmitSession(kAnn);
  EXPECT_TRUE(fourth.ok()) << fourth.status();
}

TEST_F(AdmissionTest, AllUsersTogetherHaveALimitOfHandshakes) {
  AdmissionLimits limits;
  limits.max_unattested = 2;
  Admission admission(limits);
  auto ann = admission.AdmitSession(kAnn);
  std::optional<Admission::Place> bob = *admission.AdmitSession(kBob);
  ASSERT_TRUE(ann.ok());
  ExpectRefused(admission.AdmitSession(1002).status(),
                "2 connections have not finished their handshake");
  bob.reset();  // gave up
  EXPECT_TRUE(admission.AdmitSession(1002).ok());
}

TEST_F(AdmissionTest, ALimitOfOneHandshakeStillLetsAUserIn) {
  AdmissionLimits limits;
  limits.max_unattested = 1;
  Admission admission(limits);
  EXPECT_TRUE(admission.AdmitSession(kAnn).ok());
}

TEST_F(AdmissionTest, AttestedTwiceCountsOnce) {
  auto place = admission_.AdmitSession(kAnn);
  auto other = admission_.AdmitSession(kAnn);
  ASSERT_TRUE(place.ok() && other.ok());
  place->Attested();
  place->Attested();
  auto third = admission_.AdmitSession(kAnn);
  ASSERT_TRUE(third.ok());
  third->Attested();
  // `other` alone is unattested, but the user's sessions are at their limit.
  ExpectRefused(admission_.AdmitSession(kAnn).status(), "3 sessions");
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

TEST_F(AdmissionTest, AdminConnectionsHaveLimitsOfTheirOwn) {
  for (int i = 0; i < 3; ++i) Hold(kAnn);
  auto first = admission_.AdmitAdmin(kAnn);
  auto second = admission_.AdmitAdmin(kAnn);
  ASSERT_TRUE(first.ok() && second.ok());
  ExpectRefused(admission_.AdmitAdmin(kAnn).status(), "uid 1000 has 2 connections on irisd.sock");
  auto third = admission_.AdmitAdmin(kBob);
  ASSERT_TRUE(third.ok());
  ExpectRefused(admission_.AdmitAdmin(1002).status(), "irisd has 3 connections on irisd.sock");
}

TEST(FitToDescriptorsTest, LeavesAQuarterForMemory) {
  for (const uint64_t fd_limit : {256u, 1024u, 4096u, 65536u, 1u << 20}) {
    const AdmissionLimits fitted = FitToDescriptors(AdmissionLimits(), fd_limit);
    EXPECT_GE(DescriptorsForMemory(fitted, fd_limit), fd_limit / 4) << fd_limit;
    EXPECT_LE(fitted.max_unattested, fitted.max_sessions) << fd_limit;
    EXPECT_GE(fitted.max_sessions, 1u) << fd_limit;
  }
  EXPECT_EQ(FitToDescriptors(AdmissionLimits(), 1u << 20).max_sessions, 4096u);
}

TEST(FitToDescriptorsTest, EvenAFewDescriptorsLetOneIn) {
  const AdmissionLimits fitted = FitToDescriptors(AdmissionLimits(), 64);
  EXPECT_EQ(fitted.max_sessions, 1u);
  EXPECT_EQ(fitted.max_unattested, 1u);
  EXPECT_EQ(fitted.max_admin_connections, 2u);
}

}  // namespace
}  // namespace iris::server
