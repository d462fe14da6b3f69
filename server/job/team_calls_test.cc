// Allocate, free, broadcast and teams: one outcome per (team, k).
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

AllocateOp Bytes(uint64_t bytes) { return {.bytes = bytes}; }
SplitOp Split(Rank rank, int32_t color, int32_t key) { return {{{rank, color, key}}}; }

class TeamCallsTest : public MachineTest {
 protected:
  TeamInfo CreateTeam(const TestJob& job, uint64_t k, const std::vector<Rank>& ranks) {
    const auto calls = AskAll(job, k, CreateTeamOp{ranks});
    EXPECT_TRUE(OneOutcome(calls).ok()) << OneOutcome(calls);
    return ResultOf<OperationResult>(calls[ranks[0]]).team.value_or(TeamInfo());
  }
};

using AllocateTest = TeamCallsTest;

TEST_F(AllocateTest, SameOffsetForEveryRank) {
  const TestJob job = ReadyJob(3);
  const auto calls = AskAll(job, 0, Bytes(1000));
  EXPECT_TRUE(OneOutcome(calls).ok());
  EXPECT_EQ(OffsetOf(calls[0]), 8 * kKiB);  // behind the world's barrier area
  EXPECT_EQ(OffsetOf(calls[1]), OffsetOf(calls[0]));
  EXPECT_EQ(OffsetOf(calls[2]), OffsetOf(calls[0]));
  EXPECT_EQ(ResultOf<OperationResult>(calls[0]).heap_bytes, kHeap);
}
TEST_F(AllocateTest, WaitsForEveryMember) {
  const TestJob job = ReadyJob(2);
  const CallId first = Ask(job, 0, 0, Bytes(1));
  EXPECT_FALSE(Answered(first));
  Ask(job, 1, 0, Bytes(1));
  EXPECT_TRUE(StatusOf(first).ok());
}
TEST_F(AllocateTest, AlignmentsBelowTheSmallestMeanTheSame) {
  const TestJob job = ReadyJob(3);
  const CallId a = Ask(job, 0, 0, AllocateOp{.bytes = 1, .alignment_bytes = 0});
  const CallId b = Ask(job, 1, 0, AllocateOp{.bytes = 1, .alignment_bytes = 16});
  const CallId c = Ask(job, 2, 0, AllocateOp{.bytes = 1, .alignment_bytes = 1024});
  EXPECT_TRUE(OneOutcome({a, b, c}).ok()) << OneOutcome({a, b, c});
}
TEST_F(AllocateTest, AlignsInTheHeap) {
  const TestJob job = ReadyJob(1);
  EXPECT_EQ(OffsetOf(Ask(job, 0, 0, AllocateOp{.bytes = 1, .alignment_bytes = 256 * kKiB})),
            256 * kKiB);
}
TEST_F(AllocateTest, MismatchFailsEveryRankAndSaysWhoAskedForWhat) {
  const TestJob job = ReadyJob(3);
  const CallId a = Ask(job, 0, 0, AllocateOp{.bytes = 100, .name = "x"});
  const CallId b = Ask(job, 1, 0, AllocateOp{.bytes = 200, .name = "x"});
  const CallId c = Ask(job, 2, 0, AllocateOp{.bytes = 100, .name = "x"});
  const absl::Status status = OneOutcome({a, b, c});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("rank 0 (pid 100) asked for allocate(bytes=100"));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 (pid 101) asked for allocate(bytes=200"));
  EXPECT_EQ(Events<event::OperationMismatch>().size(), 1u);
  // k is consumed on every rank, and the heap is as it was.
  EXPECT_TRUE(OneOutcome(AskAll(job, 1, Bytes(1))).ok());
  EXPECT_THAT(TheJob().allocations, SizeIs(2));
}
TEST_F(AllocateTest, EveryFieldMustAgree) {
  const TestJob job = ReadyJob(2);
  const AllocateOp base{.bytes = 8, .alignment_bytes = 1024, .name = "n", .tensor = {"f32", {2}}};
  AllocateOp alignment = base, name = base, dtype = base, shape = base;
  alignment.alignment_bytes = 2048;
  name.name = "m";
  dtype.tensor.dtype = "i32";
  shape.tensor.shape = {2, 1};
  uint64_t k = 0;
  for (const AllocateOp& other : {alignment, name, dtype, shape}) {
    const CallId a = Ask(job, 0, k, base);
    const CallId b = Ask(job, 1, k, other);
    EXPECT_TRUE(absl::IsInvalidArgument(OneOutcome({a, b}))) << k;
    ++k;
  }
}
TEST_F(AllocateTest, AnotherOperationIsAMismatch) {
  const TestJob job = ReadyJob(2);
  const CallId a = Ask(job, 0, 0, Bytes(8));
  const CallId b = Ask(job, 1, 0, FreeOp{0});
  EXPECT_TRUE(absl::IsInvalidArgument(OneOutcome({a, b})));
  EXPECT_THAT(StatusOf(a).message(), HasSubstr("free(offset=0)"));
}
TEST_F(AllocateTest, MalformedRequestsConsumeTheirK) {
  const TestJob job = ReadyJob(2);
  const std::vector<std::pair<AllocateOp, std::string>> bad = {
      {{.bytes = 1, .alignment_bytes = 3}, "alignment 3"},
      {{.bytes = 1, .alignment_bytes = 3000}, "alignment 3000"},
      {{.bytes = 1, .alignment_bytes = 2 * wire::kMaxAlignmentBytes}, "alignment 2147483648"},
      {{.bytes = 1, .name = std::string(129, 'x')}, "129 bytes"},
      {{.bytes = 1, .name = "a\nb"}, "control characters"},
      {{.bytes = 1, .name = "iris.sync.0"}, "irisd's own"},
      {{.bytes = 1, .tensor = {"a type of many names", {}}}, "the dtype"},
      {{.bytes = 1, .tensor = {"f32", std::vector<uint64_t>(17, 1)}}, "17 dimensions"},
  };
  uint64_t k = 0;
  for (const auto& [op, text] : bad) {
    const CallId a = Ask(job, 0, k, op);
    EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(a))) << text;
    EXPECT_THAT(StatusOf(a).message(), HasSubstr(text));
    EXPECT_THAT(StatusOf(a).message(), HasSubstr("rank 0 (pid 100)"));
    const CallId b = Ask(job, 1, k, Bytes(1));
    EXPECT_EQ(StatusOf(a), StatusOf(b));
    ++k;
  }
  EXPECT_TRUE(OneOutcome(AskAll(job, k, Bytes(1))).ok());
}
TEST_F(AllocateTest, ZeroBytesHaveAnOffsetOfTheirOwn) {
  const TestJob job = ReadyJob(1);
  const uint64_t first = OffsetOf(Ask(job, 0, 0, Bytes(0)));
  EXPECT_NE(OffsetOf(Ask(job, 0, 1, Bytes(0))), first);
}
TEST_F(AllocateTest, HugeSizesAreRefused) {
  const TestJob job = ReadyJob(1);
  uint64_t k = 0;
  for (const uint64_t bytes : {~uint64_t{0}, ~uint64_t{0} - 1023, uint64_t{1} << 63, 4 * kHeap}) {
    EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Ask(job, 0, k++, Bytes(bytes))))) << bytes;
  }
  EXPECT_TRUE(StatusOf(Ask(job, 0, k, Bytes(1))).ok());
}
TEST_F(AllocateTest, LiveNamesAreUnique) {
  const TestJob job = ReadyJob(1);
  const uint64_t offset = OffsetOf(Ask(job, 0, 0, AllocateOp{.bytes = 1, .name = "x"}));
  EXPECT_TRUE(absl::IsAlreadyExists(StatusOf(Ask(job, 0, 1, AllocateOp{.bytes = 1, .name = "x"}))));
  EXPECT_TRUE(StatusOf(Ask(job, 0, 2, FreeOp{offset})).ok());
  EXPECT_TRUE(StatusOf(Ask(job, 0, 3, AllocateOp{.bytes = 1, .name = "x"})).ok());
}
TEST_F(AllocateTest, UnnamedAllocationsMayBeMany) {
  const TestJob job = ReadyJob(1);
  EXPECT_TRUE(StatusOf(Ask(job, 0, 0, Bytes(1))).ok());
  EXPECT_TRUE(StatusOf(Ask(job, 0, 1, Bytes(1))).ok());
}

