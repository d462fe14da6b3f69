// Calls that wait for each other without end.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/job.h"
#include "server/job/teams.h"
#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(FindStuckTest, ARankThatIsNotBlockedEndsTheWaitForIt) {
  EXPECT_THAT(FindStuck({}), IsEmpty());
  EXPECT_THAT(FindStuck({{0, {1}}}), IsEmpty());
  EXPECT_THAT(FindStuck({{0, {1}}, {1, {2}}}), IsEmpty());
  EXPECT_THAT(FindStuck({{0, {1}}, {1, {}}}), IsEmpty()) << "nobody is missing in 1's call";
}
TEST(FindStuckTest, ACycleIsStuckWithAllThatNeedIt) {
  EXPECT_THAT(FindStuck({{0, {1}}, {1, {0}}}), ElementsAre(0, 1));
  EXPECT_THAT(FindStuck({{2, {0}}, {0, {1}}, {1, {2}}}), ElementsAre(0, 1, 2));
  EXPECT_THAT(FindStuck({{0, {1}}, {1, {0}}, {3, {1, 7}}, {4, {7}}}), ElementsAre(0, 1, 3));
}

class StuckTest : public MachineTest {
 protected:
  // Asks from the rank's only thread.
  CallId Alone(const TestJob& job, size_t rank, uint64_t k, Operation op,
               TeamId team = kWorldTeam) {
    const CallId call = NewCall();
    Do(OperateCall{
        job.sessions[rank], call, {job.id, team, k, absl::ZeroDuration(), std::move(op), true}});
    return call;
  }
  CallId Await(const TestJob& job, size_t rank, std::vector<Rank> missing, uint64_t moment = 0,
               TeamId team = kWorldTeam) {
    const CallId call = NewCall();
    Do(AwaitBarrierCall{job.sessions[rank],
                        call,
                        {job.id, team, /*epoch=*/3, std::move(missing), true, moment, false}});
    return call;
  }
  // The rank is asked to look again, and reports the ranks that it then misses.
  CallId LookAgain(const TestJob& job, size_t rank, CallId asked, std::vector<Rank> missing,
                   TeamId team = kWorldTeam) {
    const auto answer = ResultOf<BarrierAnswer>(asked);
    EXPECT_FALSE(answer.cannot_end);
    EXPECT_NE(answer.moment, 0u);
    return Await(job, rank, std::move(missing), answer.moment, team);
  }
  void ExpectStuck(CallId call, const std::string& text) {
    if (!Answered(call)) {
      ADD_FAILURE() << "still waits";
      return;
    }
    const auto* answer = std::get_if<BarrierAnswer>(&replies_[call].result);
    if (answer != nullptr) {
      EXPECT_TRUE(answer->cannot_end);
      EXPECT_THAT(answer->text, HasSubstr(text));
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(call))) << StatusOf(call);
      EXPECT_THAT(StatusOf(call).message(), HasSubstr(text));
      EXPECT_FALSE(Refused(call)) << "an outcome, which consumes k";
    }
  }
  TeamId MakeTeam(const TestJob& job, uint64_t k) {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < job.size(); ++rank) ranks.push_back(rank);
    return ResultOf<OperationResult>(AskAll(job, k, CreateTeamOp{ranks})[0]).team->id;
  }
};

constexpr char kBoth[] =
    "it cannot end, because ranks wait for each other: rank 0 (pid 100) is in host barrier #3, "
    "rank 1 (pid 101) is in allocate #0: make these calls in the same order on all "
    "ranks (`iris-ctl waits` shows who waits for whom)";

