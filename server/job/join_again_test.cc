// Tests Joins that are repeated because their answer was lost, and the items for a watch stream
// that was broken.
#include <string>

#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class JoinAgainTest : public MachineTest {
 protected:
  JoinSpec Numbered(int32_t rank, int32_t n_ranks, uint64_t number = 1) {
    JoinSpec spec = Spec(rank, n_ranks);
    spec.number = number;
    return spec;
  }
};

TEST_F(JoinAgainTest, TakesThePlaceOfTheEarlierCall) {
  const SessionId session = Open(100);
  const CallId first = Join(session, Numbered(0, 2));
  const CallId again = Join(session, Numbered(0, 2));
  EXPECT_TRUE(absl::IsCancelled(StatusOf(first))) << StatusOf(first);
  Do(CallCancelled{first});  // comes late
  Advance(kWithdrawAfter);
  EXPECT_FALSE(Answered(again));
  const CallId other = Join(Open(101), Spec(1, 2));
  CreateSegments();
  EXPECT_TRUE(StatusOf(again).ok()) << StatusOf(again);
  EXPECT_TRUE(StatusOf(other).ok()) << StatusOf(other);
  EXPECT_EQ(ResultOf<JoinResult>(again).rank, 0u);
}
TEST_F(JoinAgainTest, AfterTheCancellationItIsNotWithdrawn) {
  const SessionId session = Open(100);
  const CallId other = Join(Open(101), Spec(1, 2));
  const CallId first = Join(session, Numbered(0, 2));
  Do(CallCancelled{first});
  Advance(kWithdrawAfter / 2);
  const CallId again = Join(session, Numbered(0, 2));
  Advance(kWithdrawAfter);
  EXPECT_FALSE(Answered(again));
  EXPECT_EQ(TheJob().ranks[0].state, RankState::kJoined);
  CreateSegments();
  EXPECT_TRUE(StatusOf(again).ok());
  EXPECT_TRUE(StatusOf(other).ok());
}
TEST_F(JoinAgainTest, ItsTimeoutCountsAnew) {
  const SessionId session = Open(100);
  JoinSpec spec = Numbered(0, 2);
  spec.timeout = absl::Seconds(10);
  Join(session, spec);
  Advance(absl::Seconds(4));
  spec.timeout = absl::Seconds(6);
  const CallId again = Join(session, spec);
  EXPECT_EQ(machine_->NextDeadline(), clock_.Now() + absl::Seconds(6));
  Advance(absl::Seconds(6));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(again)));
}
TEST_F(JoinAgainTest, OfAJobThatIsBeingMappedGetsTheAnswerAgain) {
  const TestJob job{JobId{1}, {Open(100), Open(101)}};
  const CallId first = Join(job.sessions[0], Numbered(0, 2));
  const CallId second = Join(job.sessions[1], Spec(1, 2));
  CreateSegments();
  ASSERT_TRUE(StatusOf(first).ok());
  const size_t n_sent = All<SendDescriptors>().size();
  const CallId again = Join(job.sessions[0], Numbered(0, 2));
  const JoinResult one = ResultOf<JoinResult>(first);
  const JoinResult two = ResultOf<JoinResult>(again);
  EXPECT_EQ(one.rank, two.rank);
  EXPECT_EQ(one.job, two.job);
  EXPECT_EQ(one.segments.size(), two.segments.size());
  EXPECT_EQ(one.peers.size(), two.peers.size());
  EXPECT_EQ(one.device_index, two.device_index);
  EXPECT_EQ(one.stride_bytes, two.stride_bytes);
  EXPECT_EQ(All<SendDescriptors>().size(), n_sent) << "they were sent on the session socket";
  EXPECT_TRUE(StatusOf(second).ok());
  Mapped(job, 0);
  EXPECT_TRUE(StatusOf(Mapped(job, 1)).ok());
}
TEST_F(JoinAgainTest, AnAnswerThatWasLostDoesNotFailTheJob) {
  const TestJob job{JobId{1}, {Open(100), Open(101)}};
  const CallId first = Join(job.sessions[0], Numbered(0, 2));
  Join(job.sessions[1], Numbered(1, 2));
  CreateSegments();
  Do(CallCancelled{first});
  EXPECT_EQ(TheJob().state, JobState::kMapping);
  EXPECT_TRUE(StatusOf(Join(job.sessions[0], Numbered(0, 2))).ok());
}
TEST_F(JoinAgainTest, CancelledAsTheLastRankJoinedAndRepeatedInTime) {
  const TestJob job{JobId{1}, {Open(100), Open(101)}};
  const CallId first = Join(job.sessions[0], Numbered(0, 2));
  Do(CallCancelled{first});
  Join(job.sessions[1], Numbered(1, 2));
  CreateSegments();
  EXPECT_TRUE(StatusOf(Join(job.sessions[0], Numbered(0, 2))).ok());
  Advance(kWithdrawAfter);
  EXPECT_EQ(TheJob().state, JobState::kMapping);
}
TEST_F(JoinAgainTest, OfAJobThatFailedMeanwhileIsToldWhy) {
  const TestJob job{JobId{1}, {Open(100), Open(101)}};
  const CallId first = Join(job.sessions[0], Numbered(0, 2));
  Join(job.sessions[1], Numbered(1, 2));
  CreateSegments();
  ASSERT_TRUE(Answered(first));
  Gone(job.sessions[1]);
  const absl::Status told = StatusOf(Join(job.sessions[0], Numbered(0, 2)));
  EXPECT_TRUE(absl::IsAborted(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("rank 1 (pid 101) died"));
  EXPECT_TRUE(machine_->Jobs().empty()) << "it must not wait in a new job";
  // The next Join is one.
  EXPECT_FALSE(Answered(Join(job.sessions[0], Numbered(0, 2, 2))));
}
TEST_F(JoinAgainTest, ThatTimedOutMeanwhileIsToldSo) {
  const SessionId session = Open(100);
  JoinSpec spec = Numbered(0, 2);
  spec.timeout = absl::Seconds(3);
  Join(session, spec);
  Advance(absl::Seconds(3));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(Join(session, spec))));
}
TEST_F(JoinAgainTest, AfterItWasWithdrawnItIsANewJoin) {
  const SessionId session = Open(100);
  const CallId first = Join(session, Numbered(0, 2));
  Do(CallCancelled{first});
  Advance(kWithdrawAfter);
  ASSERT_TRUE(machine_->Jobs().empty());
  const CallId again = Join(session, Numbered(0, 2));
  EXPECT_FALSE(Answered(again));
  DropSegments();
  const CallId other = Join(Open(101), Spec(1, 2));
  CreateSegments();
  EXPECT_TRUE(StatusOf(again).ok()) << StatusOf(again);
  EXPECT_TRUE(StatusOf(other).ok()) << StatusOf(other);
}
TEST_F(JoinAgainTest, WithAnotherNumberItIsRefused) {
  const SessionId session = Open(100);
  Join(session, Numbered(0, 2));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Join(session, Numbered(0, 2, 2)))));
}
TEST_F(JoinAgainTest, AsAnotherRankItIsRefused) {
  const SessionId session = Open(100);
  Join(session, Numbered(0, 2));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Join(session, Numbered(1, 2)))));
}
TEST_F(JoinAgainTest, OfAReadyJobIsRefused) {
  JoinSpec spec = Numbered(0, 1);
  const TestJob job = ReadyJob(1, spec);
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Join(job.sessions[0], spec))));
}