using OutcomeTest = TeamCallsTest;

TEST_F(OutcomeTest, RetryRepeatsTheOutcomeAndAllocatesNothing) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, Bytes(1));
  const CallId retry = Ask(job, 1, 0, Bytes(1));
  EXPECT_EQ(OffsetOf(retry), OffsetOf(calls[1]));
  EXPECT_THAT(TheJob().allocations, SizeIs(2));
}
TEST_F(OutcomeTest, RetryOfAWaitingCallWaitsBesideIt) {
  const TestJob job = ReadyJob(2);
  const CallId first = Ask(job, 0, 0, Bytes(1));
  const CallId retry = Ask(job, 0, 0, Bytes(1));
  EXPECT_FALSE(Answered(retry));
  Ask(job, 1, 0, Bytes(1));
  EXPECT_TRUE(OneOutcome({first, retry}).ok());
}
TEST_F(OutcomeTest, WaitingRetriesAreBounded) {
  const TestJob job = ReadyJob(2);
  for (int i = 0; i < 8; ++i) EXPECT_FALSE(Answered(Ask(job, 0, 0, Bytes(1))));
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Ask(job, 0, 0, Bytes(1)))));
}
TEST_F(OutcomeTest, AheadOfItselfIsRefusedAndConsumesNothing) {
  const TestJob job = ReadyJob(2);
  const CallId ahead = Ask(job, 0, 1, Bytes(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(ahead)));
  EXPECT_THAT(StatusOf(ahead).message(), HasSubstr("its next is #0"));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Ask(job, 0, ~uint64_t{0}, Bytes(1)))));
  EXPECT_TRUE(OneOutcome(AskAll(job, 0, Bytes(1))).ok());
}
TEST_F(OutcomeTest, NextCallBeforeTheOutcomeIsRefused) {
  const TestJob job = ReadyJob(2);
  const CallId first = Ask(job, 0, 0, Bytes(1));
  const CallId next = Ask(job, 0, 1, Bytes(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(next)));
  EXPECT_THAT(StatusOf(next).message(), HasSubstr("#0 has no outcome yet"));
  Ask(job, 1, 0, Bytes(1));
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_TRUE(OneOutcome(AskAll(job, 1, Bytes(1))).ok());
}
TEST_F(OutcomeTest, ForgottenOutcomeIsSaidToBeSo) {
  const TestJob job = ReadyJob(1);
  for (uint64_t k = 0; k < 65; ++k) Ask(job, 0, k, BroadcastOp{});
  EXPECT_TRUE(StatusOf(Ask(job, 0, 1, BroadcastOp{})).ok());
  EXPECT_TRUE(absl::IsOutOfRange(StatusOf(Ask(job, 0, 0, BroadcastOp{}))));
}
TEST_F(OutcomeTest, MemberThatComesTooLateIsToldAndGetsIntoStepAgain) {
  const TestJob job = ReadyJob(2);
  for (uint64_t k = 0; k < 66; ++k) {
    Ask(job, 0, k, Bytes(1));
    Advance(absl::Minutes(2));
  }
  for (uint64_t k = 0; k < 2; ++k) {
    const CallId late = Ask(job, 1, k, Bytes(1));
    EXPECT_FALSE(Refused(late));
    EXPECT_EQ(OutcomeOf(late).k, k);
    EXPECT_TRUE(absl::IsOutOfRange(StatusOf(late))) << StatusOf(late);
  }
  for (uint64_t k = 2; k < 66; ++k) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(Ask(job, 1, k, Bytes(1)))));
  }
  EXPECT_TRUE(OneOutcome(AskAll(job, 66, Bytes(1))).ok());
}
TEST_F(OutcomeTest, FailedOperationIsNoRefusalOfTheCall) {
  const TestJob job = ReadyJob(2);
  const auto failed = AskAll(job, 0, FreeOp{.offset_bytes = 12345});
  for (const CallId call : failed) {
    EXPECT_FALSE(Refused(call));
    EXPECT_EQ(OutcomeOf(call).k, 0u);
    EXPECT_TRUE(absl::IsInvalidArgument(OutcomeOf(call).status));
  }
  EXPECT_TRUE(Refused(Ask(job, 0, 7, Bytes(1))));
  EXPECT_TRUE(Refused(Ask(job, 0, 0, Bytes(1), /*team=*/9)));
}
TEST_F(OutcomeTest, CancelledCallStaysAskedFor) {
  const TestJob job = ReadyJob(2);
  const CallId first = Ask(job, 0, 0, Bytes(1));
  Do(CallCancelled{first});
  const CallId second = Ask(job, 1, 0, Bytes(1));
  EXPECT_FALSE(Answered(first));
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_EQ(OffsetOf(Ask(job, 0, 0, Bytes(1))), OffsetOf(second));
}
TEST_F(OutcomeTest, TimeOutNamesTheMissingAndConsumesK) {
  const TestJob job = ReadyJob(3);
  const CallId a = Ask(job, 1, 0, Bytes(1), kWorldTeam, absl::Seconds(2));
  Advance(absl::Seconds(2));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(a)));
  EXPECT_THAT(StatusOf(a).message(), HasSubstr("missing: rank 0 (pid 100), rank 2 (pid 102)"));
  EXPECT_EQ(Events<event::OperationTimeout>().size(), 1u);
  // The late ones get the same outcome; then all go on together.
  const CallId b = Ask(job, 0, 0, Bytes(1));
  const CallId c = Ask(job, 2, 0, Bytes(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(OneOutcome({a, b, c})));
  EXPECT_TRUE(OneOutcome(AskAll(job, 1, Bytes(1))).ok());
}
TEST_F(OutcomeTest, TheEarliestDeadlineCounts) {
  const TestJob job = ReadyJob(3);
  const CallId a = Ask(job, 0, 0, Bytes(1), kWorldTeam, absl::Seconds(10));
  Ask(job, 1, 0, Bytes(1), kWorldTeam, absl::Seconds(3));
  Advance(absl::Seconds(3));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(a)));
  // Rank 0, which has more time, learns whose timeout it was, and that this rank is not missing.
  EXPECT_THAT(StatusOf(a).message(),
              HasSubstr("time is up after 3s, the timeout of rank 1 (pid 101), which was over "
                        "first: missing: rank 2 (pid 102)"));
}
TEST_F(OutcomeTest, TheEarliestDeadlineIsNotAlwaysTheLatestCallers) {
  const TestJob job = ReadyJob(3);
  const CallId a = Ask(job, 0, 0, Bytes(1), kWorldTeam, absl::Seconds(3));
  Ask(job, 1, 0, Bytes(1), kWorldTeam, absl::Seconds(10));
  Advance(absl::Seconds(3));
  EXPECT_THAT(StatusOf(a).message(), HasSubstr("after 3s, the timeout of rank 0 (pid 100)"));
}
TEST_F(OutcomeTest, DefaultAndLongestTimeOut) {
  const TestJob job = ReadyJob(2);
  Ask(job, 0, 0, Bytes(1));
  EXPECT_EQ(machine_->NextDeadline(), clock_.Now() + absl::Seconds(60));
  Advance(absl::Seconds(60));
  Ask(job, 0, 1, Bytes(1), kWorldTeam, absl::InfiniteDuration());
  EXPECT_EQ(machine_->NextDeadline(), clock_.Now() + absl::Hours(1));
}
TEST_F(OutcomeTest, NotBeforeTheJobIsReady) {
  const TestJob job = MappingJob(2);
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Ask(job, 0, 0, Bytes(1)))));
}
TEST_F(OutcomeTest, AnothersJobIsRefused) {
  TestJob job = ReadyJob(1);
  job.sessions[0] = Open(200);
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Ask(job, 0, 0, Bytes(1)))));
}
TEST_F(OutcomeTest, UnknownTeamIsNotFound) {
  const TestJob job = ReadyJob(1);
  EXPECT_TRUE(absl::IsNotFound(StatusOf(Ask(job, 0, 0, Bytes(1), 5))));
}