TEST_F(StuckTest, ABarrierAndAnAllocation) {
  const TestJob job = ReadyJob(2);
  const CallId allocate = Alone(job, 1, 0, AllocateOp{.bytes = 4096});
  const CallId asked = Await(job, 0, {1});
  EXPECT_FALSE(Answered(allocate)) << "rank 1 may have come to the barrier before it asked";
  const CallId barrier = LookAgain(job, 0, asked, {1});
  ExpectStuck(barrier, kBoth);
  ExpectStuck(allocate, kBoth);
  EXPECT_EQ(machine_->NextDeadline(), absl::InfiniteFuture());
  // The other rank's first operation had its outcome; the next one succeeds.
  EXPECT_THAT(StatusOf(Alone(job, 0, 0, AllocateOp{.bytes = 4096})).message(), HasSubstr(kBoth));
  EXPECT_TRUE(OneOutcome(AskAll(job, 1, AllocateOp{.bytes = 4096})).ok());
  EndJob(job);
}
TEST_F(StuckTest, TheBarrierFirst) {
  const TestJob job = ReadyJob(2);
  const CallId asked = Await(job, 0, {1});
  EXPECT_FALSE(Answered(asked));
  const CallId allocate = Alone(job, 1, 0, AllocateOp{.bytes = 4096});
  ExpectStuck(LookAgain(job, 0, asked, {1}), kBoth);
  ExpectStuck(allocate, kBoth);
  EXPECT_THAT(Events<event::OperationMismatch>(), SizeIs(2));
}
TEST_F(StuckTest, ARankThatHasComeMeanwhileIsFreed) {
  const TestJob job = ReadyJob(2);
  const CallId asked = Await(job, 0, {1});
  // Rank 1 has passed that barrier, and rank 0 is about to notice.
  const CallId allocate = Alone(job, 1, 0, AllocateOp{.bytes = 4096});
  EXPECT_TRUE(Answered(asked));
  const CallId second = Alone(job, 0, 0, AllocateOp{.bytes = 4096});
  EXPECT_TRUE(OneOutcome({allocate, second}).ok());
}
TEST_F(StuckTest, OperationsOfTwoTeamsInTheOppositeOrder) {
  const TestJob job = ReadyJob(2);
  const TeamId team = MakeTeam(job, 0);
  const CallId first = Alone(job, 0, 1, AllocateOp{.bytes = 4096});
  EXPECT_FALSE(Answered(first));
  const CallId second = Alone(job, 1, 0, AllocateOp{.bytes = 8192}, team);
  const std::string text = absl::StrCat(
      "rank 0 (pid 100) is in allocate #1, rank 1 "
      "(pid 101) is in allocate #0 of team ",
      team);
  ExpectStuck(first, text);
  ExpectStuck(second, text);
}
TEST_F(StuckTest, BarriersOfTwoTeamsInTheOppositeOrder) {
  const TestJob job = ReadyJob(2);
  const TeamId team = MakeTeam(job, 0);
  const CallId first = Await(job, 0, {1});
  const CallId second = Await(job, 1, {0}, 0, team);
  const CallId first_again = LookAgain(job, 0, first, {1});
  ExpectStuck(LookAgain(job, 1, second, {0}, team), "rank 1 (pid 101) is in host barrier #3 of");
  ExpectStuck(first_again, "rank 0 (pid 100) is in host barrier #3, rank 1");
}
TEST_F(StuckTest, ThreeRanks) {
  const TestJob job = ReadyJob(3);
  const TeamId a = ResultOf<OperationResult>(AskAll(job, 0, CreateTeamOp{{0, 1}})[0]).team->id;
  const TeamId b = ResultOf<OperationResult>(AskAll(job, 1, CreateTeamOp{{1, 2}})[1]).team->id;
  const TeamId c = ResultOf<OperationResult>(AskAll(job, 2, CreateTeamOp{{2, 0}})[2]).team->id;
  const CallId first = Alone(job, 0, 0, FreeOp{0}, a);
  const CallId second = Alone(job, 1, 0, AllocateOp{.bytes = 4096}, b);
  const CallId asked = Await(job, 2, {0}, 0, c);
  EXPECT_FALSE(Answered(first));
  const CallId third = LookAgain(job, 2, asked, {0}, c);
  for (const CallId call : {first, second, third}) {
    ExpectStuck(call, absl::StrCat("rank 2 (pid 102) is in host barrier #3 of team ", c));
  }
}
TEST_F(StuckTest, ARankThatComputesIsWaitedFor) {
  const TestJob job = ReadyJob(3);
  const CallId asked = Await(job, 0, {1, 2});
  const CallId allocate = Alone(job, 1, 0, AllocateOp{.bytes = 4096});
  const CallId barrier = LookAgain(job, 0, asked, {1, 2});  // stuck with rank 1, as it turns out
  ExpectStuck(barrier, "rank 1 (pid 101) is in allocate #0");
  ExpectStuck(allocate, "rank 0 (pid 100) is in host barrier #3");
  // But the wait for a rank in no call goes on.
  EXPECT_FALSE(Answered(Await(job, 0, {2})));
  EXPECT_FALSE(Answered(Alone(job, 1, 1, AllocateOp{.bytes = 4096})));
}
TEST_F(StuckTest, ARankWithOtherThreadsIsWaitedFor) {
  const TestJob job = ReadyJob(2);
  const CallId allocate = Ask(job, 1, 0, AllocateOp{.bytes = 4096});  // of one of several threads
  const CallId barrier = Await(job, 0, {1});
  EXPECT_FALSE(Answered(barrier));
  EXPECT_FALSE(Answered(allocate));
}
TEST_F(StuckTest, ARankInTwoCallsIsWaitedFor) {
  const TestJob job = ReadyJob(2);
  const TeamId team = MakeTeam(job, 0);
  Alone(job, 1, 1, AllocateOp{.bytes = 4096});
  Alone(job, 1, 0, AllocateOp{.bytes = 4096}, team);
  EXPECT_FALSE(Answered(Await(job, 0, {1})));
}
TEST_F(StuckTest, ARetryFromAnotherThreadIsWaitedFor) {
  const TestJob job = ReadyJob(2);
  Alone(job, 1, 0, AllocateOp{.bytes = 4096});
  Ask(job, 1, 0, AllocateOp{.bytes = 4096});
  EXPECT_FALSE(Answered(Await(job, 0, {1})));
}
TEST_F(StuckTest, ACallThatNobodyWaitsForHoldsNobody) {
  const TestJob job = ReadyJob(2);
  Do(CallCancelled{Alone(job, 1, 0, AllocateOp{.bytes = 4096})});
  EXPECT_FALSE(Answered(Await(job, 0, {1})));
}
TEST_F(StuckTest, TimeOutsSayWhereTheMissingAre) {
  const TestJob job = ReadyJob(3);
  const CallId barrier = Await(job, 0, {1, 2});
  const CallId late = Ask(job, 1, 0, AllocateOp{.bytes = 4096}, kWorldTeam, absl::Seconds(5));
  const CallId up = NewCall();
  Do(AwaitBarrierCall{job.sessions[0], up, {job.id, kWorldTeam, 3, {1, 2}, true, 0, true}});
  EXPECT_EQ(ResultOf<BarrierAnswer>(up).text,
            "rank 1 (pid 101) is in allocate #0 (`iris-ctl waits` shows who waits for "
            "whom)");
  Advance(absl::Seconds(5));
  EXPECT_THAT(StatusOf(late).message(),
              HasSubstr("missing: rank 0 (pid 100), rank 2 (pid 102); rank 0 (pid 100) is in host "
                        "barrier #3 (`iris-ctl waits` shows"));
  Do(CallCancelled{barrier});
  const CallId alone = Ask(job, 1, 1, AllocateOp{.bytes = 4096}, kWorldTeam, absl::Seconds(5));
  Advance(absl::Seconds(5));
  EXPECT_THAT(StatusOf(alone).message(), HasSubstr("none of them is in a call that irisd knows"));
}
TEST_F(StuckTest, BarriersThatAreNoneAreRefused) {
  const TestJob job = ReadyJob(2);
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Await(job, 0, {0}))));
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Await(job, 0, {7}))));
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Await(job, 0, {1, 1}))));
  EXPECT_TRUE(absl::IsNotFound(StatusOf(Await(job, 0, {1}, 0, 99))));
  EXPECT_TRUE(absl::IsNotFound(StatusOf(Await(job, 0, {1}, 0, OwnTeam(1)))));
  for (size_t i = 0; i < kMaxWaitingCallsPerRank; ++i) Await(job, 0, {1});
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Await(job, 0, {1}))));
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Await({job.id, {Open(900)}}, 0, {1}))));
  Leave(job, 0);
  EndJob(job);
}
TEST_F(StuckTest, AJobThatBreaksLeavesNoBarrier) {
  const TestJob job = ReadyJob(2);
  const CallId barrier = Await(job, 0, {1});
  Gone(job.sessions[1]);
  EXPECT_TRUE(StatusOf(barrier).ok()) << "the status page says the rest";
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Await(job, 0, {1}))));
  Leave(job, 0);
}

}  // namespace
}  // namespace iris::server
