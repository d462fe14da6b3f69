// Tests what counts against a user's quota: memory of present ranks, and memory that a process was
// sent and may still have mapped, until that process has ended.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kPid = 100;

class QuotaTest : public MachineTest {
 protected:
  JobLimits Limits() override {
    JobLimits limits;
    limits.max_heap_bytes_per_uid = 3 * kHeap;
    return limits;
  }

  JoinSpec Named(const std::string& name, int32_t rank = 0, int32_t n_ranks = 1) const {
    JoinSpec spec = Spec(rank, n_ranks);
    spec.job = name;
    return spec;
  }
  // A job of one rank, of a process that joins, maps and leaves.
  void JoinAndLeave(SessionId session, const std::string& name) {
    const CallId call = Join(session, Named(name));
    CreateSegments();
    const TestJob job = {ResultOf<JoinResult>(call).job, {session}};
    EXPECT_TRUE(StatusOf(Mapped(job, 0)).ok());
    EXPECT_TRUE(StatusOf(Leave(job, 0)).ok());
    DropSegments();
    EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u) << "irisd gives it back all the same";
  }
  void ExpectRoom(uint64_t bytes, uint32_t uid = 1000) {
    const SessionId session = Open(999, {uid});
    JoinSpec spec = Named("room", 0, 2);
    spec.heap_bytes = bytes;
    EXPECT_FALSE(Answered(Join(session, spec))) << bytes;
    JoinSpec more = Named("more", 0, 2);
    more.heap_bytes = kGranularity;
    const SessionId other = Open(999, {uid});
    EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Join(other, more)))) << bytes;
    Gone(session);
    Gone(other);
    DropSegments();
  }
};

class ChangedQuotaTest : public QuotaTest {
 protected:
  JobLimits Limits() override { return JobLimits(); }
  void SetQuota(uint64_t bytes) {
    JobLimits limits;
    limits.max_heap_bytes_per_uid = bytes;
    Do(LimitsChanged{limits});
  }
};

TEST_F(ChangedQuotaTest, AFirstQuotaCountsWhatRanksHaveAndWhatTheyLeaveBehind) {
  const TestJob job = ReadyJob(2);
  SetQuota(3 * kHeap);
  ExpectRoom(kHeap);
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(StatusOf(Leave(job, rank)).ok());
  DropSegments();
  ExpectRoom(kHeap);  // their processes live
  for (const SessionId session : job.sessions) Gone(session);
  ExpectRoom(3 * kHeap);
}

TEST_F(ChangedQuotaTest, WithoutAQuotaNothingThatWasGivenBackIsCharged) {
  SetQuota(kHeap);
  const SessionId session = Open(kPid);
  JoinAndLeave(session, "a");
  EXPECT_EQ(machine_->kept_bytes(), kHeap);
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Join(session, Named("b")))));
  SetQuota(0);
  EXPECT_EQ(machine_->kept_bytes(), 0u);
  JoinAndLeave(session, "b");
}

TEST_F(ChangedQuotaTest, ALowerQuotaTakesNothingAway) {
  const TestJob job = ReadyJob(2);
  SetQuota(kHeap);
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 2 * kHeap);
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Join(Open(999), Named("b")))));
  EndJob(job);
}

TEST_F(QuotaTest, AProcessThatLeftIsChargedUntilItIsGone) {
  const SessionId session = Open(kPid);
  for (int i = 0; i < 3; ++i) JoinAndLeave(session, "a");
  const CallId call = Join(session, Named("a"));
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(call)));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("uid 1000 holds 3 MiB of the 3 MiB"));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("3 MiB of them are of ranks that left"));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("have ended: pid 100"));
  ExpectRoom(3 * kHeap, /*uid=*/2000);
  Gone(session);
  ExpectRoom(3 * kHeap);
  EXPECT_THAT(machine_->Sessions(), IsEmpty());
}

TEST_F(QuotaTest, ClosingTheSessionsDoesNotEndTheCharge) {
  // A session for each job, as the client library makes them.
  SessionId last;
  for (int i = 0; i < 3; ++i) {
    const SessionId session = Open(kPid);
    JoinAndLeave(session, "a");
    HangUp(session);
    EXPECT_THAT(machine_->Sessions(), SizeIs(1)) << "one session watches the process, not more";
    EXPECT_TRUE(machine_->Sessions()[0].ending);
    last = machine_->Sessions()[0].id;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Join(Open(kPid + 1), Named("b")))));
  Gone(last);
  ExpectRoom(3 * kHeap);
}

TEST_F(QuotaTest, ASessionOfAProcessThatHoldsNothingEndsWhenItCloses) {
  const SessionId none = Open(kPid);
  HangUp(none);
  EXPECT_THAT(machine_->Sessions(), IsEmpty());
  // One that only joined was sent nothing.
  const SessionId joined = Open(kPid);
  Join(joined, Named("a", 0, 2));
  HangUp(joined);
  EXPECT_THAT(machine_->Sessions(), IsEmpty());
  DropSegments();
  ExpectRoom(3 * kHeap);
}