using AbortTest = TeamCallsTest;

TEST_F(AbortTest, HangUpAnswersEveryPendingCall) {
  const TestJob job = ReadyJob(3);
  const CallId a = Ask(job, 0, 0, Bytes(1));
  const CallId b = Ask(job, 1, 0, Bytes(1));
  HangUp(job.sessions[2]);
  const absl::Status status = OneOutcome({a, b});
  EXPECT_TRUE(absl::IsAborted(status));
  EXPECT_THAT(status.message(), HasSubstr("rank 2 (pid 102) hung up (its process may still run)"));
}
TEST_F(AbortTest, LaterCallsOfABrokenJobFailTheSame) {
  const TestJob job = ReadyJob(3);
  Gone(job.sessions[2]);
  const CallId a = Ask(job, 0, 0, Bytes(1));
  const CallId b = Ask(job, 1, 0, Bytes(2));
  EXPECT_TRUE(absl::IsAborted(OneOutcome({a, b})));
  EXPECT_THAT(StatusOf(a).message(), HasSubstr("rank 2 (pid 102) died"));
  EXPECT_TRUE(absl::IsAborted(StatusOf(Ask(job, 0, 1, Bytes(1)))));
}
TEST_F(AbortTest, OutcomesFromBeforeTheBreakAreRepeated) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, Bytes(1));
  Gone(job.sessions[1]);
  EXPECT_EQ(OffsetOf(Ask(job, 0, 0, Bytes(1))), OffsetOf(calls[0]));
}
TEST_F(AbortTest, DeathAbortsTeamsWithoutTheDeadRankToo) {
  const TestJob job = ReadyJob(3);
  const TeamInfo team = CreateTeam(job, 0, {0, 1});
  const CallId call = Ask(job, 0, 0, Bytes(1), team.id);
  Gone(job.sessions[2]);
  EXPECT_TRUE(absl::IsAborted(StatusOf(call)));
}
TEST_F(AbortTest, LeavingAbortsOnlyWhatNeedsTheRank) {
  const TestJob job = ReadyJob(3);
  const TeamInfo team = CreateTeam(job, 0, {0, 1});
  const CallId world = Ask(job, 0, 1, Bytes(1));
  const CallId small = Ask(job, 0, 0, Bytes(1), team.id);
  Leave(job, 2);
  EXPECT_TRUE(absl::IsAborted(StatusOf(world)));
  EXPECT_THAT(StatusOf(world).message(), HasSubstr("rank 2 (pid 102) has left"));
  EXPECT_FALSE(Answered(small));
  Ask(job, 1, 0, Bytes(1), team.id);
  EXPECT_TRUE(StatusOf(small).ok());
  EXPECT_TRUE(absl::IsAborted(StatusOf(Ask(job, 1, 1, Bytes(1)))));
}
TEST_F(AbortTest, WhoLeavesGetsItsPendingCallsBack) {
  const TestJob job = ReadyJob(2);
  const CallId call = Ask(job, 1, 0, Bytes(1));
  Leave(job, 1);
  EXPECT_TRUE(absl::IsAborted(StatusOf(call)));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Ask(job, 1, 1, Bytes(1)))));
}

