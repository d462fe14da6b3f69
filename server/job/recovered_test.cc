// Tests how another irisd starts with the state of one that ended.
#include "server/job/inputs.h"
#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

class RecoveredTest : public MachineTest {
 protected:
  // A restarted irisd finds everything again except these.
  struct Lost {
    std::vector<SessionId> sessions;
    std::vector<SegmentId> memory;
    bool pages = false;
  };
  Effects Recover() { return Recover(Lost()); }
  Effects Recover(const Lost& lost) {
    Recovered input{.generation = 2};
    const auto keep = [](auto id, const auto& gone) {
      return std::count(gone.begin(), gone.end(), id) == 0;
    };
    for (const SessionSnapshot& session : machine_->Sessions()) {
      if (keep(session.id, lost.sessions)) input.sessions.push_back(session.id);
    }
    for (const SegmentId id : memory_) {
      if (keep(id, lost.memory)) input.memory.push_back(id);
    }
    for (const JobSnapshot& job : machine_->Jobs()) {
      if (!lost.pages) input.pages.push_back(job.id);
    }
    effects_.clear();
    to_create_.clear();
    to_drop_.clear();
    return Do(input);
  }
  // That CreateSegments creates, from now on.
  void NoteMemory() {
    for (const CreateSegment& create : to_create_) memory_.push_back(create.id);
  }
  TestJob Ready(int n_ranks) {
    const TestJob job = ReadyJob(n_ranks);
    for (const auto& rank : TheJob().ranks) {
      for (const SegmentInfo& segment : rank.segments) memory_.push_back(segment.id);
    }
    return job;
  }

  std::vector<SegmentId> memory_;
};

TEST_F(RecoveredTest, CallsAreForgottenAndMadeAgain) {
  const TestJob job = Ready(2);
  const CallId lost = Ask(job, 0, 0, AllocateOp{.bytes = 100});
  Recover();
  EXPECT_FALSE(Answered(lost));
  const CallId again = Ask(job, 0, 0, AllocateOp{.bytes = 100});
  const CallId other = Ask(job, 1, 0, AllocateOp{.bytes = 100});
  EXPECT_EQ(OffsetOf(again), OffsetOf(other));
  EXPECT_FALSE(Answered(lost));

  // An outcome whose answer was lost is sent again.
  Recover();
  const CallId third = Ask(job, 1, 0, AllocateOp{.bytes = 100});
  EXPECT_EQ(OffsetOf(third), OffsetOf(other));
  EXPECT_EQ(TheJob().allocations.size(), 2u);  // with the world's barrier area
  const std::vector<Event> told = Events<event::Recovered>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(TextOf(told[0]), "generation=2 jobs=1 sessions=2 lost=0");
  EndJob(job);
}

TEST_F(RecoveredTest, NoDeadlinePassesBeforeCallsCanBeRepeated) {
  const TestJob job = Ready(2);
  (void)Ask(job, 0, 0, AllocateOp{.bytes = 100}, kWorldTeam, absl::Seconds(5));
  clock_.Advance(absl::Seconds(20));  // there was no irisd
  Recover();
  Advance(kRepeatsWithin - absl::Seconds(1));
  const CallId again = Ask(job, 0, 0, AllocateOp{.bytes = 100}, kWorldTeam, absl::Seconds(5));
  EXPECT_FALSE(Answered(again));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(again))) << StatusOf(again);
}

TEST_F(RecoveredTest, AJoinWaitsForItsRepetition) {
  const SessionId first = Open(100), second = Open(101);
  JoinSpec spec = Spec(0, 2);
  spec.number = 1;
  (void)Join(first, spec);
  NoteMemory();
  CreateSegments();
  Recover();
  Advance(kRepeatsWithin - absl::Seconds(1));
  const CallId again = Join(first, spec);
  Advance(absl::Seconds(30));
  JoinSpec other = Spec(1, 2);
  other.number = 1;
  const CallId last = Join(second, other);
  CreateSegments();
  EXPECT_TRUE(StatusOf(again).ok()) << StatusOf(again);
  EXPECT_TRUE(StatusOf(last).ok()) << StatusOf(last);
}

TEST_F(RecoveredTest, AJoinThatIsNotRepeatedIsWithdrawn) {
  JoinSpec spec = Spec(0, 2);
  spec.number = 1;
  (void)Join(Open(100), spec);
  NoteMemory();
  CreateSegments();
  Recover();
  Advance(absl::Minutes(2));
  EXPECT_TRUE(machine_->Jobs().empty());
}

