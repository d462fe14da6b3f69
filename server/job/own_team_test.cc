// What a rank allocates alone, publishes by name, and others open: operations of its own team.
#include <string>
#include <vector>

#include "server/job/event_text.h"
#include "server/job/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Code = absl::StatusCode;

class OwnTeamTest : public MachineTest {
 protected:
  // The rank's next operation of its own team.
  CallId Alone(const TestJob& job, size_t rank, Operation op) {
    return Ask(job, rank, next_k_[rank]++, std::move(op), OwnTeam(static_cast<Rank>(rank)));
  }
  uint64_t Allocate(const TestJob& job, size_t rank, const std::string& name,
                    uint64_t bytes = 1000) {
    return OffsetOf(Alone(job, rank, AllocateOp{.bytes = bytes, .name = name}));
  }
  // What rank opens; the test fails if it is not there.
  OpenedInfo Open(const TestJob& job, size_t rank, Rank owner, const std::string& name) {
    const auto result = ResultOf<OperationResult>(Alone(job, rank, OpenOp{owner, name}));
    EXPECT_TRUE(result.opened.has_value()) << name;
    return result.opened.value_or(OpenedInfo());
  }
  absl::Status Free(const TestJob& job, size_t rank, uint64_t offset) {
    return StatusOf(Alone(job, rank, FreeOp{offset}));
  }
  void ExpectFailure(CallId call, Code code, const std::string& text) {
    EXPECT_EQ(StatusOf(call).code(), code) << StatusOf(call);
    EXPECT_THAT(std::string(StatusOf(call).message()), HasSubstr(text));
    EXPECT_FALSE(Refused(call));
  }
  std::vector<AllocationSnapshot> Own() const {
    std::vector<AllocationSnapshot> own;
    for (const AllocationSnapshot& each : TheJob().allocations) {
      if (IsOwnTeam(each.team)) own.push_back(each);
    }
    return own;
  }

  std::map<size_t, uint64_t> next_k_;
};

TEST_F(OwnTeamTest, AllocatesAtOnceAndApartFromEverything) {
  const TestJob job = ReadyJob(3);
  const uint64_t one = Allocate(job, 1, "x");
  const uint64_t two = Allocate(job, 2, "x");
  EXPECT_NE(one, two);
  // The world's next range is behind both, at the same offset on every rank.
  const auto calls = AskAll(job, 0, AllocateOp{.bytes = 10});
  ASSERT_TRUE(OneOutcome(calls).ok()) << OneOutcome(calls);
  EXPECT_NE(OffsetOf(calls[0]), one);
  EXPECT_NE(OffsetOf(calls[0]), two);
  ASSERT_THAT(Own(), SizeIs(2));
  EXPECT_EQ(Own()[0].team, OwnTeam(1));
  EXPECT_EQ(Own()[1].team, OwnTeam(2));
  EXPECT_EQ(TheJob().n_teams, 1u);
  EXPECT_EQ(TheJob().allocated_bytes, 8 * kKiB + 3 * kKiB);
  EndJob(job);
}

TEST_F(OwnTeamTest, IsOpenedByTheNameOfItsRank) {
  const TestJob job = ReadyJob(3);
  const CallId early = Alone(job, 0, OpenOp{1, "x"});
  EXPECT_TRUE(StatusOf(early).ok());
  EXPECT_FALSE(ResultOf<OperationResult>(early).opened.has_value());
  EXPECT_THAT(Events<event::OperationFailed>(), IsEmpty());
  const uint64_t two = Allocate(job, 2, "x", 5);
  const CallId one = Alone(job, 1, AllocateOp{.bytes = 77, .name = "x", .tensor = {"f32", {}}});
  const OpenedInfo opened = Open(job, 0, 1, "x");
  EXPECT_EQ(opened.offset_bytes, OffsetOf(one));
  EXPECT_EQ(opened.bytes, 77u);
  EXPECT_EQ(opened.dtype, "f32");
  EXPECT_EQ(Open(job, 0, 2, "x").offset_bytes, two);
  EXPECT_EQ(Own()[0].n_open, 1u);
}