using FreeTest = TeamCallsTest;

TEST_F(FreeTest, RangeIsReusedOnlyWhenEveryRankHasFreed) {
  const TestJob job = ReadyJob(2);
  const TeamInfo left = CreateTeam(job, 0, {0});
  const uint64_t offset = OffsetOf(AskAll(job, 1, Bytes(4 * kKiB))[0]);
  Ask(job, 0, 2, FreeOp{offset});
  // Another team allocates meanwhile: not the range that rank 1 still uses.
  const uint64_t other = OffsetOf(Ask(job, 0, 0, Bytes(4 * kKiB), left.id));
  EXPECT_NE(other, offset);
  Ask(job, 1, 2, FreeOp{offset});
  EXPECT_EQ(OffsetOf(Ask(job, 0, 1, Bytes(4 * kKiB), left.id)), offset);
}
TEST_F(FreeTest, WhatIsNotAllocatedIsRefused) {
  const TestJob job = ReadyJob(2);
  const uint64_t offset = OffsetOf(AskAll(job, 0, Bytes(4 * kKiB))[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(OneOutcome(AskAll(job, 1, FreeOp{offset + 1024}))));
  EXPECT_TRUE(absl::IsInvalidArgument(OneOutcome(AskAll(job, 2, FreeOp{~uint64_t{0}}))));
  EXPECT_TRUE(OneOutcome(AskAll(job, 3, FreeOp{offset})).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(OneOutcome(AskAll(job, 4, FreeOp{offset}))));
}
TEST_F(FreeTest, BarrierAreasAreNotTheClients) {
  const TestJob job = ReadyJob(1);
  const absl::Status status = StatusOf(Ask(job, 0, 0, FreeOp{0}));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("iris.sync.0"));
}
TEST_F(FreeTest, AnotherTeamsAllocationIsRefused) {
  const TestJob job = ReadyJob(2);
  const TeamInfo team = CreateTeam(job, 0, {0});
  const uint64_t offset = OffsetOf(Ask(job, 0, 0, Bytes(1), team.id));
  const absl::Status status = OneOutcome(AskAll(job, 1, FreeOp{offset}));
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(), HasSubstr("was allocated by team 1"));
}
TEST_F(FreeTest, RetriedFreeDoesNotFreeTheNextOwner) {
  const TestJob job = ReadyJob(1);
  const uint64_t offset = OffsetOf(Ask(job, 0, 0, Bytes(1)));
  Ask(job, 0, 1, FreeOp{offset});
  EXPECT_EQ(OffsetOf(Ask(job, 0, 2, Bytes(1))), offset);
  EXPECT_TRUE(StatusOf(Ask(job, 0, 1, FreeOp{offset})).ok());  // the outcome of k=1
  EXPECT_THAT(TheJob().allocations, SizeIs(2));
}

