// Memory that the members of a team register together, confirm, and free.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/limits.h"
#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Code = absl::StatusCode;

constexpr uint64_t kG = kGranularity;

class RegisteredTogetherTest : public MachineTest {
 protected:
  static RegisterOp Memory(std::vector<uint64_t> pieces = {kG}, uint64_t lead = 0,
                           uint64_t bytes = kG / 2) {
    return {.piece_bytes = std::move(pieces), .lead_bytes = lead, .bytes = bytes, .name = "x"};
  }
  // Registered at k by all, and where.
  uint64_t Registered(const TestJob& job, uint64_t k) {
    const auto calls = AskAll(job, k, Memory());
    EXPECT_TRUE(OneOutcome(calls).ok()) << OneOutcome(calls);
    return OffsetOf(calls[0]);
  }
  void ExpectFailure(const std::vector<CallId>& calls, Code code, const std::string& text) {
    const absl::Status status = OneOutcome(calls);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    for (const CallId call : calls) EXPECT_FALSE(Refused(call));
  }
  // Nothing is registered, and no descriptor is kept.
  void ExpectNothingIsLeft() {
    EXPECT_EQ(to_drop_.size(), All<AdoptSegment>().size());
    const JobSnapshot job = TheJob();
    for (const AllocationSnapshot& each : job.allocations) EXPECT_FALSE(each.registered);
    for (const RankSnapshot& rank : job.ranks) EXPECT_THAT(rank.registered, IsEmpty());
  }
};

TEST_F(RegisteredTogetherTest, LiesAtOneOffsetWhateverIsAroundIt) {
  const TestJob job = ReadyJob(2);
  const uint64_t stride = TheJob().stride_bytes;
  const CallId zero = Ask(job, 0, 0, Memory({kG}, 100));
  // It is kept from the call on that brings it.
  EXPECT_FALSE(Answered(zero));
  ASSERT_THAT(All<AdoptSegment>(), SizeIs(1));
  EXPECT_THAT(TheJob().ranks[0].registered, IsEmpty());
  const CallId one = Ask(job, 1, 0, Memory({kG, 3 * kG}, 100 + 0 * kG, kG / 2));
  // Not all in the first, nor reaching into the last: wrong for a rank alone, too.
  ExpectFailure({zero, one}, Code::kInvalidArgument, "rank 1 (pid 101): ");
  EXPECT_THAT(to_drop_, SizeIs(1));

  const std::vector<CallId> calls = {Ask(job, 0, 1, Memory({2 * kG, kG}, kG + 100, kG)),
                                     Ask(job, 1, 1, Memory({3 * kG}, 100, kG))};
  ASSERT_TRUE(OneOutcome(calls).ok()) << OneOutcome(calls);
  const uint64_t offset = OffsetOf(calls[0]);
  EXPECT_EQ(OffsetOf(calls[1]), offset);
  // One granule of rank 0's before it, three of rank 1's from its begin on.
  EXPECT_EQ(offset, stride - 3 * kG + 100);
  const JobSnapshot shot = TheJob();
  ASSERT_THAT(shot.ranks[0].registered, SizeIs(2));
  EXPECT_EQ(shot.ranks[0].registered[0].offset_bytes, stride - 4 * kG);
  EXPECT_EQ(shot.ranks[0].registered[1].offset_bytes, stride - 2 * kG);
  ASSERT_THAT(shot.ranks[1].registered, SizeIs(1));
  EXPECT_EQ(shot.ranks[1].registered[0].offset_bytes, stride - 3 * kG);
  EXPECT_EQ(All<AdoptSegment>().back().device_index, 1u);
  // The next is below, and the heap ends there.
  const auto below = AskAll(job, 2, RegisterOp{.piece_bytes = {kG}, .bytes = kG});
  EXPECT_EQ(OffsetOf(below[0]), stride - 5 * kG);
  ExpectFailure(AskAll(job, 3, GrowOp{stride - kHeap - 4 * kG}), Code::kResourceExhausted,
                "are of registered memory");
  EXPECT_TRUE(OneOutcome(AskAll(job, 4, ConfirmOp{offset})).ok());
  EXPECT_TRUE(OneOutcome(AskAll(job, 5, FreeOp{offset})).ok());
  EXPECT_THAT(to_drop_, SizeIs(4));
  ExpectFailure(AskAll(job, 6, FreeOp{offset}), Code::kInvalidArgument, "no live allocation");
  EndJob(job);
}