TEST_F(QuotaTest, EveryProcessOfAJobMayHaveAllOfItsMemory) {
  const TestJob job = ReadyJob(2);  // pids 100 and 101
  Leave(job, 0);
  HangUp(job.sessions[0]);  // its process lives on, and the job too
  EXPECT_THAT(machine_->Sessions(), SizeIs(2));
  Leave(job, 1);
  HangUp(job.sessions[1]);
  Gone(job.sessions[1]);
  DropSegments();
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
  ExpectRoom(kHeap);  // the first has the second's memory mapped, too
  Gone(job.sessions[0]);
  ExpectRoom(3 * kHeap);
}

TEST_F(QuotaTest, ARankThatDiedKeepsNothing) {
  const TestJob job = ReadyJob(2);
  Leave(job, 0);
  Gone(job.sessions[0]);
  Gone(job.sessions[1]);
  DropSegments();
  ExpectRoom(3 * kHeap);
  EXPECT_THAT(machine_->Sessions(), IsEmpty());
}

TEST_F(QuotaTest, AJobThatFailedToMapWasSentAllTheSame) {
  const TestJob job = MappingJob(2);
  Mapped(job, 0, 0, "no");
  DropSegments();
  EXPECT_TRUE(machine_->Jobs().empty());
  ExpectRoom(kHeap);
  HangUp(job.sessions[0]);
  HangUp(job.sessions[1]);
  EXPECT_THAT(machine_->Sessions(), SizeIs(2));
  Gone(job.sessions[0]);
  ExpectRoom(kHeap);
  Gone(job.sessions[1]);
  ExpectRoom(3 * kHeap);
}

TEST_F(QuotaTest, AGrowthThatFailedWasSentAllTheSame) {
  const TestJob job = ReadyJob(1);
  Ask(job, 0, 0, GrowOp{kHeap});
  CreateSegments();
  GrowMapped(job, 0, Watched<SegmentsAdded>(job.sessions[0]).back().grow, "no");
  DropSegments();
  EXPECT_EQ(machine_->ledger().used_bytes_total(), kHeap);
  ExpectRoom(kHeap);
  Leave(job, 0);
  DropSegments();
  ExpectRoom(kHeap);
  Gone(job.sessions[0]);
  ExpectRoom(3 * kHeap);
}

TEST_F(QuotaTest, WhatARankAllocatesAloneCountsByTheHeapsThatGrowForIt) {
  const TestJob job = ReadyJob(2);  // two heaps of kHeap
  const auto alone = [&](size_t rank, uint64_t k, uint64_t bytes) {
    return Ask(job, rank, k, AllocateOp{.bytes = bytes}, OwnTeam(static_cast<Rank>(rank)));
  };
  EXPECT_TRUE(StatusOf(alone(1, 0, kHeap / 2)).ok());
  const CallId big = alone(1, 1, kHeap);
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(big))) << StatusOf(big);
  EXPECT_THAT(StatusOf(big).message(), HasSubstr("rank 1 alone"));
  EXPECT_THAT(StatusOf(big).message(), HasSubstr("uid 1000 holds"));
  // Nobody else is concerned.
  EXPECT_TRUE(StatusOf(alone(0, 0, 1000)).ok());
  EXPECT_TRUE(OneOutcome(AskAll(job, 0, AllocateOp{.bytes = 1000})).ok());
}

TEST_F(QuotaTest, MemoryThatIsBeingDroppedIsWaitedForOnlyIfThatHelps) {
  const TestJob job = ReadyJob(1);
  Leave(job, 0);  // not dropped yet
  const CallId small = Join(Open(kPid + 5), Named("b", 0, 2));
  EXPECT_FALSE(Answered(small));
  JoinSpec large = Named("c", 0, 2);
  large.heap_bytes = 2 * kHeap;
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Join(Open(kPid + 6), large))));
  DropSegments();
}

TEST_F(QuotaTest, WhatIsWithinTheQuotaIsNotTalkedAbout) {
  JoinSpec spec = Named("a");
  spec.heap_bytes = 4 * kHeap;
  const CallId call = Join(Open(kPid), spec);
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("uid 1000 holds 0 bytes of the 3 MiB"));
  EXPECT_THAT(StatusOf(call).message(), Not(HasSubstr("left")));
}

// Without a quota nothing is counted: a user who makes a thousand contexts is charged for none.
TEST_F(MachineTest, WithoutAQuotaASessionThatLeftEndsWhenItCloses) {
  const TestJob job = ReadyJob(1);
  Leave(job, 0);
  HangUp(job.sessions[0]);
  EXPECT_THAT(machine_->Sessions(), IsEmpty());
}

}  // namespace
}  // namespace iris::server