using BroadcastTest = TeamCallsTest;

TEST_F(BroadcastTest, EveryRankGetsTheRootsValue) {
  const TestJob job = ReadyJob(3);
  const CallId a = Ask(job, 0, 0, BroadcastOp{1, "not the root's"});
  const CallId b = Ask(job, 1, 0, BroadcastOp{1, "hello"});
  const CallId c = Ask(job, 2, 0, BroadcastOp{1, ""});
  for (const CallId call : {a, b, c}) EXPECT_EQ(ResultOf<OperationResult>(call).value, "hello");
}
TEST_F(BroadcastTest, RootsMustAgree) {
  const TestJob job = ReadyJob(2);
  const CallId a = Ask(job, 0, 0, BroadcastOp{0, "x"});
  const CallId b = Ask(job, 1, 0, BroadcastOp{1, "y"});
  EXPECT_TRUE(absl::IsInvalidArgument(OneOutcome({a, b})));
}
TEST_F(BroadcastTest, RootMustBeAMember) {
  const TestJob job = ReadyJob(2);
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Ask(job, 0, 0, BroadcastOp{2, ""}))));
}
TEST_F(BroadcastTest, OneMiBIsTheLargestValue) {
  const TestJob job = ReadyJob(1);
  EXPECT_TRUE(
      StatusOf(Ask(job, 0, 0, BroadcastOp{0, std::string(wire::kMaxBroadcastBytes, 'v')})).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      StatusOf(Ask(job, 0, 1, BroadcastOp{0, std::string(wire::kMaxBroadcastBytes + 1, 'v')}))));
}
TEST_F(BroadcastTest, ValuesMayBeAnyBytes) {
  const TestJob job = ReadyJob(1);
  const std::string value("\0\xff\n", 3);
  EXPECT_EQ(ResultOf<OperationResult>(Ask(job, 0, 0, BroadcastOp{0, value})).value, value);
}
TEST_F(BroadcastTest, ValueIsKeptForWhoMayStillRetry) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, BroadcastOp{0, "value"});
  Ask(job, 0, 1, BroadcastOp{0, "next"});
  EXPECT_EQ(ResultOf<OperationResult>(Ask(job, 1, 0, BroadcastOp{0, ""})).value, "value");
  // Once every rank has asked for the next operation, it is forgotten.
  Ask(job, 1, 1, BroadcastOp{0, ""});
  AskAll(job, 2, Bytes(1));
  EXPECT_TRUE(absl::IsOutOfRange(StatusOf(Ask(job, 1, 0, BroadcastOp{0, ""}))));
}
TEST_F(BroadcastTest, ValuesThatNobodyFetchesAreBounded) {
  // Rank 0 broadcasts on many teams that rank 1 never answers.
  const TestJob job = ReadyJob(2);
  const std::string value(wire::kMaxBroadcastBytes, 'v');
  std::vector<TeamInfo> teams;
  for (uint64_t k = 0; k < 65; ++k) teams.push_back(CreateTeam(job, k, {0, 1}));
  for (int i = 0; i < 64; ++i)
    EXPECT_FALSE(Answered(Ask(job, 0, 0, BroadcastOp{0, value}, teams[i].id)));
  const CallId refused = Ask(job, 0, 0, BroadcastOp{0, value}, teams[64].id);
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(refused)));
  // Nothing was consumed: when there is room, the same k works.
  Ask(job, 1, 0, BroadcastOp{0, ""}, teams[0].id);
  Ask(job, 0, 1, BroadcastOp{1, ""}, teams[0].id);
  Ask(job, 1, 1, BroadcastOp{1, ""}, teams[0].id);
  EXPECT_FALSE(Answered(Ask(job, 0, 0, BroadcastOp{0, value}, teams[64].id)));
}

using TeamTest = TeamCallsTest;