TEST_F(RegisteredTogetherTest, WhatOneCannotShareIsRegisteredByNobody) {
  const TestJob job = ReadyJob(3);
  const std::vector<CallId> calls = {
      Ask(job, 0, 0, Memory()),
      Ask(job, 1, 0, RegisterOp{.bytes = kG / 2, .name = "x", .error = "it is plain memory"}),
      Ask(job, 2, 0, Memory())};
  ExpectFailure(calls, Code::kInvalidArgument,
                "register #0 (team 0): rank 1 (pid 101): it is plain memory");
  ExpectNothingIsLeft();
  EXPECT_NE(Registered(job, 1), 0u);
  EndJob(job);
}

TEST_F(RegisteredTogetherTest, WhatDoesNotFitTogetherSaysWhoAndWhy) {
  const TestJob job = ReadyJob(2);
  const auto pair = [&](uint64_t k, const RegisterOp& zero, const RegisterOp& one) {
    return std::vector<CallId>{Ask(job, 0, k, zero), Ask(job, 1, k, one)};
  };
  ExpectFailure(pair(0, Memory({kG}, 0, 10), Memory({kG}, 0, 11)), Code::kInvalidArgument,
                "the ranks differ: rank 0 (pid 100) asked for register(bytes=10");
  RegisterOp other = Memory();
  other.tensor.dtype = "f32";
  ExpectFailure(pair(1, Memory(), other), Code::kInvalidArgument, "the ranks differ");
  ExpectFailure(pair(2, Memory({kG}, 0), Memory({kG}, 512)), Code::kInvalidArgument,
                "that of rank 1 (pid 101) 512 bytes: to lie at one offset it must begin alike");
  ExpectFailure(pair(3, Memory(), Memory({kG + 1})), Code::kInvalidArgument,
                "rank 1 (pid 101): an allocation of 64.0 KiB (65537 bytes)");
  ExpectFailure(pair(4, Memory(), Memory({~uint64_t{0}, 2})), Code::kInvalidArgument,
                "an allocation of 16.0 EiB (18446744073709551615 bytes)");
  ExpectFailure(pair(5, Memory(), Memory({kG}, ~uint64_t{0})), Code::kInvalidArgument,
                "rank 1 (pid 101)");
  const std::vector<uint64_t> large = {3 * kHeap + kG};
  ExpectFailure(pair(6, Memory(large, 0, 3 * kHeap + 1), Memory(large, 0, 3 * kHeap + 1)),
                Code::kResourceExhausted, "above the heap");
  ExpectFailure(pair(7, Memory({2 * kHeap}, 2 * kHeap - kG), Memory({2 * kHeap + kG}, kG, kG / 2)),
                Code::kResourceExhausted, "above the heap");
  const CallId zero = Ask(job, 0, 8, Memory());
  ExpectFailure({zero, Ask(job, 1, 8, AllocateOp{.bytes = 1})}, Code::kInvalidArgument, "differ");
  ExpectNothingIsLeft();
  DropSegments();
  effects_.clear();
  ASSERT_TRUE(OneOutcome(AskAll(job, 9, AllocateOp{.bytes = 1, .name = "x"})).ok());
  ExpectFailure(pair(10, Memory(), Memory()), Code::kAlreadyExists, "'x' is live");
  ExpectNothingIsLeft();
  EndJob(job);
}

TEST_F(RegisteredTogetherTest, IsNotKeptForWhoWaitsInVain) {
  {
    const TestJob job = ReadyJob(2);
    const CallId call = Ask(job, 0, 0, Memory(), kWorldTeam, absl::Seconds(5));
    Advance(absl::Seconds(5));
    EXPECT_EQ(StatusOf(call).code(), Code::kDeadlineExceeded);
    ExpectNothingIsLeft();
    EXPECT_EQ(StatusOf(Ask(job, 1, 0, Memory())).code(), Code::kDeadlineExceeded);
    ExpectNothingIsLeft();
    EndJob(job);
  }
  for (const bool dies : {true, false}) {
    Restart();
    effects_.clear();
    const TestJob job = ReadyJob(3);
    const CallId call = Ask(job, 0, 0, Memory());
    if (dies) {
      Ask(job, 1, 0, Memory());
      Gone(job.sessions[1]);
    } else {
      Leave(job, 1);
    }
    EXPECT_EQ(StatusOf(call).code(), Code::kAborted) << StatusOf(call);
    EXPECT_THAT(std::string(StatusOf(call).message()), HasSubstr("rank 1 (pid 101)"));
    ExpectNothingIsLeft();
    EndJob(job);
  }
}

TEST_F(RegisteredTogetherTest, ARetryGivesNothingTwice) {
  const TestJob job = ReadyJob(2);
  Ask(job, 0, 0, Memory());
  const CallId again = Ask(job, 0, 0, Memory());
  EXPECT_THAT(All<AdoptSegment>(), SizeIs(1));
  const CallId one = Ask(job, 1, 0, Memory());
  EXPECT_EQ(OffsetOf(again), OffsetOf(one));
  EXPECT_EQ(OffsetOf(Ask(job, 1, 0, Memory())), OffsetOf(one));
  EXPECT_THAT(All<AdoptSegment>(), SizeIs(2));
  EndJob(job);
}