TEST_F(OwnTeamTest, NamesAreUniqueAmongWhatARankCanMeanByThem) {
  const TestJob job = ReadyJob(2);
  Allocate(job, 0, "x");
  ExpectFailure(Alone(job, 0, AllocateOp{.bytes = 1, .name = "x"}), Code::kAlreadyExists,
                "allocate (rank 0 alone, k=1): an allocation named 'x' is live");
  const auto shared = AskAll(job, 0, AllocateOp{.bytes = 1, .name = "x"});
  EXPECT_EQ(OneOutcome(shared).code(), Code::kAlreadyExists);
  EXPECT_TRUE(OneOutcome(AskAll(job, 1, AllocateOp{.bytes = 1, .name = "y"})).ok());
  ExpectFailure(Alone(job, 1, AllocateOp{.bytes = 1, .name = "y"}), Code::kAlreadyExists, "'y'");
  Allocate(job, 1, "x");
  Allocate(job, 1, "");
  Allocate(job, 1, "");
}

TEST_F(OwnTeamTest, WhatHasNoNameGetsOneLater) {
  const TestJob job = ReadyJob(2);
  const uint64_t offset = Allocate(job, 1, "");
  EXPECT_FALSE(ResultOf<OperationResult>(Alone(job, 0, OpenOp{1, "x"})).opened.has_value());
  EXPECT_TRUE(StatusOf(Alone(job, 1, PublishOp{offset, "x"})).ok());
  EXPECT_EQ(Own()[0].name, "x");
  EXPECT_EQ(Open(job, 0, 1, "x").offset_bytes, offset);
  // One name each, which nobody else has.
  ExpectFailure(Alone(job, 1, PublishOp{offset, "y"}), Code::kFailedPrecondition,
                "is published already, as 'x'");
  const uint64_t other = Allocate(job, 1, "");
  ExpectFailure(Alone(job, 1, PublishOp{other, "x"}), Code::kAlreadyExists, "'x' is live");
  ASSERT_TRUE(OneOutcome(AskAll(job, 0, AllocateOp{.bytes = 1, .name = "ours"})).ok());
  ExpectFailure(Alone(job, 1, PublishOp{other, "ours"}), Code::kAlreadyExists, "'ours' is live");
  // Only what is the rank's own, and is not freed.
  ExpectFailure(Alone(job, 0, PublishOp{other, "z"}), Code::kInvalidArgument,
                "rank 0 alone has allocated nothing at offset");
  ExpectFailure(Alone(job, 0, PublishOp{0, "z"}), Code::kInvalidArgument, "at offset 0");
  ASSERT_TRUE(Free(job, 1, offset).ok());
  ExpectFailure(Alone(job, 1, PublishOp{offset, "z"}), Code::kInvalidArgument, "nothing at offset");
  EXPECT_TRUE(StatusOf(Alone(job, 1, PublishOp{other, "x"})).ok());
  for (const std::string& name :
       {std::string(), std::string("iris.x"), std::string(129, 'x'), std::string("\xff")}) {
    ExpectFailure(Alone(job, 1, PublishOp{Allocate(job, 1, ""), name}), Code::kInvalidArgument,
                  "name");
  }
  EXPECT_EQ(OneOutcome(AskAll(job, 1, PublishOp{other, "z"})).code(), Code::kInvalidArgument);
}