TEST_F(TeamTest, MembersGetTheTeamAndOthersNone) {
  const TestJob job = ReadyJob(3);
  const auto calls = AskAll(job, 0, CreateTeamOp{{2, 0}});
  const auto mine = ResultOf<OperationResult>(calls[0]).team;
  ASSERT_TRUE(mine.has_value());
  EXPECT_EQ(mine->id, 1u);
  EXPECT_THAT(mine->ranks, ElementsAre(2, 0));
  EXPECT_EQ(mine->barrier_slot, 1u);
  EXPECT_EQ(mine->sync_offset_bytes, 8 * kKiB);
  EXPECT_FALSE(ResultOf<OperationResult>(calls[1]).team.has_value());
  EXPECT_EQ(TheJob().n_teams, 2u);
  EXPECT_EQ(TheJob().allocations[1].name, "iris.sync.1");
}
TEST_F(TeamTest, RetryByAnOutsiderGetsNoTeamEither) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, CreateTeamOp{{0}});
  EXPECT_FALSE(ResultOf<OperationResult>(Ask(job, 1, 0, CreateTeamOp{{0}})).team.has_value());
  EXPECT_TRUE(ResultOf<OperationResult>(Ask(job, 0, 0, CreateTeamOp{{0}})).team.has_value());
}
TEST_F(TeamTest, BadListsAreRefused) {
  const TestJob job = ReadyJob(2);
  const std::vector<std::vector<Rank>> bad = {{},         {0, 0},    {2},
                                              {~Rank{0}}, {0, 1, 0}, std::vector<Rank>(100000, 0)};
  uint64_t k = 0;
  for (const auto& ranks : bad) {
    const absl::Status status = StatusOf(Ask(job, 0, k, CreateTeamOp{ranks}));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_LT(status.message().size(), 1024u);
    EXPECT_EQ(StatusOf(Ask(job, 1, k, CreateTeamOp{ranks})), status);
    ++k;
  }
}
TEST_F(TeamTest, OrderIsPartOfTheRequest) {
  const TestJob job = ReadyJob(2);
  const CallId a = Ask(job, 0, 0, CreateTeamOp{{0, 1}});
  const CallId b = Ask(job, 1, 0, CreateTeamOp{{1, 0}});
  EXPECT_TRUE(absl::IsInvalidArgument(OneOutcome({a, b})));
}
TEST_F(TeamTest, SplitMakesATeamOfEachColor) {
  const TestJob job = ReadyJob(64);
  std::vector<CallId> calls;
  for (Rank rank = 0; rank < 64; ++rank) {
    const int32_t color = rank == 5 ? -1 : static_cast<int32_t>(rank % 8);
    calls.push_back(Ask(job, rank, 0, Split(rank, color, -static_cast<int32_t>(rank / 32))));
  }
  EXPECT_TRUE(OneOutcome(calls).ok());
  EXPECT_FALSE(ResultOf<OperationResult>(calls[5]).team.has_value());
  for (Rank rank = 0; rank < 64; ++rank) {
    if (rank == 5) continue;
    const auto team = ResultOf<OperationResult>(calls[rank]).team;
    ASSERT_TRUE(team.has_value()) << rank;
    EXPECT_EQ(team->id, 1 + rank % 8);  // in the order of the colors
    // Equal keys keep the order of the parent.
    std::vector<Rank> ranks;
    for (const Rank first : {32u, 0u}) {
      for (Rank r = first + rank % 8; r < first + 32; r += 8) {
        if (r != 5) ranks.push_back(r);
      }
    }
    EXPECT_EQ(team->ranks, ranks);
  }
  EXPECT_EQ(TheJob().n_teams, 9u);
  // A retry has the same outcome.
  EXPECT_EQ(ResultOf<OperationResult>(Ask(job, 9, 0, Split(9, 0, 0))).team->id, 2u);
}
TEST_F(TeamTest, SplitOfWhichNobodyWantsATeam) {
  const TestJob job = ReadyJob(2);
  const CallId a = Ask(job, 0, 0, Split(0, -1, 0));
  const CallId b = Ask(job, 1, 0, Split(1, -7, 0));
  EXPECT_TRUE(OneOutcome({a, b}).ok());
  EXPECT_EQ(TheJob().n_teams, 1u);
}
TEST_F(TeamTest, SplitSaysNothingOfOtherRanks) {
  const TestJob job = ReadyJob(2);
  const CallId a = Ask(job, 0, 0, SplitOp{{{0, 3, 0}, {1, 3, 0}, {77, 3, 0}}});
  const CallId b = Ask(job, 1, 0, SplitOp{{{0, 4, 0}, {1, 4, 0}}});
  EXPECT_TRUE(OneOutcome({a, b}).ok());
  EXPECT_THAT(ResultOf<OperationResult>(a).team->ranks, ElementsAre(0));
  EXPECT_THAT(ResultOf<OperationResult>(b).team->ranks, ElementsAre(1));
}
TEST_F(TeamTest, SplitWithoutAColorOrWithTwo) {
  const TestJob job = ReadyJob(1);
  const absl::Status none = StatusOf(Ask(job, 0, 0, SplitOp{{{1, 3, 0}}}));
  EXPECT_TRUE(absl::IsInvalidArgument(none));
  EXPECT_THAT(none.message(), HasSubstr("names no color"));
  const absl::Status two = StatusOf(Ask(job, 0, 1, SplitOp{{{0, 3, 0}, {0, 4, 0}}}));
  EXPECT_TRUE(absl::IsInvalidArgument(two));
  EXPECT_THAT(two.message(), HasSubstr("rank 0 is named twice"));
}
TEST_F(TeamTest, SplitAndAnotherCallAreAMismatchOnEveryRank) {
  const TestJob job = ReadyJob(3);
  const CallId a = Ask(job, 0, 0, Split(0, 1, 0));
  const CallId b = Ask(job, 1, 0, BroadcastOp{0, ""});
  const CallId c = Ask(job, 2, 0, Split(2, 1, 0));
  const absl::Status status = OneOutcome({a, b, c});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(status.message(),
              HasSubstr("split #0 (team 0): the ranks differ: rank 0 (pid 100) asked for split, "
                        "rank 1 (pid 101) asked for broadcast(root=0)"));
}
TEST_F(TeamTest, SplitMakesAllTeamsOrNone) {
  JoinSpec spec = Spec(0, 2);
  spec.team_sync_bytes = 1 * kKiB;
  const TestJob job = ReadyJob(2, spec);
  uint64_t k = 0;
  while (k < wire::kMaxTeamsPerJob - 2) CreateTeam(job, k++, {0});
  const size_t n_allocations = TheJob().allocations.size();
  const CallId a = Ask(job, 0, k, Split(0, 0, 0));
  const CallId b = Ask(job, 1, k++, Split(1, 1, 0));
  const absl::Status status = OneOutcome({a, b});
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("has 255 teams and no slot for 2 others: destroy some"));
  EXPECT_THAT(TheJob().allocations, SizeIs(n_allocations));
  EXPECT_EQ(TheJob().n_teams, wire::kMaxTeamsPerJob - 1);
  // One still has room, and an id that none had before.
  EXPECT_EQ(CreateTeam(job, k, {0}).id, wire::kMaxTeamsPerJob - 1);
}
TEST_F(TeamTest, TeamsCountTheirOwnK) {
  const TestJob job = ReadyJob(3);
  const TeamInfo team = CreateTeam(job, 0, {1, 2});
  const CallId a = Ask(job, 1, 0, Bytes(1), team.id);
  const CallId b = Ask(job, 2, 0, Bytes(1), team.id);
  EXPECT_TRUE(OneOutcome({a, b}).ok());
  EXPECT_EQ(TheJob().allocations[2].team, team.id);
}
TEST_F(TeamTest, OutsidersAreRefused) {
  const TestJob job = ReadyJob(2);
  const TeamInfo team = CreateTeam(job, 0, {1});
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Ask(job, 0, 0, Bytes(1), team.id))));
}
TEST_F(TeamTest, TeamsOfTeams) {
  const TestJob job = ReadyJob(3);
  const TeamInfo outer = CreateTeam(job, 0, {0, 2});
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Ask(job, 0, 0, CreateTeamOp{{1}}, outer.id))));
  Ask(job, 2, 0, CreateTeamOp{{1}}, outer.id);
  const CallId a = Ask(job, 0, 1, CreateTeamOp{{2}}, outer.id);
  const CallId b = Ask(job, 2, 1, CreateTeamOp{{2}}, outer.id);
  EXPECT_TRUE(OneOutcome({a, b}).ok());
  EXPECT_THAT(ResultOf<OperationResult>(b).team->ranks, ElementsAre(2));
}
TEST_F(TeamTest, DestroyFreesTheAreaAndRepeatsItsOutcome) {
  const TestJob job = ReadyJob(2);
  const TeamInfo team = CreateTeam(job, 0, {0, 1});
  const CallId a = Ask(job, 0, 0, DestroyTeamOp{3}, team.id);
  const CallId b = Ask(job, 1, 0, DestroyTeamOp{4}, team.id);
  EXPECT_TRUE(OneOutcome({a, b}).ok());
  EXPECT_THAT(TheJob().allocations, SizeIs(1));
  EXPECT_EQ(TheJob().n_teams, 1u);
  EXPECT_TRUE(StatusOf(Ask(job, 0, 0, DestroyTeamOp{3}, team.id)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Ask(job, 0, 1, Bytes(1), team.id))));
}
TEST_F(TeamTest, PastTeamsAreForgottenInTime) {
  const TestJob job = ReadyJob(1);
  for (uint64_t k = 0; k < 17; ++k) Ask(job, 0, 0, DestroyTeamOp{}, CreateTeam(job, k, {0}).id);
  EXPECT_TRUE(absl::IsNotFound(StatusOf(Ask(job, 0, 0, DestroyTeamOp{}, 1))));
  EXPECT_TRUE(StatusOf(Ask(job, 0, 0, DestroyTeamOp{}, 2)).ok());
}
TEST_F(TeamTest, TheWorldIsNotDestroyed) {
  const TestJob job = ReadyJob(1);
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Ask(job, 0, 0, DestroyTeamOp{}))));
  EXPECT_TRUE(StatusOf(Ask(job, 0, 1, Bytes(1))).ok());
}
TEST_F(TeamTest, LiveAllocationsComeFirst) {
  const TestJob job = ReadyJob(1);
  const TeamInfo team = CreateTeam(job, 0, {0});
  const uint64_t offset = OffsetOf(Ask(job, 0, 0, Bytes(1), team.id));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Ask(job, 0, 1, DestroyTeamOp{}, team.id))));
  EXPECT_TRUE(StatusOf(Ask(job, 0, 2, FreeOp{offset}, team.id)).ok());
  EXPECT_TRUE(StatusOf(Ask(job, 0, 3, DestroyTeamOp{}, team.id)).ok());
}
TEST_F(TeamTest, ReusedSlotStartsBehindTheFurthestMember) {
  const TestJob job = ReadyJob(2);
  const TeamInfo first = CreateTeam(job, 0, {0, 1});
  Ask(job, 0, 0, DestroyTeamOp{41}, first.id);
  Ask(job, 1, 0, DestroyTeamOp{17}, first.id);
  const TeamInfo second = CreateTeam(job, 1, {0, 1});
  EXPECT_EQ(second.barrier_slot, first.barrier_slot);
  EXPECT_EQ(second.barrier_start_epoch, 42u);
  Ask(job, 0, 0, DestroyTeamOp{5}, second.id);  // behind its own start: not believed
  Ask(job, 1, 0, DestroyTeamOp{44}, second.id);
  EXPECT_EQ(CreateTeam(job, 2, {0}).barrier_start_epoch, 45u);
}
TEST_F(TeamTest, WildEpochCostsOnlyTheSlot) {
  const TestJob job = ReadyJob(1);
  const TeamInfo first = CreateTeam(job, 0, {0});
  Ask(job, 0, 0, DestroyTeamOp{0x7fffffff}, first.id);
  const TeamInfo second = CreateTeam(job, 1, {0});
  EXPECT_NE(second.barrier_slot, first.barrier_slot);
  EXPECT_EQ(second.barrier_start_epoch, 0u);
}
TEST_F(TeamTest, TeamsAreBounded) {
  JoinSpec spec = Spec(0, 1);
  spec.team_sync_bytes = 0;
  const TestJob job = ReadyJob(1, spec);
  uint64_t k = 0;
  for (; k < wire::kMaxTeamsPerJob - 1; ++k) CreateTeam(job, k, {0});
  const absl::Status status = StatusOf(Ask(job, 0, k, CreateTeamOp{{0}}));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  Ask(job, 0, 0, DestroyTeamOp{}, 7);
  EXPECT_EQ(CreateTeam(job, k + 1, {0}).barrier_slot, 7u);
}
TEST_F(TeamTest, NamesOfAreasAreNeverTaken) {
  const TestJob job = ReadyJob(1);
  CreateTeam(job, 0, {0});
  EXPECT_TRUE(absl::IsInvalidArgument(
      StatusOf(Ask(job, 0, 1, AllocateOp{.bytes = 1, .name = "iris.sync.2"}))));
  EXPECT_EQ(CreateTeam(job, 2, {0}).id, 2u);
}