TEST_F(RegisteredTogetherTest, StaysOnlyIfAllHaveMappedIt) {
  const TestJob job = ReadyJob(2);
  uint64_t k = 0;
  uint64_t offset = Registered(job, k++);
  const CallId waits = Ask(job, 0, k, ConfirmOp{offset});
  ExpectFailure({waits, Ask(job, 1, k++, ConfirmOp{offset, "no room"})}, Code::kResourceExhausted,
                "confirm #1 (team 0): rank 1 (pid 101): could not map it: no room");
  ExpectNothingIsLeft();

  offset = Registered(job, k++);
  const CallId early = Ask(job, 0, k, ConfirmOp{offset}, kWorldTeam, absl::Seconds(5));
  Advance(absl::Seconds(5));
  ExpectFailure({early, Ask(job, 1, k++, ConfirmOp{offset})}, Code::kDeadlineExceeded,
                "missing: rank 1 (pid 101)");
  ExpectNothingIsLeft();

  // Either rank may ask first.
  for (const size_t first : {0, 1}) {
    offset = Registered(job, k++);
    std::vector<CallId> calls(2);
    calls[first] = first == 0 ? Ask(job, 0, k, ConfirmOp{offset}) : Ask(job, 1, k, GrowOp{1});
    calls[1 - first] = first == 0 ? Ask(job, 1, k, GrowOp{1}) : Ask(job, 0, k, ConfirmOp{offset});
    ++k;
    ExpectFailure(calls, Code::kInvalidArgument, "the ranks differ");
    ExpectNothingIsLeft();
  }
  // Only what a team has registered, and no other team's.
  ExpectFailure(AskAll(job, k++, ConfirmOp{offset}), Code::kInvalidArgument,
                "has registered nothing at offset");
  const auto heap = AskAll(job, k++, AllocateOp{.bytes = 1});
  ExpectFailure(AskAll(job, k++, ConfirmOp{OffsetOf(heap[0])}), Code::kInvalidArgument,
                "has registered nothing");
  const CallId alone = Ask(job, 0, 0, RegisterOp{.piece_bytes = {kG}, .bytes = 1}, OwnTeam(0));
  ASSERT_TRUE(StatusOf(alone).ok());
  ExpectFailure({Ask(job, 0, 1, ConfirmOp{OffsetOf(alone), "no"}, OwnTeam(0))},
                Code::kInvalidArgument, "a rank alone");
  ExpectFailure(AskAll(job, k++, ConfirmOp{OffsetOf(alone)}), Code::kInvalidArgument,
                "has registered nothing");
  EXPECT_THAT(TheJob().ranks[0].registered, SizeIs(1));

  offset = Registered(job, k++);
  const CallId last = Ask(job, 0, k, ConfirmOp{offset});
  Gone(job.sessions[1]);
  EXPECT_EQ(StatusOf(last).code(), Code::kAborted);
  EXPECT_THAT(TheJob().ranks[1].registered, IsEmpty());
  EndJob(job);
}

TEST_F(RegisteredTogetherTest, WhatWaitsCountsAsWell) {
  const TestJob job = ReadyJob(2);
  const std::vector<uint64_t> many(wire::kMaxDescriptorsPerCall, kG);
  const uint64_t bytes = many.size() * kG;
  uint64_t k = 0;
  static_assert(wire::kMaxRegisteredPiecesPerJob % wire::kMaxDescriptorsPerCall == 0);
  // Teams whose other member never asks.
  std::vector<TeamId> teams;
  for (uint32_t n = 0; n <= wire::kMaxRegisteredPiecesPerJob; n += wire::kMaxDescriptorsPerCall) {
    const auto made = AskAll(job, k++, CreateTeamOp{{0, 1}});
    teams.push_back(ResultOf<OperationResult>(made[0]).team->id);
  }
  std::vector<CallId> calls;
  for (const TeamId team : teams) {
    calls.push_back(
        Ask(job, 0, 0, RegisterOp{.piece_bytes = many, .bytes = bytes}, team, absl::Seconds(5)));
  }
  EXPECT_FALSE(Answered(calls[calls.size() - 2]));
  EXPECT_EQ(StatusOf(calls.back()).code(), Code::kResourceExhausted);
  EXPECT_THAT(std::string(StatusOf(calls.back()).message()),
              HasSubstr("rank 0 (pid 100): job 'train' has registered memory of 1024 allocations"));
  Advance(absl::Seconds(5));
  ExpectNothingIsLeft();
  EXPECT_NE(Registered(job, k), 0u);
  EndJob(job);
}

}  // namespace
}  // namespace iris::server
