// Tests operations of a rank's own team: it allocates alone, publishes by name, and others open.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "server/job/events.h"
#include "server/job/testing/job_machine_testing.h"

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
  // Opens an allocation as `rank`. The test fails if it does not exist.
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
  // The world's next range is after both, at the same offset on every rank.
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
                "allocate #1 (rank 0 alone): an allocation named 'x' is live");
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
  // Allocations and opens of others do not wait meanwhile.
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

TEST_F(OwnTeamTest, RegisteredMemoryLiesAboveTheHeap) {
  const TestJob job = ReadyJob(2);
  const uint64_t stride = TheJob().stride_bytes;
  const RegisterOp two_pieces{.piece_bytes = {kGranularity, 2 * kGranularity},
                              .lead_bytes = 100,
                              .bytes = kGranularity,
                              .name = "mine",
                              .tensor = {"f32", {4}}};
  const uint64_t offset = OffsetOf(Alone(job, 1, two_pieces));
  EXPECT_EQ(offset, stride - 3 * kGranularity + 100);
  const auto adopted = All<AdoptSegment>();
  ASSERT_THAT(adopted, SizeIs(2));
  EXPECT_EQ(adopted[1].index, 1u);
  EXPECT_EQ(adopted[1].bytes, 2 * kGranularity);
  EXPECT_EQ(adopted[1].device_index, 1u);
  EXPECT_EQ(TheJob().allocated_bytes, 8 * kKiB);  // the world's area: it is no memory of irisd's
  ASSERT_THAT(TheJob().ranks[1].registered, SizeIs(2));
  EXPECT_EQ(TheJob().ranks[1].registered[1].offset_bytes, stride - 2 * kGranularity);
  ASSERT_THAT(Own(), SizeIs(1));
  EXPECT_TRUE(Own()[0].registered);
  EXPECT_EQ(Own()[0].bytes, kGranularity);

  const OpenedInfo opened = Open(job, 0, 1, "mine");
  EXPECT_EQ(opened.offset_bytes, offset);
  EXPECT_EQ(opened.bytes, kGranularity);
  EXPECT_TRUE(opened.registered);
  EXPECT_EQ(opened.dtype, "f32");
  // Another one has its place below, also of another rank: nothing else is at its offset.
  const RegisterOp one{.piece_bytes = {kGranularity}, .bytes = 1, .name = "x"};
  EXPECT_EQ(OffsetOf(Alone(job, 0, one)), stride - 4 * kGranularity);

  // Ranks that have it open keep it, and its pieces are dropped with the last of them.
  ASSERT_TRUE(Free(job, 1, offset).ok());
  EXPECT_THAT(to_drop_, IsEmpty());
  ASSERT_TRUE(Free(job, 0, offset).ok());
  EXPECT_THAT(to_drop_, SizeIs(2));
  DropSegments();
  EXPECT_EQ(OffsetOf(Alone(job, 1, two_pieces)), offset);
  Leave(job, 0);
  EXPECT_THAT(to_drop_, IsEmpty());  // what a rank registered stays, as what it allocated does
  EndJob(job);
}

TEST_F(OwnTeamTest, TheHeapGrowsUpToRegisteredMemory) {
  const TestJob job = ReadyJob(2);
  const uint64_t stride = TheJob().stride_bytes;
  ASSERT_EQ(stride, 4 * kHeap);
  const auto registered = [&](uint64_t bytes) {
    return Alone(job, 1, RegisterOp{.piece_bytes = {bytes}, .bytes = bytes});
  };
  const CallId growth = Ask(job, 0, 0, GrowOp{kHeap});
  Ask(job, 1, 0, GrowOp{kHeap});
  // Also above what the heap is growing to.
  ExpectFailure(registered(2 * kHeap + kGranularity), Code::kResourceExhausted,
                "larger max_heap_bytes");
  const uint64_t low = OffsetOf(registered(2 * kHeap - kGranularity));
  EXPECT_EQ(low, 2 * kHeap + kGranularity);
  CreateSegments();
  const GrowId grow = Watched<SegmentsAdded>(job.sessions[0]).at(0).grow;
  for (const size_t rank : {0, 1}) GrowMapped(job, rank, grow);
  EXPECT_TRUE(StatusOf(growth).ok()) << StatusOf(growth);
  const CallId more = Ask(job, 0, 1, GrowOp{2 * kGranularity});
  Ask(job, 1, 1, GrowOp{2 * kGranularity});
  ExpectFailure(
      more, Code::kResourceExhausted,
      absl::StrCat(base::SizeText(kGranularity), " of a maximum of ", base::SizeText(stride),
                   " are left (max_heap_bytes of a Context; four times heap_bytes unless "
                   "it says); ",
                   base::SizeText(stride - low), " are of registered"));
  // A hole between two is used again.
  ASSERT_TRUE(Free(job, 1, low).ok());
  const uint64_t top = OffsetOf(registered(kGranularity));
  const uint64_t middle = OffsetOf(registered(3 * kGranularity));
  const uint64_t bottom = OffsetOf(registered(kGranularity));
  EXPECT_EQ(top, stride - kGranularity);
  EXPECT_EQ(bottom, stride - 5 * kGranularity);
  ASSERT_TRUE(Free(job, 1, middle).ok());
  EXPECT_EQ(OffsetOf(registered(2 * kGranularity)), stride - 3 * kGranularity);
  EXPECT_EQ(OffsetOf(registered(kGranularity)), stride - 4 * kGranularity);
  EXPECT_EQ(OffsetOf(registered(kGranularity)), stride - 6 * kGranularity);
  EndJob(job);
}