class RoomTest : public MachineTest {
 protected:
  const absl::Status short_ = absl::ResourceExhaustedError("irisd is short of memory");
  OperateCall Call(const TestJob& job, size_t rank, uint64_t k, Operation op) {
    OperateCall call{job.sessions[rank], NewCall(), {job.id, kWorldTeam, k, {}, std::move(op)}};
    call.spec.room = short_;
    return call;
  }
};

TEST_F(RoomTest, AnOperationForWhichThereIsNoneFailsAlikeForAllMembers) {
  const TestJob job = ReadyJob(2);
  const OperateCall first = Call(job, 0, 0, AllocateOp{1024, 1024, "a"});
  Do(first);
  const absl::Status told = OutcomeOf(first.call).status;
  EXPECT_TRUE(absl::IsResourceExhausted(told)) << told;
  EXPECT_THAT(std::string(told.message()), HasSubstr("irisd is short of memory"));
  // The other rank may well be served meanwhile, with the same answer.
  EXPECT_EQ(OutcomeOf(Ask(job, 1, 0, AllocateOp{1024, 1024, "a"})).status, told);
}

TEST_F(RoomTest, WhatIsBegunIsCompletedAndWhatGivesBackIsDone) {
  const TestJob job = ReadyJob(2);
  const CallId first = Ask(job, 0, 0, AllocateOp{1024, 1024, "a"});
  const OperateCall second = Call(job, 1, 0, AllocateOp{1024, 1024, "a"});
  Do(second);
  EXPECT_TRUE(OutcomeOf(first).status.ok());
  const uint64_t offset_bytes = OutcomeOf(second.call).result.offset_bytes;
  Do(Call(job, 0, 1, FreeOp{offset_bytes}));
  const OperateCall freed = Call(job, 1, 1, FreeOp{offset_bytes});
  Do(freed);
  EXPECT_TRUE(OutcomeOf(freed.call).status.ok());
}

TEST_F(RoomTest, ANewJobIsRefusedAndOneThatFormsIsJoined) {
  JoinSpec spec = Spec(0, 2);
  spec.room = short_;
  const CallId refused = Join(Open(1), spec);
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(refused)));
  EXPECT_THAT(std::string(StatusOf(refused).message()), HasSubstr("join job 'train': irisd is"));
  spec.job = "other";
  spec.room = absl::OkStatus();
  EXPECT_FALSE(Answered(Join(Open(2), spec)));
  spec.rank = 1;
  spec.room = short_;
  EXPECT_FALSE(Answered(Join(Open(3), spec)));
}

}  // namespace
}  // namespace iris::server