TEST_F(OwnTeamTest, WhatIsFreedStaysForThoseWhoHaveItOpen) {
  const TestJob job = ReadyJob(3);
  const uint64_t offset = Allocate(job, 1, "x");
  Open(job, 0, 1, "x");
  Open(job, 0, 1, "x");
  Open(job, 2, 1, "x");
  ASSERT_TRUE(Free(job, 1, offset).ok());
  ASSERT_THAT(Own(), SizeIs(1));
  EXPECT_TRUE(Own()[0].freed);
  EXPECT_EQ(Own()[0].n_open, 2u);
  // The owner has nothing to free any more; nobody can open it; the name is free.
  ExpectFailure(Alone(job, 1, FreeOp{offset}), Code::kInvalidArgument, "is freed already");
  EXPECT_FALSE(ResultOf<OperationResult>(Alone(job, 0, OpenOp{1, "x"})).opened.has_value());
  const uint64_t next = Allocate(job, 1, "x");
  EXPECT_NE(next, offset);
  EXPECT_TRUE(Free(job, 0, offset).ok());
  EXPECT_TRUE(Free(job, 2, offset).ok());
  EXPECT_THAT(Own(), SizeIs(2));
  EXPECT_TRUE(Free(job, 0, offset).ok());
  ASSERT_THAT(Own(), SizeIs(1));
  EXPECT_EQ(Own()[0].offset_bytes, next);
  ExpectFailure(Alone(job, 0, FreeOp{offset}), Code::kInvalidArgument, "no live allocation");
  EXPECT_EQ(Open(job, 0, 1, "x").offset_bytes, next);
}

TEST_F(OwnTeamTest, WhoHasNotOpenedItCannotGiveItBack) {
  const TestJob job = ReadyJob(2);
  const uint64_t offset = Allocate(job, 1, "x");
  ExpectFailure(Alone(job, 0, FreeOp{offset}), Code::kInvalidArgument,
                "was allocated by rank 1 alone, and this rank has not opened it");
  const auto shared = AskAll(job, 0, FreeOp{offset});
  EXPECT_EQ(OneOutcome(shared).code(), Code::kInvalidArgument);
  const auto ours = AskAll(job, 1, AllocateOp{.bytes = 1});
  ExpectFailure(Alone(job, 0, FreeOp{OffsetOf(ours[0])}), Code::kInvalidArgument,
                "was allocated by team 0");
}

TEST_F(OwnTeamTest, WrongOpensSayWhy) {
  const TestJob job = ReadyJob(2);
  ASSERT_TRUE(OneOutcome(AskAll(job, 0, AllocateOp{.bytes = 1, .name = "ours"})).ok());
  const auto wrong = [&](const OpenOp& op, const std::string& text) {
    ExpectFailure(Alone(job, 0, op), Code::kInvalidArgument, text);
  };
  wrong({2, "x"}, "there is no rank 2 in a job of 2");
  wrong({~0u, "x"}, "there is no rank");
  wrong({0, "x"}, "use the address that it got then");
  wrong({1, ""}, "the name");
  wrong({1, std::string(129, 'x')}, "the name");
  wrong({1, "a\nb"}, "the name");
  wrong({1, "\xff"}, "the name");
  wrong({1, "ours"}, "was allocated by team 0 together");
  EXPECT_EQ(OneOutcome(AskAll(job, 1, OpenOp{1, "x"})).code(), Code::kInvalidArgument);
}

TEST_F(OwnTeamTest, DoesWhatConcernsOneRankAndNothingElse) {
  const TestJob job = ReadyJob(2);
  for (const Operation& op :
       {Operation(BroadcastOp{0, SharedBytes("v")}), Operation(CreateTeamOp{{0}}),
        Operation(DestroyTeamOp{}), Operation(GrowOp{1})}) {
    ExpectFailure(Alone(job, 0, op), Code::kInvalidArgument, "a rank alone allocates");
  }
  // Another rank's own team is not for others, and there is none of a rank that there is not.
  EXPECT_EQ(StatusOf(Ask(job, 0, 0, AllocateOp{.bytes = 1}, OwnTeam(1))).code(),
            Code::kPermissionDenied);
  EXPECT_EQ(StatusOf(Ask(job, 0, 0, AllocateOp{.bytes = 1}, OwnTeam(2))).code(), Code::kNotFound);
}