TEST_F(OwnTeamTest, WrongRegistrationsAreOutcomes) {
  const TestJob job = ReadyJob(2);
  const auto wrong = [&](const RegisterOp& op, const std::string& text,
                         Code code = Code::kInvalidArgument) {
    ExpectFailure(Alone(job, 0, op), code, text);
  };
  const uint64_t g = kGranularity;
  wrong({.bytes = 1}, "is of 0 allocations; 1 to 128");
  wrong({.piece_bytes = std::vector<uint64_t>(129, g), .bytes = 128 * g + 1},
        "is of 129 allocations");
  wrong({.piece_bytes = {0}, .bytes = 1}, "an allocation of 0 bytes");
  wrong({.piece_bytes = {~uint64_t{0}, 2}, .bytes = 1},
        "an allocation of 16.0 EiB (18446744073709551615 bytes)");
  wrong({.piece_bytes = {g}, .bytes = 0}, "0 bytes after 0 do not begin in the first");
  wrong({.piece_bytes = {g}, .lead_bytes = g, .bytes = 1}, "do not begin in the first");
  wrong({.piece_bytes = {g}, .lead_bytes = 1, .bytes = g}, "end in the last");
  wrong({.piece_bytes = {g, g}, .bytes = g}, "end in the last");
  wrong({.piece_bytes = {g, g}, .lead_bytes = 1, .bytes = ~uint64_t{0}}, "end in the last");
  wrong({.piece_bytes = {g / 2}, .bytes = 1}, "must be a multiple of 64 KiB");
  wrong({.piece_bytes = {g}, .bytes = 1, .name = "iris.x"}, "irisd's own");
  wrong({.piece_bytes = {g}, .bytes = 1, .tensor = {std::string(17, 'f'), {}}}, "the dtype");
  Allocate(job, 0, "x");
  wrong({.piece_bytes = {g}, .bytes = 1, .name = "x"}, "'x' is live", Code::kAlreadyExists);
  wrong({.piece_bytes = {4 * kHeap}, .bytes = 4 * kHeap}, "above the heap",
        Code::kResourceExhausted);
  wrong({.error = "plain\nmemory"}, "rank 0 (pid 100): plain");
  // What was taken is given back. A repetition has the same outcome and adopts nothing more.
  const size_t n_taken = All<AdoptSegment>().size();
  ASSERT_EQ(n_taken, to_drop_.size());
  const uint64_t k = next_k_[1];
  const uint64_t offset = OffsetOf(Alone(job, 1, RegisterOp{.piece_bytes = {g}, .bytes = 1}));
  EXPECT_EQ(OffsetOf(Ask(job, 1, k, RegisterOp{.piece_bytes = {g}, .bytes = 1}, OwnTeam(1))),
            offset);
  EXPECT_THAT(All<AdoptSegment>(), SizeIs(n_taken + 1));
  EndJob(job);
}

TEST_F(OwnTeamTest, EventsNameTheRank) {
  const TestJob job = ReadyJob(2);
  const uint64_t offset = Allocate(job, 1, "x");
  ASSERT_TRUE(Free(job, 1, offset).ok());
  ASSERT_THAT(Events<event::Allocated>(), SizeIs(1));
  EXPECT_THAT(TextOf(Events<event::Allocated>()[0]),
              AllOf(HasSubstr("rank=1 #0"), Not(HasSubstr("team"))));
  EXPECT_THAT(TextOf(Events<event::Freed>()[0]), HasSubstr("rank=1 #1"));
}

}  // namespace
}  // namespace iris::server