TEST_F(JoinAgainTest, LeavingAgainAfterTheJobEnded) {
  const TestJob job = ReadyJob(1);
  EXPECT_TRUE(StatusOf(Leave(job, 0)).ok());
  EXPECT_TRUE(machine_->Jobs().empty());
  EXPECT_TRUE(StatusOf(Leave(job, 0)).ok());
}

// Growths that a stream which was away missed.

class MissedGrowthTest : public JoinAgainTest {
 protected:
  AllocateOp TooBig() const { return AllocateOp{.bytes = kHeap}; }
  GrowId Grow(const TestJob& job) {
    const auto added = Watched<SegmentsAdded>(job.sessions[0]);
    return added.empty() ? GrowId() : added.back().grow;
  }
  std::vector<std::pair<uint64_t, bool>> ToldOnReopening(const TestJob& job, size_t rank) {
    const size_t before = Watched<GrowDone>(job.sessions[rank]).size();
    Watch(job.sessions[rank], job.id);
    std::vector<std::pair<uint64_t, bool>> told;
    const auto all = Watched<GrowDone>(job.sessions[rank]);
    for (size_t i = before; i < all.size(); ++i) {
      told.push_back({all[i].grow.value, all[i].published});
    }
    return told;
  }
};

TEST_F(MissedGrowthTest, OneThatWasPublishedIsToldAlsoAfterALaterOneThatFailed) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, TooBig());
  CreateSegments();
  const GrowId first = Grow(job);
  GrowMapped(job, 0, first);
  GrowMapped(job, 1, first);
  AskAll(job, 1, TooBig());
  CreateSegments();
  const GrowId second = Grow(job);
  GrowMapped(job, 1, second, "no");
  EXPECT_THAT(ToldOnReopening(job, 0),
              ElementsAre(std::pair(first.value, true), std::pair(second.value, false)));
  // Its acknowledgement, too, was taken.
  EXPECT_TRUE(StatusOf(GrowMapped(job, 0, first)).ok());
  EXPECT_TRUE(absl::IsAborted(StatusOf(GrowMapped(job, 0, second))));
}
TEST_F(MissedGrowthTest, TheLastOneIsToldOnce) {
  const TestJob job = ReadyJob(1);
  EXPECT_THAT(ToldOnReopening(job, 0), IsEmpty());
  AskAll(job, 0, TooBig());
  CreateSegments();
  const GrowId grow = Grow(job);
  GrowMapped(job, 0, grow);
  EXPECT_THAT(ToldOnReopening(job, 0), ElementsAre(std::pair(grow.value, true)));
}
TEST_F(MissedGrowthTest, OneThatIsBeingMappedIsAnnouncedAgain) {
  const TestJob job = ReadyJob(1);
  AskAll(job, 0, TooBig());
  CreateSegments();
  ASSERT_THAT(Watched<SegmentsAdded>(job.sessions[0]), SizeIs(1));
  Watch(job.sessions[0], job.id);
  EXPECT_THAT(Watched<SegmentsAdded>(job.sessions[0]), SizeIs(2));
}

}  // namespace
}  // namespace iris::server