TEST_F(OwnTeamTest, ARetryDoesNothingTwice) {
  const TestJob job = ReadyJob(2);
  const uint64_t offset = Allocate(job, 1, "x");
  EXPECT_EQ(OffsetOf(Ask(job, 1, 0, AllocateOp{.bytes = 1000, .name = "x"}, OwnTeam(1))), offset);
  Open(job, 0, 1, "x");
  const auto again = ResultOf<OperationResult>(Ask(job, 0, 0, OpenOp{1, "x"}, OwnTeam(0)));
  EXPECT_EQ(again.opened.value_or(OpenedInfo()).offset_bytes, offset);
  ASSERT_TRUE(Free(job, 1, offset).ok());
  EXPECT_TRUE(Free(job, 0, offset).ok());
  EXPECT_THAT(Own(), IsEmpty());
}

TEST_F(OwnTeamTest, WhatARankHadOpenEndsWhenItLeaves) {
  const TestJob job = ReadyJob(3);
  const uint64_t offset = Allocate(job, 1, "x");
  Open(job, 0, 1, "x");
  ASSERT_TRUE(Free(job, 1, offset).ok());
  EXPECT_THAT(Own(), SizeIs(1));
  EXPECT_TRUE(StatusOf(Leave(job, 0)).ok());
  EXPECT_THAT(Own(), IsEmpty());
}

TEST_F(OwnTeamTest, WhatARankLeavesBehindStaysAndWhatItHasNotIsNotWaitedFor) {
  const TestJob job = ReadyJob(2);
  const uint64_t offset = Allocate(job, 1, "x");
  EXPECT_TRUE(StatusOf(Leave(job, 1)).ok());
  EXPECT_EQ(Open(job, 0, 1, "x").offset_bytes, offset);
  ExpectFailure(Alone(job, 0, OpenOp{1, "y"}), Code::kAborted,
                "rank 1 (pid 101) has left the job, and left nothing named 'y' behind");
  EXPECT_TRUE(StatusOf(Alone(job, 0, AllocateOp{.bytes = 1})).ok());
  EndJob(job);
}

TEST_F(OwnTeamTest, ADeathBreaksItLikeEverything) {
  const TestJob job = ReadyJob(2);
  Allocate(job, 1, "x");
  Gone(job.sessions[1]);
  const CallId open = Alone(job, 0, OpenOp{1, "x"});
  EXPECT_EQ(StatusOf(open).code(), Code::kAborted);
  EXPECT_THAT(std::string(StatusOf(open).message()), HasSubstr("rank 1 (pid 101)"));
  EndJob(job);
}

TEST_F(OwnTeamTest, GrowsTheHeapOfAllWhenItIsFull) {
  const TestJob job = ReadyJob(2);
  const CallId big = Alone(job, 1, AllocateOp{.bytes = kHeap, .name = "big"});
  EXPECT_FALSE(Answered(big));
  // What others allocate meanwhile, and what they open, does not wait.
  EXPECT_TRUE(OneOutcome(AskAll(job, 0, AllocateOp{.bytes = 1})).ok());
  EXPECT_TRUE(StatusOf(Alone(job, 0, OpenOp{1, "big"})).ok());
  CreateSegments();
  const auto added = Watched<SegmentsAdded>(job.sessions[0]);
  ASSERT_THAT(added, SizeIs(1));
  for (const size_t rank : {0, 1}) GrowMapped(job, rank, added[0].grow);
  ASSERT_TRUE(StatusOf(big).ok()) << StatusOf(big);
  EXPECT_EQ(Open(job, 0, 1, "big").offset_bytes, OffsetOf(big));
  ExpectFailure(Alone(job, 1, AllocateOp{.bytes = ~uint64_t{0}}), Code::kResourceExhausted,
                "rank 1 alone");
}

TEST_F(OwnTeamTest, EventsNameTheRank) {
  const TestJob job = ReadyJob(2);
  const uint64_t offset = Allocate(job, 1, "x");
  ASSERT_TRUE(Free(job, 1, offset).ok());
  ASSERT_THAT(Events<event::Allocated>(), SizeIs(1));
  EXPECT_THAT(TextOf(Events<event::Allocated>()[0]),
              AllOf(HasSubstr("rank=1 k=0"), Not(HasSubstr("team"))));
  EXPECT_THAT(TextOf(Events<event::Freed>()[0]), HasSubstr("rank=1 k=1"));
}

}  // namespace
}  // namespace iris::server