TEST_F(RecoveredTest, WhoHasNotMappedIsSentDescriptorsAgain) {
  const TestJob job = MappingJob(2);
  for (const auto& rank : TheJob().ranks) memory_.push_back(rank.segments[0].id);
  (void)Mapped(job, 0);
  Recover();
  const auto sent = All<SendDescriptors>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].session, job.sessions[1]);
  EXPECT_TRUE(sent[0].pages);
  EXPECT_EQ(sent[0].segments.size(), 2u);
  const CallId again = Mapped(job, 0), other = Mapped(job, 1);
  EXPECT_TRUE(StatusOf(again).ok()) << StatusOf(again);
  EXPECT_TRUE(StatusOf(other).ok()) << StatusOf(other);
}

TEST_F(RecoveredTest, AGrowthGoesOn) {
  const TestJob job = Ready(2);
  for (size_t rank = 0; rank < 2; ++rank) (void)Ask(job, rank, 0, GrowOp{kGranularity});
  NoteMemory();
  CreateSegments();
  const GrowId grow = Watched<SegmentsAdded>(job.sessions[0]).at(0).grow;
  (void)GrowMapped(job, 0, grow);
  Recover();
  const auto sent = All<SendDescriptors>();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].session, job.sessions[1]);
  EXPECT_FALSE(sent[0].pages);
  const CallId again = Ask(job, 0, 0, GrowOp{kGranularity});
  EXPECT_TRUE(StatusOf(GrowMapped(job, 0, grow)).ok());
  EXPECT_TRUE(StatusOf(GrowMapped(job, 1, grow)).ok());
  EXPECT_TRUE(StatusOf(again).ok()) << StatusOf(again);
}

TEST_F(RecoveredTest, MemoryThatWasBeingMadeIsMadeOrTaken) {
  (void)Join(Open(100), Spec(0, 1));
  ASSERT_EQ(to_create_.size(), 1u);
  const CreateSegment create = to_create_[0];
  Recover();
  ASSERT_EQ(to_create_.size(), 1u);  // again
  EXPECT_EQ(to_create_[0].id, create.id);
  EXPECT_EQ(to_create_[0].bytes, create.bytes);
  EXPECT_TRUE(All<SendDescriptors>().empty());
  memory_.push_back(create.id);
  Recover();
  EXPECT_TRUE(to_create_.empty());
  EXPECT_EQ(All<SendDescriptors>().size(), 1u);
}

TEST_F(RecoveredTest, MemoryThatWasBeingDroppedIsDropped) {
  const TestJob job = Ready(2);
  for (const SessionId session : job.sessions) Gone(session);
  memory_.pop_back();  // the one is gone, and irisd died before the machine knew
  Recover();
  EXPECT_EQ(to_drop_.size(), 1u);
  DropSegments();
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
}

TEST_F(RecoveredTest, StatesOfRanksAreWrittenAgain) {
  const TestJob job = Ready(3);
  Recover();
  for (const SetRankState& state : All<SetRankState>()) {
    EXPECT_EQ(state.state, RankState::kReady);
    EXPECT_FALSE(state.abort);
  }
  EXPECT_EQ(All<SetRankState>().size(), 3u);
  Gone(job.sessions[1]);
  Recover();
  const auto states = All<SetRankState>();
  ASSERT_EQ(states.size(), 3u);
  EXPECT_FALSE(states[0].abort);
  EXPECT_EQ(states[1].state, RankState::kDead);
  EXPECT_TRUE(states[1].abort);
}

TEST_F(RecoveredTest, ALostSessionCanBeResumed) {
  const TestJob job = Ready(2);
  Recover({.sessions = {job.sessions[0]}});
  EXPECT_TRUE(All<NotifyWatch>().empty());
  EXPECT_EQ(TheJob().state, JobState::kReady);
  EXPECT_EQ(TheJob().ranks[0].state, RankState::kReady);
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Ask(job, 0, 0, AllocateOp{.bytes = 1}))));
  const CallId waits = Ask(job, 1, 0, AllocateOp{.bytes = 100});
  Advance(kResumesWithin - absl::Seconds(1));
  TestJob now = job;
  now.sessions[0] = Open(100);
  EXPECT_TRUE(StatusOf(Resume(now.sessions[0], job, 0)).ok());
  const CallId other = Ask(now, 0, 0, AllocateOp{.bytes = 100});
  EXPECT_EQ(OffsetOf(waits), OffsetOf(other));
  Advance(absl::Minutes(1));
  EXPECT_EQ(TheJob().state, JobState::kReady);
}

TEST_F(RecoveredTest, WhoDoesNotResumeHasHungUp) {
  const TestJob job = Ready(2);
  Recover({.sessions = {job.sessions[0]}});
  Recover({.sessions = {job.sessions[0]}});  // and once more
  Advance(kResumesWithin);
  EXPECT_EQ(TheJob().state, JobState::kBroken);
  EXPECT_EQ(Watched<RankChanged>(job.sessions[1]).size(), 1u);
  EndJob(job);
}

TEST_F(RecoveredTest, WhoDiedMeanwhileIsTold) {
  const TestJob job = Ready(2);
  Recover({.sessions = {job.sessions[0]}});
  Gone(job.sessions[0]);
  EXPECT_EQ(TheJob().ranks[0].state, RankState::kDead);
  EXPECT_EQ(Watched<RankChanged>(job.sessions[1]).size(), 1u);
  EXPECT_EQ(machine_->NextDeadline(), absl::InfiniteFuture());
}

TEST_F(RecoveredTest, LostSessionsWithoutAJobEnd) {
  const SessionId lonely = Open(100), joins = Open(101);
  (void)Join(joins, Spec(0, 2));
  Recover({.sessions = {lonely, joins}});
  EXPECT_TRUE(machine_->Jobs().empty());
  EXPECT_EQ(All<ReleaseSession>().size(), 2u);
}

TEST_F(RecoveredTest, AJobThatLostMemoryBreaksAndIsTold) {
  const TestJob job = Ready(2);
  Recover({.memory = {TheJob().ranks[1].segments[0].id}});
  EXPECT_EQ(TheJob().state, JobState::kBroken);
  EXPECT_EQ(Events<event::MemoryLost>().size(), 1u);
  for (const SessionId session : job.sessions) {
    const auto told = Watched<RankChanged>(session);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told[0].reason,
              "the memory of rank 1 (pid 101) was lost when irisd was restarted: leave the job and "
              "join a new one");
  }
  const auto states = All<SetRankState>();
  EXPECT_TRUE(states.back().abort);
  EXPECT_TRUE(absl::IsAborted(StatusOf(Ask(job, 0, 0, AllocateOp{.bytes = 1}))));
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(StatusOf(Leave(job, rank)).ok());
  EXPECT_EQ(to_drop_.size(), 2u);
  DropSegments();
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
}

TEST_F(RecoveredTest, WhoMayResumeCanLoseItsMemoryToo) {
  const TestJob job = Ready(2);
  const SegmentId memory = TheJob().ranks[0].segments[0].id;
  Recover({.sessions = {job.sessions[0]}});
  Recover({.sessions = {job.sessions[0]}, .memory = {memory}});
  EXPECT_EQ(TheJob().state, JobState::kBroken);
  EXPECT_EQ(Watched<RankChanged>(job.sessions[1]).size(), 1u);
  EXPECT_EQ(machine_->NextDeadline(), absl::InfiniteFuture());
  TestJob now = job;
  now.sessions[0] = Open(100);
  EXPECT_TRUE(absl::IsAborted(StatusOf(Resume(now.sessions[0], job, 0))));
  EndJob(now);
}

TEST_F(RecoveredTest, PagesThatNobodyHasAreMadeAgain) {
  JoinSpec spec = Spec(0, 2);
  spec.number = 1;
  const SessionId session = Open(100);
  (void)Join(session, spec);
  Recover({.pages = true});
  EXPECT_EQ(All<CreatePages>().size(), 1u);
  EXPECT_EQ(machine_->Jobs().size(), 1u);
}

TEST_F(RecoveredTest, AJobWithoutItsPagesIsLost) {
  (void)Ready(2);
  Recover({.pages = true});
  EXPECT_TRUE(All<CreatePages>().empty());
  EXPECT_EQ(TheJob().state, JobState::kBroken);
}

TEST_F(RecoveredTest, AMappingJobThatLostMemoryFails) {
  const TestJob job = MappingJob(2);
  Recover();  // of no memory at all
  EXPECT_TRUE(machine_->Jobs().empty());
  EXPECT_TRUE(absl::IsAborted(StatusOf(Mapped(job, 0))));
}

}  // namespace
}  // namespace iris::server
