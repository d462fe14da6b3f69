// Join, map, leave, death and resume.
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/job/job.h"
#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Returns `spec` with another value of one field.
template <typename T>
JoinSpec With(JoinSpec spec, T JoinSpec::*field, std::type_identity_t<T> value) {
  spec.*field = std::move(value);
  return spec;
}

class JoinTest : public MachineTest {
 protected:
  void ExpectRefused(const JoinSpec& spec, const std::string& text,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const SessionId session = Open(100);
    const absl::Status status = StatusOf(Join(session, spec));
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_TRUE(machine_->Jobs().empty());
    EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
    EXPECT_EQ(machine_->NextDeadline(), absl::InfiniteFuture());
    // The session may try again.
    CreateSegments();
    const CallId again = Join(session, Spec(0, 1));
    CreateSegments();
    EXPECT_TRUE(StatusOf(again).ok()) << StatusOf(again);
  }
};

TEST_F(JoinTest, AnswersWhenAllHaveJoinedAndAllMemoryExists) {
  const SessionId a = Open(100), b = Open(101);
  const CallId first = Join(a, Spec(0, 2));
  CreateSegments();
  EXPECT_FALSE(Answered(first));
  const CallId second = Join(b, Spec(1, 2));
  EXPECT_FALSE(Answered(first));
  EXPECT_FALSE(Answered(second));
  CreateSegments();
  const auto result = ResultOf<JoinResult>(first);
  EXPECT_EQ(result.epoch, 1u);
  EXPECT_EQ(result.proposed_base, wire::kProposedBase);
  EXPECT_EQ(result.heap_bytes, kHeap);
  EXPECT_EQ(result.stride_bytes, 4 * kHeap);
  EXPECT_EQ(result.granularity_bytes, kGranularity);
  ASSERT_THAT(result.segments, SizeIs(2));
  EXPECT_EQ(result.segments[1].rank, 1u);
  EXPECT_EQ(result.segments[1].bytes, kHeap);
  ASSERT_THAT(result.peers, SizeIs(2));
  EXPECT_EQ(result.peers[1].pid, 101);
  EXPECT_EQ(result.device_index, 0u);
  EXPECT_EQ(ResultOf<JoinResult>(second).device_index, 1u);
}

TEST_F(JoinTest, SegmentsAreCreatedAtOnce) {
  Join(Open(100), Spec(0, 2));
  ASSERT_THAT(to_create_, SizeIs(1));
  EXPECT_EQ(to_create_[0].bytes, kHeap);
  EXPECT_EQ(machine_->ledger().used_bytes_total(), kHeap);
}

TEST_F(JoinTest, PagesPrecedeEverything) {
  Join(Open(100), Spec(0, 1));
  size_t pages = effects_.size(), first_use = effects_.size();
  for (size_t i = 0; i < effects_.size(); ++i) {
    if (std::holds_alternative<CreatePages>(effects_[i])) pages = std::min(pages, i);
    if (std::holds_alternative<SetRankState>(effects_[i])) first_use = std::min(first_use, i);
  }
  EXPECT_LT(pages, first_use);
  EXPECT_LT(first_use, effects_.size());
}

TEST_F(JoinTest, EveryRankGetsAllDescriptorsAndPages) {
  const TestJob job = MappingJob(3);
  const auto sends = All<SendDescriptors>();
  ASSERT_THAT(sends, SizeIs(3));
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(sends[rank].session, job.sessions[rank]);
    EXPECT_EQ(sends[rank].receiver, rank);
    EXPECT_TRUE(sends[rank].pages);
    EXPECT_THAT(sends[rank].segments, SizeIs(3));
  }
}

TEST_F(JoinTest, SizesAreRoundedUpToTheGranularity) {
  JoinSpec spec = Spec(0, 1);
  spec.heap_bytes = kGranularity + 1;
  spec.max_heap_bytes = 3 * kGranularity - 1;
  const CallId call = Join(Open(100), spec);
  CreateSegments();
  EXPECT_EQ(ResultOf<JoinResult>(call).heap_bytes, 2 * kGranularity);
  EXPECT_EQ(ResultOf<JoinResult>(call).stride_bytes, 3 * kGranularity);
}

TEST_F(JoinTest, PreallocReachesTheWorker) {
  Join(Open(100), With(Spec(0, 1), &JoinSpec::prealloc, true));
  ASSERT_THAT(to_create_, SizeIs(1));
  EXPECT_TRUE(to_create_[0].prealloc);
}

TEST_F(JoinTest, EmptyNameIsRefused) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::job, ""), "0 bytes");
}
TEST_F(JoinTest, NameOfOneMiBIsRefusedAndNotRepeated) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::job, std::string(1 << 20, 'x')), "1048576 bytes");
  for (const auto& [call, reply] : replies_) EXPECT_LT(reply.status.message().size(), 4096u);
  for (const EmitEvent& effect : All<EmitEvent>())
    EXPECT_LT(effect.event.job.size() + TextOf(effect.event).size(), 4096u);
}
TEST_F(JoinTest, NameOf128BytesIsTheLongest) {
  JoinSpec spec = Spec(0, 1);
  spec.job = std::string(129, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Join(Open(1), spec))));
  spec.job = std::string(128, 'x');
  const CallId call = Join(Open(1), spec);
  CreateSegments();
  EXPECT_TRUE(StatusOf(call).ok());
}
TEST_F(JoinTest, NamesWithControlCharactersAreRefused) {
  for (const std::string& name :
       {std::string("a\nb"), std::string("a\0b", 3), std::string("\x1b[2J"), std::string("\x7f"),
        std::string("\xc2\x85"), std::string("\t")}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(StatusOf(Join(Open(1), With(Spec(0, 1), &JoinSpec::job, name)))))
        << testing::PrintToString(name);
  }
}
TEST_F(JoinTest, NamesThatAreNotUtf8AreRefused) {
  for (const char* name : {"\xff", "a\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80"}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(StatusOf(Join(Open(1), With(Spec(0, 1), &JoinSpec::job, name)))))
        << testing::PrintToString(name);
  }
}
TEST_F(JoinTest, NamesMayBeUtf8) {
  const CallId call = Join(Open(1), With(Spec(0, 1), &JoinSpec::job, "entraînement-☀-訓練"));
  CreateSegments();
  EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
}
TEST_F(JoinTest, ZeroRanksAreRefused) { ExpectRefused(Spec(0, 0), "1 to 64 ranks"); }
TEST_F(JoinTest, NegativeRanksAreRefused) { ExpectRefused(Spec(0, -3), "1 to 64 ranks"); }
TEST_F(JoinTest, TooManyRanksAreRefused) { ExpectRefused(Spec(0, 65), "1 to 64 ranks"); }
TEST_F(JoinTest, MostNegativeRankIsRefused) {
  ExpectRefused(Spec(std::numeric_limits<int32_t>::min(), 2), "ranks count from 0 to 1");
}
TEST_F(JoinTest, NegativeRankIsRefused) { ExpectRefused(Spec(-1, 2), "ranks count from 0 to 1"); }
TEST_F(JoinTest, RankBeyondTheLastIsRefused) {
  ExpectRefused(Spec(2, 2), "ranks count from 0 to 1");
}
TEST_F(JoinTest, EmptyHeapIsRefused) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::heap_bytes, 0), "heap_bytes=0");
}
TEST_F(JoinTest, HugeHeapsAreRefused) {
  for (const uint64_t bytes : {wire::kMaxHeapBytes + 1, ~uint64_t{0}, uint64_t{1} << 63}) {
    const absl::Status status =
        StatusOf(Join(Open(1), With(Spec(0, 1), &JoinSpec::heap_bytes, bytes)));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  }
}
TEST_F(JoinTest, HugeMaximumIsRefused) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::max_heap_bytes, ~uint64_t{0}), "max_heap_bytes=");
}
TEST_F(JoinTest, MaximumBelowTheHeapIsRefused) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::max_heap_bytes, kHeap - 1), "max_heap_bytes=");
}
TEST_F(JoinTest, WindowBeyondTheLimitIsRefused) {
  ExpectRefused(With(Spec(0, 64), &JoinSpec::max_heap_bytes, wire::kMaxHeapBytes),
                "exceed a window");
}
TEST_F(JoinTest, DefaultStrideFitsTheWindow) {
  // Memory is what this devices lack; the sizes themselves are fine.
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(
      Join(Open(1), With(Spec(0, 64), &JoinSpec::heap_bytes, wire::kMaxWindowBytes / 64)))));
}
TEST_F(JoinTest, HugeBarrierAreaIsRefused) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::team_sync_bytes, ~uint64_t{0}), "team_sync_bytes=");
}
TEST_F(JoinTest, BarrierAreaBeyondTheHeapIsRefused) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::team_sync_bytes, kHeap + 1), "team_sync_bytes=");
}
TEST_F(JoinTest, UnknownDeviceIsRefused) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::device_uuid, "no\nsuch"), "no device 'no?such'");
}
TEST_F(JoinTest, NegativeLocalRankIsRefused) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::local_rank, -1), "local_rank=-1");
}
TEST_F(JoinTest, DeviceIsChosenByUuid) {
  const CallId call = Join(Open(1), With(Spec(0, 1), &JoinSpec::device_uuid, "dev-1"));
  CreateSegments();
  EXPECT_EQ(ResultOf<JoinResult>(call).device_index, 1u);
}
TEST_F(JoinTest, DeviceIsLocalRankModDevices) {
  const CallId call = Join(Open(1), With(Spec(0, 1), &JoinSpec::local_rank, 5));
  CreateSegments();
  EXPECT_EQ(ResultOf<JoinResult>(call).device_index, 1u);
}
TEST_F(JoinTest, MemoryThatIsNotThereIsNamed) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::heap_bytes, 65 * kMiB), "64 MiB are free",
                absl::StatusCode::kResourceExhausted);
}
TEST_F(JoinTest, UnknownDeviceIsAnsweredWithTheKnownOnes) {
  ExpectRefused(With(Spec(0, 1), &JoinSpec::device_uuid, "dev-9"),
                "no device 'dev-9': its devices are dev-0, dev-1");
}
TEST_F(JoinTest, MemoryThatTheDriverLacksIsToldWithWhoHoldsTheRest) {
  Join(Open(200), With(Spec(0, 1), &JoinSpec::job, "holds"));
  CreateSegments();
  const CallId call = Join(Open(100), Spec(0, 1));
  ASSERT_EQ(to_create_.size(), 1u);
  Do(SegmentCreated{std::exchange(to_create_, {})[0].id,
                    absl::ResourceExhaustedError("out of memory")});
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(call))) << StatusOf(call);
  EXPECT_THAT(std::string(StatusOf(call).message()),
              AllOf(HasSubstr("out of memory; device 0 (dev-0): "),
                    HasSubstr("held: 1 MiB by job 'holds'")));
}
TEST_F(JoinTest, RanksThatShareADeviceAreReported) {
  MappingJob(4);
  std::vector<std::string> texts;
  for (const Event& event : Events<event::DeviceShared>()) texts.push_back(TextOf(event));
  EXPECT_THAT(texts, ElementsAre("4 ranks share 2 of 2 devices; device 0: ranks 0, 2; device 1: "
                                 "ranks 1, 3"));
}

class DescriptorsTest : public MachineTest {
 protected:
  JobLimits Limits() override { return {.max_descriptors = 18}; }
};

TEST_F(DescriptorsTest, AJobThatNeedsMoreThanThereAreIsRefused) {
  const TestJob job = ReadyJob(4);  // 5 for pages, 4 for segments
  JoinSpec spec = Spec(0, 2);
  spec.job = "other";
  const CallId call = Join(Open(200), spec);
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(call)));
  EXPECT_THAT(
      std::string(StatusOf(call).message()),
      HasSubstr("5 more file descriptors are needed for memory and pages; uid 1000 has 9 "
                "of the 9 that irisd holds for all users (0 are being given back), at most "
                "18 are allowed, and a third as many are to stay free as one user has: free "
                "registered memory or end jobs, or raise LimitNOFILE"));
  // Another user has a part of what is left.
  EXPECT_FALSE(Answered(Join(Open(300, {1001}), spec)));
}
TEST_F(DescriptorsTest, WhoHasGivenBackEnoughIsToTryAgain) {
  const TestJob job = ReadyJob(4);
  for (size_t rank = 0; rank < job.size(); ++rank) Leave(job, rank);
  JoinSpec spec = Spec(0, 6);
  spec.job = "other";
  const CallId call = Join(Open(200), spec);
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(call)));
  EXPECT_THAT(std::string(StatusOf(call).message()),
              AllOf(HasSubstr("(4 are being given back)"), HasSubstr("try again in a moment")));
  DropSegments();
  EXPECT_FALSE(Answered(Join(Open(201), spec)));
}
TEST_F(DescriptorsTest, AGrowthThatNeedsMoreThanThereAreIsRefused) {
  const TestJob job = ReadyJob(4);
  const auto grown = AskAll(job, 0, GrowOp{kGranularity});
  CreateSegments();
  for (size_t rank = 0; rank < job.size(); ++rank) GrowMapped(job, rank, GrowId{1});
  ASSERT_TRUE(OneOutcome(grown).ok()) << OneOutcome(grown);
  const absl::Status status = OneOutcome(AskAll(job, 1, GrowOp{kGranularity}));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("uid 1000 has 13 of the 13 that irisd holds for all users"));
}

class PeerAccessTest : public MachineTest {
 protected:
  std::vector<Ledger::DeviceAccount> Devices() override {
    return {{"dev-0", 64 * kMiB, kGranularity, 0},
            {"dev-1", 64 * kMiB, kGranularity, 0},
            {"dev-2", 64 * kMiB, kGranularity, 0}};
  }
  UnusablePairs Unusable() override {
    return {{{0, 1}, absl::FailedPreconditionError("no link")},
            {{2, 2}, absl::UnavailableError("it is broken")}};
  }
};

TEST_F(PeerAccessTest, APairOfRanksThatCannotReachEachOtherIsNamed) {
  for (const bool reversed : {false, true}) {
    Restart();
    const SessionId first = Open(100), second = Open(101);
    Join(first, Spec(reversed ? 1 : 0, 2));
    const CallId call = Join(second, Spec(reversed ? 0 : 1, 2));
    EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(call))) << StatusOf(call);
    EXPECT_THAT(std::string(StatusOf(call).message()),
                HasSubstr(absl::StrCat(
                    "device 0 (dev-0) cannot use the memory of device 1 (dev-1), and rank ",
                    reversed ? 1 : 0, " (pid 100) is on device ", reversed ? 1 : 0, " (dev-",
                    reversed ? 1 : 0, "): no link")));
    // On another device it may come again, with all others.
    Join(first, Spec(reversed ? 1 : 0, 2));
    Join(second,
         With(Spec(reversed ? 0 : 1, 2), &JoinSpec::device_uuid, reversed ? "dev-1" : "dev-0"));
    CreateSegments();
    EXPECT_EQ(TheJob().state, JobState::kMapping);
  }
}
TEST_F(PeerAccessTest, ADeviceOfNoUseIsRefusedToAnyRank) {
  const CallId call = Join(Open(100), With(Spec(0, 1), &JoinSpec::device_uuid, "dev-2"));
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(call))) << StatusOf(call);
  EXPECT_THAT(std::string(StatusOf(call).message()),
              HasSubstr("device 2 (dev-2) cannot be used: it is broken"));
}

TEST_F(JoinTest, RefusalForWantOfMemoryMakesNoJob) {
  Join(Open(100), With(Spec(0, 1), &JoinSpec::heap_bytes, 65 * kMiB));
  EXPECT_THAT(All<CreatePages>(), IsEmpty());
}
TEST_F(JoinTest, SessionThatIsNotOpenIsRefused) {
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Join(SessionId{99}, Spec(0, 1)))));
}
TEST_F(JoinTest, SessionThatHungUpIsRefused) {
  const TestJob job = ReadyJob(1);
  HangUp(job.sessions[0]);
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Join(job.sessions[0], Spec(0, 1)))));
}
TEST_F(JoinTest, SessionJoinsOnceAtATime) {
  const SessionId session = Open(1);
  Join(session, Spec(0, 2));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      StatusOf(Join(session, With(Spec(0, 2), &JoinSpec::job, "other")))));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Join(session, Spec(1, 2)))));
}

class DisagreeTest : public MachineTest {
 protected:
  void ExpectOddOneFails(const JoinSpec& odd, const std::string& text) {
    const CallId first = Join(Open(100), Spec(0, 2));
    const absl::Status status = StatusOf(Join(Open(101), odd));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(text));
    EXPECT_THAT(status.message(), HasSubstr("rank 0 (pid 100) said"));
    EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(first))) << StatusOf(first);
    EXPECT_THAT(StatusOf(first).message(), HasSubstr(absl::StrCat("rank 1 (pid 101) was refused, "
                                                                  "and no rank joins without it: ",
                                                                  text)));
    const CallId again = Join(Open(102), Spec(0, 2));
    const CallId second = Join(Open(103), Spec(1, 2));
    CreateSegments();
    EXPECT_TRUE(StatusOf(again).ok());
    EXPECT_TRUE(StatusOf(second).ok());
  }
};

TEST_F(DisagreeTest, OnTheNumberOfRanks) { ExpectOddOneFails(Spec(1, 3), "n_ranks=3"); }
TEST_F(DisagreeTest, OnTheHeap) {
  ExpectOddOneFails(With(Spec(1, 2), &JoinSpec::heap_bytes, 2 * kHeap), "heap_bytes=2097152");
}
TEST_F(DisagreeTest, OnTheMaximum) {
  ExpectOddOneFails(With(Spec(1, 2), &JoinSpec::max_heap_bytes, 2 * kHeap),
                    "max_heap_bytes=2097152");
}
TEST_F(DisagreeTest, OnTheBarrierArea) {
  ExpectOddOneFails(With(Spec(1, 2), &JoinSpec::team_sync_bytes, 1), "team_sync_bytes=1");
}
TEST_F(DisagreeTest, RankTwiceNamesThePidThatHasIt) {
  const CallId first = Join(Open(100), Spec(0, 2));
  const absl::Status status = StatusOf(Join(Open(101), Spec(0, 2)));
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("taken by pid 100"));
  EXPECT_FALSE(Answered(first));
}
TEST_F(DisagreeTest, RankOfARunningJobIsTaken) {
  ReadyJob(2);
  const absl::Status status = StatusOf(Join(Open(200), Spec(1, 2)));
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("pid 101"));
}
TEST_F(DisagreeTest, RunningJobTakesNobodyIn) {
  const TestJob job = ReadyJob(2);
  Leave(job, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Join(Open(200), Spec(1, 2)))));
}
TEST_F(DisagreeTest, BrokenJobTakesNobodyIn) {
  const TestJob job = ReadyJob(2);
  Gone(job.sessions[1]);
  const absl::Status status = StatusOf(Join(Open(200), Spec(1, 2)));
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 (pid 101) died"));
}
TEST_F(DisagreeTest, JobsAreKeptApartByContainer) {
  constexpr Party kHost{1000}, kContainer{1000, 4026532512}, kSub{165536, 0, 1000};
  for (const Party& party : {kHost, kContainer, kSub}) Join(Open(100, party), Spec(0, 1));
  CreateSegments();
  for (const Party& party : {kHost, kContainer, kSub}) {
    const std::vector<JobSnapshot> seen = machine_->Jobs({.party = party});
    ASSERT_THAT(seen, SizeIs(1)) << party.Text();
    EXPECT_EQ(seen[0].party, party);
    const CallId resumed = NewCall();
    Do(ResumeCall{Open(100, party == kHost ? kContainer : kHost), resumed, seen[0].id, "train", 0,
                  1});
    EXPECT_TRUE(absl::IsNotFound(StatusOf(resumed))) << StatusOf(resumed);
    size_t n_sessions = 0;
    machine_->VisitSessions(party, {}, [&](const SessionSnapshot& session) {
      EXPECT_EQ(session.caller.party, party);
      return ++n_sessions < 100;
    });
    EXPECT_GE(n_sessions, 1u);
  }
}
TEST_F(DisagreeTest, JobsAreKeptApartByUid) {
  const CallId mine = Join(Open(100, {1000}), Spec(0, 1));
  const CallId theirs = Join(Open(200, {2000}), Spec(0, 1));
  CreateSegments();
  EXPECT_NE(ResultOf<JoinResult>(mine).job, ResultOf<JoinResult>(theirs).job);
}

using JoinWaitTest = MachineTest;

TEST_F(JoinWaitTest, TimeOutNamesTheMissingRanks) {
  const CallId call = Join(Open(101), With(Spec(1, 4), &JoinSpec::timeout, absl::Seconds(5)));
  EXPECT_EQ(machine_->NextDeadline(), clock_.Now() + absl::Seconds(5));
  Advance(absl::Seconds(4));
  EXPECT_FALSE(Answered(call));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(call)));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("have not joined: 0, 2, 3"));
  DropSegments();
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
  EXPECT_TRUE(machine_->Jobs().empty());
}
TEST_F(JoinWaitTest, RanksThatWaitedTogetherDoNotMissEachOther) {
  // All of one moment, and one shortly after the other: the same ranks are missing.
  for (const absl::Duration apart : {absl::ZeroDuration(), absl::Milliseconds(10)}) {
    std::vector<CallId> calls;
    for (const int rank : {0, 1, 3}) {
      calls.push_back(
          Join(Open(100 + rank), With(Spec(rank, 5), &JoinSpec::timeout, absl::Seconds(5))));
      clock_.Advance(apart);
    }
    Advance(absl::Seconds(5) - 3 * apart);
    for (int i = 0; i < 3; ++i) Advance(apart);
    for (const CallId call : calls) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(call))) << StatusOf(call);
      EXPECT_THAT(std::string(StatusOf(call).message()), EndsWith("have not joined: 2, 4"));
    }
    DropSegments();
  }
}
TEST_F(JoinWaitTest, ARankThatGaveUpBeforeIsMissing) {
  Join(Open(100), With(Spec(0, 3), &JoinSpec::timeout, absl::Seconds(1)));
  Join(Open(101), With(Spec(1, 3), &JoinSpec::timeout, absl::Seconds(60)));
  Advance(absl::Seconds(1));
  Advance(absl::Seconds(1));
  const CallId call = Join(Open(102), With(Spec(2, 3), &JoinSpec::timeout, absl::Seconds(5)));
  Advance(absl::Seconds(5));
  EXPECT_THAT(std::string(StatusOf(call).message()), EndsWith("have not joined: 0"));
  // It is missing, but it was there: its time was up before the others came.
  EXPECT_THAT(
      StatusOf(call).message(),
      HasSubstr(
          "as rank 2: time is up after 5s (join_timeout): these came and gave up: rank 0 (pid 100) "
          "after 1s (its own timeout), 1s before this rank came; of 3 ranks"));
}
TEST_F(JoinWaitTest, WhoGaveUpIsNamedBesideTheMissing) {
  Join(Open(100), With(Spec(0, 3), &JoinSpec::timeout, absl::Seconds(1)));
  const CallId call = Join(Open(101), With(Spec(1, 3), &JoinSpec::timeout, absl::Seconds(60)));
  Advance(absl::Seconds(1));
  Advance(absl::Seconds(59));
  EXPECT_THAT(StatusOf(call).message(),
              HasSubstr("time is up after 1m (join_timeout): these came and gave up: rank 0 (pid "
                        "100) after 1s (its "
                        "own timeout); of 3 ranks these have not joined: 2"));
}
TEST_F(JoinWaitTest, ARankThatComesWhenAllOthersGaveUpIsToldOfThem) {
  Join(Open(101), With(Spec(1, 2), &JoinSpec::timeout, absl::Seconds(5)));
  CreateSegments();
  Advance(absl::Seconds(5));
  EXPECT_TRUE(machine_->Jobs().empty());
  DropSegments();
  Advance(absl::Seconds(2));
  CallId call = Join(Open(100), With(Spec(0, 2), &JoinSpec::timeout, absl::Seconds(3)));
  CreateSegments();
  Advance(absl::Seconds(3));
  EXPECT_THAT(StatusOf(call).message(),
              HasSubstr("these came and gave up: rank 1 (pid 101) after 5s (its own timeout), 2s "
                        "before this rank came; of 2 ranks these have not joined: 1"));
  DropSegments();
  // Not of a job of another size, nor for ever.
  JoinSpec larger = Spec(0, 3);
  larger.timeout = absl::Seconds(3);
  call = Join(Open(102), larger);
  Advance(absl::Seconds(3));
  EXPECT_THAT(StatusOf(call).message(), Not(HasSubstr("gave up")));
  Advance(kAbandonedJobKept);
  call = Join(Open(103), larger);
  Advance(absl::Seconds(3));
  EXPECT_THAT(StatusOf(call).message(), Not(HasSubstr("gave up")));
}
TEST_F(JoinWaitTest, OnlySoManyJobsAreRemembered) {
  for (size_t i = 0; i < kMaxAbandonedJobs + 2; ++i) {
    JoinSpec spec = Spec(1, 2);
    spec.job = "job-" + std::to_string(i);
    spec.timeout = absl::Seconds(1);
    Join(Open(200 + static_cast<int64_t>(i)), spec);
    CreateSegments();
    Advance(absl::Seconds(1));
    DropSegments();
  }
  for (const auto& [name, is_known] :
       {std::pair<std::string, bool>{"job-2", true}, {"job-0", false}, {"job-40", true}}) {
    JoinSpec spec = Spec(0, 2);
    spec.job = name;
    spec.timeout = absl::Seconds(1);
    const CallId call = Join(Open(100), spec);
    Advance(absl::Seconds(1));
    EXPECT_EQ(absl::StrContains(StatusOf(call).message(), "gave up"), is_known) << name;
  }
}
TEST_F(JoinWaitTest, WhenAllCameTheTextNamesWhoGaveUp) {
  const SessionId first = Open(100);
  Join(first, With(Spec(0, 2), &JoinSpec::timeout, absl::Seconds(5)));
  const CallId call = Join(Open(101), With(Spec(1, 2), &JoinSpec::timeout, absl::Seconds(60)));
  Advance(absl::Seconds(5));  // its memory was never made, so nobody could be told
  Advance(absl::Seconds(55));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(call)));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("all 2 ranks have come, but these gave up before "
                                                  "the last one did: rank 0 (pid 100) after "
                                                  "5s (its own timeout)"));
}
TEST_F(JoinWaitTest, OnlyTheRankWhoseTimeIsUpIsRemoved) {
  const SessionId session = Open(100);
  const CallId first = Join(session, With(Spec(0, 2), &JoinSpec::timeout, absl::Seconds(1)));
  const CallId second = Join(Open(101), Spec(1, 2));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(Answered(first));
  EXPECT_FALSE(Answered(second));
  const CallId again = Join(session, Spec(0, 2));
  CreateSegments();
  EXPECT_TRUE(StatusOf(again).ok());
  EXPECT_TRUE(StatusOf(second).ok());
}
TEST_F(JoinWaitTest, TimeOutSaysWhenMemoryIsWhatIsMissing) {
  const CallId call = Join(Open(100), With(Spec(0, 1), &JoinSpec::timeout, absl::Seconds(1)));
  Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(call)));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("memory is not ready yet for rank 0 (pid 100)"));
}
TEST_F(JoinWaitTest, TimeOutsAreBounded) {
  Join(Open(100), With(Spec(0, 2), &JoinSpec::timeout, absl::InfiniteDuration()));
  EXPECT_EQ(machine_->NextDeadline(), clock_.Now() + absl::Hours(1));
}
TEST_F(JoinWaitTest, CancelledJoinIsWithdrawn) {
  const CallId first = Join(Open(100), Spec(0, 2));
  const CallId second = Join(Open(101), Spec(1, 2));
  Do(CallCancelled{first});
  EXPECT_EQ(TheJob().ranks[0].state, RankState::kJoined);  // its session may hang up yet
  EXPECT_EQ(machine_->NextDeadline(), clock_.Now() + kWithdrawAfter);
  Advance(kWithdrawAfter);
  EXPECT_FALSE(Answered(first));
  CreateSegments();
  EXPECT_FALSE(Answered(second));
  EXPECT_EQ(TheJob().ranks[0].state, RankState::kAbsent);
}
TEST_F(JoinWaitTest, CancelledJoinOfASessionThatHangsUpNamesTheDeath) {
  // A dying process closes its sockets one after the other: its Join may be cancelled first.
  const CallId waits = Join(Open(100), Spec(0, 3));
  const SessionId dies = Open(101);
  const CallId lost = Join(dies, Spec(1, 3));
  Do(CallCancelled{lost});
  HangUp(dies);
  EXPECT_TRUE(absl::IsAborted(StatusOf(waits)));
  EXPECT_THAT(std::string(StatusOf(waits).message()), HasSubstr("rank 1 (pid 101) hung up"));
  EXPECT_FALSE(Answered(lost));
  EXPECT_EQ(machine_->NextDeadline(), absl::InfiniteFuture());
}
TEST_F(JoinWaitTest, CancelledJoinIsOverWhenItsSessionJoinsAgain) {
  const SessionId session = Open(100);
  const CallId first = Join(session, Spec(0, 2));
  Do(CallCancelled{first});
  const CallId again = Join(session, Spec(1, 2));
  EXPECT_FALSE(Answered(again)) << StatusOf(again);
  Advance(kWithdrawAfter);
  EXPECT_FALSE(Answered(again)) << StatusOf(again);
  EXPECT_EQ(TheJob().ranks[1].state, RankState::kJoined);
}
TEST_F(JoinWaitTest, JoinCancelledAsTheLastRankJoinsFailsTheJobAMomentLater) {
  TestJob job{JobId{1}, {Open(100), Open(101)}};
  const CallId first = Join(job.sessions[0], Spec(0, 2));
  Do(CallCancelled{first});
  const CallId second = Join(job.sessions[1], Spec(1, 2));
  CreateSegments();
  EXPECT_FALSE(Answered(first));
  EXPECT_TRUE(StatusOf(second).ok());
  const CallId mapped = Mapped(job, 1);
  Advance(kWithdrawAfter);
  EXPECT_TRUE(absl::IsAborted(StatusOf(mapped))) << StatusOf(mapped);
  EXPECT_THAT(std::string(StatusOf(mapped).message()), HasSubstr("cancelled its join"));
}
TEST_F(JoinWaitTest, CancelledJoinThatWasJustAnsweredFailsTheJobAtOnce) {
  TestJob job{JobId{1}, {Open(100), Open(101)}};
  const CallId first = Join(job.sessions[0], Spec(0, 2));
  Join(job.sessions[1], Spec(1, 2));
  CreateSegments();
  ASSERT_TRUE(Answered(first));
  const CallId mapped = Mapped(job, 1);
  Do(CallCancelled{first});
  EXPECT_TRUE(absl::IsAborted(StatusOf(mapped))) << StatusOf(mapped);
  EXPECT_THAT(std::string(StatusOf(mapped).message()),
              HasSubstr("rank 0 (pid 100) cancelled its join"));
  EXPECT_TRUE(machine_->Jobs().empty());
}
TEST_F(JoinWaitTest, CancelledJoinOfARankThatMappedChangesNothing) {
  TestJob job{JobId{1}, {Open(100), Open(101)}};
  const CallId first = Join(job.sessions[0], Spec(0, 2));
  Join(job.sessions[1], Spec(1, 2));
  CreateSegments();
  Mapped(job, 0);
  Do(CallCancelled{first});
  EXPECT_EQ(TheJob().state, JobState::kMapping);
}
TEST_F(JoinWaitTest, CancelledCallThatIsUnknownIsIgnored) {
  EXPECT_THAT(Do(CallCancelled{CallId{77}}), IsEmpty());
}
TEST_F(JoinWaitTest, DeathFailsEveryJoinAndNamesTheDead) {
  const CallId first = Join(Open(100), Spec(0, 3));
  const SessionId doomed = Open(101);
  const CallId second = Join(doomed, Spec(1, 3));
  Gone(doomed);
  for (const CallId call : {first, second}) {
    EXPECT_TRUE(absl::IsAborted(StatusOf(call)));
    EXPECT_THAT(StatusOf(call).message(), HasSubstr("rank 1 (pid 101) died"));
  }
  EXPECT_TRUE(machine_->Jobs().empty());
  EXPECT_THAT(All<DropPages>(), SizeIs(1));
  DropSegments();
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
}
TEST_F(JoinWaitTest, HangUpFailsEveryJoin) {
  const CallId first = Join(Open(100), Spec(0, 2));
  const SessionId doomed = Open(101);
  Join(doomed, Spec(1, 2));
  HangUp(doomed);
  EXPECT_TRUE(absl::IsAborted(StatusOf(first)));
  EXPECT_THAT(StatusOf(first).message(), HasSubstr("rank 1 (pid 101) hung up"));
}
TEST_F(JoinWaitTest, TheNameIsFreeAtOnceAfterFailure) {
  const SessionId doomed = Open(100);
  Join(doomed, Spec(0, 2));
  Gone(doomed);
  EXPECT_THAT(to_drop_, SizeIs(1));  // not dropped yet
  const CallId call = Join(Open(101), Spec(0, 1));
  CreateSegments();
  EXPECT_TRUE(StatusOf(call).ok());
}
TEST_F(JoinWaitTest, FailedCreationFailsEveryJoinAndNamesTheRank) {
  const CallId first = Join(Open(100), Spec(0, 2));
  CreateSegments();
  const CallId second = Join(Open(101), Spec(1, 2));
  FailSegments(absl::ResourceExhaustedError("no\nmemory"));
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(second)));
  EXPECT_TRUE(absl::IsAborted(StatusOf(first)));
  for (const CallId call : {first, second}) {
    EXPECT_THAT(StatusOf(call).message(),
                HasSubstr("memory of rank 1 (pid 101) could not be created: no?memory"));
  }
  DropSegments();
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
}
TEST_F(JoinWaitTest, SegmentThatIsCreatedTooLateIsOnlyDropped) {
  const SessionId session = Open(100);
  Join(session, Spec(0, 2));
  const SegmentId segment = to_create_[0].id;
  Gone(session);
  EXPECT_EQ(machine_->ledger().used_bytes_total(), kHeap);
  Do(SegmentCreated{segment, absl::OkStatus()});
  EXPECT_EQ(machine_->ledger().used_bytes_total(), kHeap);
  Do(SegmentDropped{segment});
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
  Do(SegmentDropped{segment});  // once is enough
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
}
TEST_F(JoinWaitTest, SegmentThatFailsTooLateIsReleasedOnce) {
  const SessionId session = Open(100);
  Join(session, Spec(0, 2));
  const SegmentId segment = to_create_[0].id;
  Gone(session);
  Do(SegmentCreated{segment, absl::InternalError("x")});
  Do(SegmentDropped{segment});
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
}

class RefusedTest : public MachineTest {
 protected:
  JobLimits Limits() override { return {.max_heap_bytes_per_uid = 3 * kHeap}; }
  // Asks for more than its user may have.
  CallId JoinRefused(SessionId session, int32_t rank, int32_t n_ranks) {
    JoinSpec spec = Spec(rank, n_ranks);
    spec.heap_bytes = 4 * kHeap;
    spec.timeout = absl::Seconds(20);
    const CallId call = Join(session, spec);
    EXPECT_TRUE(Answered(call));
    return call;
  }
  SessionId OpenAged(int64_t pid, absl::Duration age) {
    const SessionId id{next_session_++};
    Do(SessionOpened{id, {.pid = pid, .party = {1000}, .process_start = 7}, age});
    return id;
  }
  void ExpectTold(CallId call) {
    EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(call))) << StatusOf(call);
    EXPECT_THAT(StatusOf(call).message(),
                HasSubstr("join job 'train': rank 1 (pid 101) was refused, and no rank joins "
                          "without it: reserve 4 MiB"));
    EXPECT_THAT(StatusOf(call).message(), HasSubstr("start all ranks again"));
  }
};

TEST_F(RefusedTest, LastFailsTheOthersAtOnce) {
  JoinSpec big = Spec(0, 3);
  big.heap_bytes = 2 * kHeap;
  const CallId first = Join(Open(100), big);
  big.rank = 1;
  Join(Open(101), big);  // together they are over the quota
  EXPECT_THAT(StatusOf(first).message(),
              AllOf(HasSubstr("rank 1 (pid 101) was refused"), HasSubstr("that irisd allows it")));
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(first)));
  EXPECT_TRUE(machine_->Jobs().empty());
  big.rank = 2;
  const SessionId slow = OpenAged(102, absl::Seconds(1));
  EXPECT_EQ(StatusOf(Join(slow, big)), StatusOf(first));
  EXPECT_FALSE(Answered(Join(slow, big))) << "each rank is told once";
}
TEST_F(RefusedTest, FirstFailsTheOthersAsTheyCome) {
  JoinRefused(Open(101), 1, 3);
  clock_.Advance(absl::Seconds(1));
  ExpectTold(Join(OpenAged(100, absl::Seconds(2)), Spec(0, 3)));
  ExpectTold(Join(OpenAged(102, absl::Seconds(2)), Spec(2, 3)));
  EXPECT_TRUE(machine_->Jobs().empty());
}
TEST_F(RefusedTest, AnotherAttemptIsNotToldOfIt) {
  JoinRefused(Open(101), 1, 2);
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE(Answered(Join(Open(200), Spec(0, 2)))) << "its process began later";
}
TEST_F(RefusedTest, TheRankThatJoinsAfterAllEndsIt) {
  const SessionId session = Open(101);
  JoinRefused(session, 1, 2);
  const CallId again = Join(session, Spec(1, 2));
  const CallId other = Join(Open(100), Spec(0, 2));
  CreateSegments();
  EXPECT_TRUE(StatusOf(again).ok());
  EXPECT_TRUE(StatusOf(other).ok());
}
TEST_F(RefusedTest, IsForgottenWhenItsTimeIsUp) {
  JoinRefused(Open(101), 1, 2);
  Advance(absl::Seconds(20));
  EXPECT_FALSE(Answered(Join(OpenAged(100, absl::Minutes(1)), Spec(0, 2))));
}
TEST_F(RefusedTest, StrangersEndNobodysJoin) {
  const CallId first = Join(Open(100), Spec(0, 2));
  const SessionId stranger = Open(666, {2000});
  JoinRefused(stranger, 1, 2);  // another user's job of that name
  JoinSpec spec = Spec(1, 2);
  spec.heap_bytes = 4 * kHeap;
  spec.job = "other";
  Join(Open(101), spec);
  JoinRefused(Open(102), 0, 2);  // a rank that has joined
  JoinRefused(Open(103), 2, 3);  // a number that is no rank of the job
  JoinRefused(Open(104), -1, 2);
  JoinRefused(Open(105), 1, 65);
  EXPECT_FALSE(Answered(first));
  Join(Open(106), Spec(1, 2));
  CreateSegments();
  EXPECT_TRUE(StatusOf(first).ok()) << StatusOf(first);
}
TEST_F(RefusedTest, AMemberEndsNobodysJoin) {
  const SessionId member = Open(100);
  const CallId first = Join(member, Spec(0, 2));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Join(member, Spec(1, 2)))));
  EXPECT_FALSE(Answered(first));
}
TEST_F(RefusedTest, OnlySoManyAreRemembered) {
  for (size_t i = 0; i <= kMaxRefusedJoins; ++i) {
    clock_.Advance(absl::Milliseconds(1));
    JoinSpec spec = Spec(1, 2);
    spec.job = absl::StrCat("job ", i);
    spec.heap_bytes = 4 * kHeap;
    Join(Open(101), spec);
  }
  JoinSpec spec = Spec(0, 2);
  spec.job = "job 1";
  EXPECT_TRUE(Answered(Join(OpenAged(100, absl::Minutes(1)), spec)));
  spec.job = "job 0";
  EXPECT_FALSE(Answered(Join(OpenAged(100, absl::Minutes(1)), spec)));
}

TEST_F(JoinWaitTest, LeaveWhileFormingWithdraws) {
  const SessionId session = Open(100);
  const CallId join = Join(session, Spec(0, 2));
  const CallId leave = NewCall();
  Do(LeaveCall{session, leave, TheJob().id});
  EXPECT_TRUE(StatusOf(leave).ok());
  EXPECT_TRUE(absl::IsAborted(StatusOf(join)));
  EXPECT_TRUE(machine_->Jobs().empty());
}

using StarvedTest = MachineTest;

TEST_F(StarvedTest, JoinWaitsForMemoryThatIsBeingDropped) {
  JoinSpec big = Spec(0, 1);
  big.heap_bytes = 60 * kMiB;
  const TestJob before = ReadyJob(1, big);
  Leave(before, 0);
  ASSERT_THAT(to_drop_, SizeIs(1));
  const CallId call = Join(Open(200), big);
  EXPECT_THAT(to_create_, IsEmpty());
  EXPECT_FALSE(Answered(call));
  DropSegments();
  ASSERT_THAT(to_create_, SizeIs(1));
  CreateSegments();
  EXPECT_TRUE(StatusOf(call).ok()) << StatusOf(call);
}
TEST_F(StarvedTest, JoinFailsWhenOthersWereFaster) {
  JoinSpec big = Spec(0, 1);
  big.heap_bytes = 60 * kMiB;
  const TestJob before = ReadyJob(1, big);
  Leave(before, 0);
  const CallId first = Join(Open(200), big);
  JoinSpec other = big;
  other.job = "other";
  const CallId second = Join(Open(201), other);
  DropSegments();
  CreateSegments();
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(second))) << StatusOf(second);
}
TEST_F(StarvedTest, WhoGivesUpWaitingLeavesNothing) {
  JoinSpec big = Spec(0, 1);
  big.heap_bytes = 60 * kMiB;
  big.timeout = absl::Seconds(1);
  const TestJob before = ReadyJob(1, big);
  Leave(before, 0);
  const CallId call = Join(Open(200), big);
  Advance(absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(call)));
  DropSegments();
  EXPECT_THAT(to_create_, IsEmpty());
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
}

class LimitTest : public MachineTest {
 protected:
  JobLimits Limits() override {
    JobLimits limits;
    limits.max_jobs = 3;
    limits.max_jobs_per_uid = 2;
    limits.max_heap_bytes_per_uid = 3 * kHeap;
    return limits;
  }
  CallId JoinNamed(const std::string& name, const Party& party, uint64_t heap_bytes = kHeap) {
    JoinSpec spec = Spec(0, 2);
    spec.job = name;
    spec.heap_bytes = heap_bytes;
    return Join(Open(100, party), spec);
  }
};

TEST_F(LimitTest, JobsPerUid) {
  JoinNamed("a", {1});
  JoinNamed("b", {1});
  const absl::Status status = StatusOf(JoinNamed("c", {1}));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("uid 1 has 2 jobs"));
}
TEST_F(LimitTest, UsersOfAUserNamespaceHaveItsMakersShare) {
  JoinNamed("a", {165536, 0, 1});
  JoinNamed("b", {165537, 0, 1});
  const absl::Status status = StatusOf(JoinNamed("c", {1}));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("uid 1 has 2 jobs"));
  EXPECT_FALSE(Answered(JoinNamed("c", {1, 4026532512})));  // in a container
}
TEST_F(LimitTest, JobsInAll) {
  JoinNamed("a", {1});
  JoinNamed("b", {2});
  JoinNamed("c", {3});
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(JoinNamed("d", {4}))));
}
TEST_F(LimitTest, HeapBytesPerUid) {
  JoinNamed("a", {1}, 2 * kHeap);
  const absl::Status status = StatusOf(JoinNamed("b", {1}, 2 * kHeap));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("uid 1 holds 2 MiB of the 3 MiB"));
  EXPECT_FALSE(Answered(JoinNamed("b", {1}, kHeap)));
}
TEST_F(LimitTest, EndedJobsDoNotCount) {
  for (int i = 0; i < 5; ++i) {
    const CallId call = JoinNamed("a", {1});
    Do(CallCancelled{call});
    Advance(kWithdrawAfter);
    DropSegments();
  }
  EXPECT_FALSE(Answered(JoinNamed("a", {1})));
}

using MapTest = MachineTest;

TEST_F(MapTest, CommitsWhenEveryRankHasMapped) {
  const TestJob job = MappingJob(2);
  const CallId first = Mapped(job, 0);
  EXPECT_FALSE(Answered(first));
  EXPECT_EQ(TheJob().ranks[0].state, RankState::kMapped);
  const CallId second = Mapped(job, 1);
  const auto result = ResultOf<MappedResult>(first);
  EXPECT_TRUE(result.same_address);
  EXPECT_EQ(result.world.id, kWorldTeam);
  EXPECT_THAT(result.world.ranks, testing::ElementsAre(0, 1));
  EXPECT_EQ(result.world.barrier_slot, 0u);
  EXPECT_EQ(result.world.barrier_start_epoch, 0u);
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_EQ(TheJob().state, JobState::kReady);
  EXPECT_EQ(machine_->NextDeadline(), absl::InfiniteFuture());
}
TEST_F(MapTest, AnotherBaseIsNotTheSameAddress) {
  const TestJob job = MappingJob(2);
  const CallId first = Mapped(job, 0);
  Mapped(job, 1, wire::kProposedBase + kMiB);
  EXPECT_FALSE(ResultOf<MappedResult>(first).same_address);
  EXPECT_EQ(TheJob().ranks[1].base, wire::kProposedBase + kMiB);
}
TEST_F(MapTest, TheWorldsBarrierAreaIsAllocated) {
  ReadyJob(2);
  ASSERT_THAT(TheJob().allocations, SizeIs(1));
  EXPECT_EQ(TheJob().allocations[0].name, "iris.sync.0");
  EXPECT_EQ(TheJob().allocations[0].bytes, 8 * kKiB);
}
TEST_F(MapTest, WithoutBarrierAreaNothingIsAllocated) {
  ReadyJob(1, With(Spec(0, 1), &JoinSpec::team_sync_bytes, 0));
  EXPECT_THAT(TheJob().allocations, IsEmpty());
}
TEST_F(MapTest, FailureFailsEveryRankAndEndsTheJob) {
  const TestJob job = MappingJob(3);
  const CallId first = Mapped(job, 0);
  const CallId second = Mapped(job, 1, 0, "mmap: \x01 no room");
  for (const CallId call : {first, second}) {
    EXPECT_TRUE(absl::IsAborted(StatusOf(call)));
    EXPECT_THAT(StatusOf(call).message(),
                HasSubstr("rank 1 (pid 101) could not map: mmap: ? no room"));
  }
  EXPECT_TRUE(machine_->Jobs().empty());
  // A rank that has not reported yet gets the error when it does.
  const CallId third = Mapped(job, 2);
  EXPECT_EQ(StatusOf(third), StatusOf(first));
  DropSegments();
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
}
TEST_F(MapTest, ReportedErrorsAreCut) {
  const TestJob job = MappingJob(1);
  const CallId call = Mapped(job, 0, 0, std::string(1 << 20, 'e'));
  EXPECT_LT(StatusOf(call).message().size(), 2048u);
}
TEST_F(MapTest, TimeOutNamesWhoHasNotMapped) {
  const TestJob job = MappingJob(3);
  const CallId call = Mapped(job, 1);
  Advance(JobLimits().map_timeout);
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOf(call)));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("rank 0 (pid 100), rank 2 (pid 102)"));
  EXPECT_THAT(StatusOf(call).message(), Not(HasSubstr("pid 101")));
  EXPECT_TRUE(machine_->Jobs().empty());
}
TEST_F(MapTest, DeathFailsEveryRank) {
  const TestJob job = MappingJob(2);
  const CallId call = Mapped(job, 0);
  Gone(job.sessions[1]);
  EXPECT_TRUE(absl::IsAborted(StatusOf(call)));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("rank 1 (pid 101) died"));
  EXPECT_TRUE(machine_->Jobs().empty());
}
TEST_F(MapTest, LeavingWhileOthersMapFailsThem) {
  const TestJob job = MappingJob(2);
  const CallId call = Mapped(job, 0);
  EXPECT_TRUE(StatusOf(Leave(job, 1)).ok());
  EXPECT_TRUE(absl::IsAborted(StatusOf(call)));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("rank 1 (pid 101) has left"));
}
TEST_F(MapTest, RetryGetsTheSameAnswer) {
  const TestJob job = MappingJob(2);
  const CallId first = Mapped(job, 0);
  const CallId retry = Mapped(job, 0);
  Mapped(job, 1);
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_TRUE(StatusOf(retry).ok());
  EXPECT_TRUE(StatusOf(Mapped(job, 0)).ok());
}
TEST_F(MapTest, CancelledReportStaysReported) {
  const TestJob job = MappingJob(2);
  const CallId first = Mapped(job, 0);
  Do(CallCancelled{first});
  const CallId second = Mapped(job, 1);
  EXPECT_FALSE(Answered(first));
  EXPECT_TRUE(StatusOf(second).ok());
}
TEST_F(MapTest, WaitingCallsAreBounded) {
  const TestJob job = MappingJob(2);
  for (int i = 0; i < 8; ++i) Mapped(job, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Mapped(job, 0))));
}
TEST_F(MapTest, WrongEpochIsRefused) {
  const TestJob job = MappingJob(1);
  const CallId call = NewCall();
  Do(MappedCall{job.sessions[0], call, job.id, 2, 0, ""});
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(call)));
}
TEST_F(MapTest, BeforeEveryRankHasJoinedItIsRefused) {
  const SessionId session = Open(100);
  Join(session, Spec(0, 2));
  const CallId call = NewCall();
  Do(MappedCall{session, call, TheJob().id, 1, 0, ""});
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(call)));
}
TEST_F(MapTest, AnotherSessionsJobIsRefused) {
  const TestJob job = MappingJob(1);
  const CallId call = NewCall();
  Do(MappedCall{Open(200), call, job.id, 1, 0, ""});
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(call)));
}

using LifeTest = MachineTest;

TEST_F(LifeTest, LeavingTellsThePeersAndBreaksNothing) {
  const TestJob job = ReadyJob(3);
  EXPECT_TRUE(StatusOf(Leave(job, 1)).ok());
  EXPECT_EQ(TheJob().state, JobState::kReady);
  EXPECT_EQ(TheJob().ranks[1].state, RankState::kLeft);
  for (const size_t peer : {0, 2}) {
    const auto seen = Watched<RankChanged>(job.sessions[peer]);
    ASSERT_THAT(seen, SizeIs(1));
    EXPECT_EQ(seen[0].rank, 1u);
    EXPECT_EQ(seen[0].state, RankState::kLeft);
    EXPECT_EQ(seen[0].pid, 101);
  }
  EXPECT_THAT(Watched<RankChanged>(job.sessions[1]), IsEmpty());
  for (const SetRankState& set : All<SetRankState>()) EXPECT_FALSE(set.abort);
}
TEST_F(LifeTest, LastOneToLeaveEndsTheJob) {
  const TestJob job = ReadyJob(2);
  Leave(job, 0);
  EXPECT_THAT(to_drop_, IsEmpty());
  Leave(job, 1);
  EXPECT_THAT(to_drop_, SizeIs(2));
  EXPECT_THAT(All<DropPages>(), SizeIs(1));
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 2 * kHeap);
  DropSegments();
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
  EXPECT_EQ(Events<event::JobEnded>().size(), 1u);
}
TEST_F(LifeTest, LeavingTwiceIsFine) {
  const TestJob job = ReadyJob(2);
  Leave(job, 0);
  EXPECT_TRUE(StatusOf(Leave(job, 0)).ok());
}
TEST_F(LifeTest, LeavingAnothersJobIsRefused) {
  const TestJob job = ReadyJob(1);
  const CallId call = NewCall();
  Do(LeaveCall{Open(200), call, job.id});
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(call)));
}
TEST_F(LifeTest, LeavingJobZeroIsRefused) {
  const CallId call = NewCall();
  Do(LeaveCall{Open(200), call, JobId{0}});
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(call)));
}
TEST_F(LifeTest, SessionMayJoinAgainAfterLeaving) {
  const TestJob job = ReadyJob(1);
  Leave(job, 0);
  const CallId call = Join(job.sessions[0], Spec(0, 1));
  CreateSegments();
  EXPECT_TRUE(StatusOf(call).ok());
  EXPECT_NE(ResultOf<JoinResult>(call).job, job.id);
}
TEST_F(LifeTest, HangUpBreaksTheJobAndTellsThePeersAtOnce) {
  const TestJob job = ReadyJob(2);
  effects_.clear();
  HangUp(job.sessions[1]);
  EXPECT_EQ(TheJob().state, JobState::kBroken);
  const auto states = All<SetRankState>();
  ASSERT_THAT(states, SizeIs(1));
  EXPECT_EQ(states[0].state, RankState::kEnding);
  EXPECT_TRUE(states[0].abort);
  const auto seen = Watched<RankChanged>(job.sessions[0]);
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0].state, RankState::kEnding);
  EXPECT_THAT(seen[0].reason, HasSubstr("rank 1 (pid 101) hung up"));
}
TEST_F(LifeTest, HangUpKeepsTheMemoryUntilTheProcessIsGone) {
  const TestJob job = ReadyJob(1);
  HangUp(job.sessions[0]);
  EXPECT_THAT(to_drop_, IsEmpty());
  EXPECT_EQ(TheJob().ranks[0].state, RankState::kEnding);
  Gone(job.sessions[0]);
  EXPECT_THAT(to_drop_, SizeIs(1));
  for (const SessionSnapshot& session : machine_->Sessions()) {
    EXPECT_NE(session.id, job.sessions[0]);
  }
}
TEST_F(LifeTest, DeathWithoutHangUpBreaksTheJob) {
  const TestJob job = ReadyJob(2);
  effects_.clear();
  Gone(job.sessions[0]);
  EXPECT_EQ(TheJob().state, JobState::kBroken);
  ASSERT_THAT(All<SetRankState>(), SizeIs(1));
  EXPECT_EQ(All<SetRankState>()[0].state, RankState::kDead);
  EXPECT_TRUE(All<SetRankState>()[0].abort);
  EXPECT_EQ(Events<event::RankDead>().size(), 1u);
  EXPECT_EQ(Events<event::JobBroken>().size(), 1u);
}
TEST_F(LifeTest, BrokenJobEndsWhenEveryoneIsGoneOrHasLeft) {
  const TestJob job = ReadyJob(3);
  HangUp(job.sessions[0]);
  Gone(job.sessions[0]);
  EXPECT_TRUE(StatusOf(Leave(job, 1)).ok());
  EXPECT_THAT(to_drop_, IsEmpty());
  Gone(job.sessions[2]);
  EXPECT_THAT(to_drop_, SizeIs(3));
  EXPECT_TRUE(machine_->Jobs().empty());
}
TEST_F(LifeTest, SecondHangUpIsIgnored) {
  const TestJob job = ReadyJob(2);
  HangUp(job.sessions[0]);
  EXPECT_THAT(Do(SessionHungUp{job.sessions[0], "test"}), IsEmpty());
  EXPECT_THAT(Do(SessionHungUp{SessionId{99}, "test"}), IsEmpty());
}
TEST_F(LifeTest, GoneOfAnUnknownSessionIsIgnored) {
  EXPECT_THAT(Do(ProcessGone{SessionId{99}}), IsEmpty());
}
TEST_F(LifeTest, SessionThatNeverJoinedComesAndGoes) {
  const SessionId session = Open(100);
  EXPECT_THAT(machine_->Sessions(), SizeIs(1));
  HangUp(session);
  EXPECT_THAT(machine_->Sessions(), IsEmpty());
  ASSERT_THAT(All<ReleaseSession>(), SizeIs(1));
  EXPECT_EQ(All<ReleaseSession>()[0].session, session);
  EXPECT_EQ(Events<event::SessionClosed>().size(), 1u);
  Gone(session);
  EXPECT_THAT(All<ReleaseSession>(), SizeIs(1));
}
TEST_F(LifeTest, SessionWithARankIsKeptUntilItsProcessIsGone) {
  const TestJob job = ReadyJob(1);
  HangUp(job.sessions[0]);
  ASSERT_THAT(machine_->Sessions(), SizeIs(1));
  EXPECT_TRUE(machine_->Sessions()[0].ending);
  EXPECT_THAT(All<ReleaseSession>(), IsEmpty());
  Gone(job.sessions[0]);
  EXPECT_THAT(machine_->Sessions(), IsEmpty());
  EXPECT_THAT(All<ReleaseSession>(), SizeIs(1));
}
TEST_F(LifeTest, OrderlyExitIsNoWarningAndEventsComeInOrder) {
  const TestJob job = ReadyJob(2);
  for (size_t rank = 0; rank < 2; ++rank) Leave(job, rank);
  for (const SessionId session : job.sessions) HangUp(session);
  std::vector<std::string> kinds;
  for (const EmitEvent& effect : All<EmitEvent>()) {
    kinds.emplace_back(KindOf(effect.event));
    EXPECT_NE(SeverityOf(effect.event), Severity::kWarning) << kinds.back();
  }
  EXPECT_THAT(kinds, ElementsAre("session_opened", "job_forming", "rank_joined", "session_opened",
                                 "rank_joined", "job_mapping", "job_ready", "rank_left",
                                 "rank_left", "job_ended", "session_hung_up", "session_closed",
                                 "session_hung_up", "session_closed"));
}
TEST_F(LifeTest, DeathAtEveryStepOfAJoinLeavesNothing) {
  for (int step = 0; step <= 6; ++step) {
    SCOPED_TRACE(step);
    Restart();
    to_create_.clear();
    to_drop_.clear();
    TestJob job;
    job.sessions = {Open(100), Open(101)};
    CallId call;
    if (step >= 1) call = Join(job.sessions[0], Spec(0, 2));
    if (step >= 2) CreateSegments();
    if (step >= 3) Join(job.sessions[1], Spec(1, 2));
    if (step >= 4) CreateSegments();
    if (step >= 4) job.id = ResultOf<JoinResult>(call).job;
    if (step >= 5) Mapped(job, 0);
    if (step >= 6) Mapped(job, 1);
    HangUp(job.sessions[0]);
    Gone(job.sessions[0]);
    Gone(job.sessions[1]);
    DropSegments();
    EXPECT_EQ(machine_->ledger().used_bytes_total(), 0u);
    EXPECT_TRUE(machine_->Jobs().empty());
    EXPECT_TRUE(machine_->Sessions().empty());
    EXPECT_EQ(machine_->NextDeadline(), absl::InfiniteFuture());
  }
}

using WatchTest = MachineTest;

TEST_F(WatchTest, RepeatsWhoIsNoLongerThere) {
  const TestJob job = ReadyJob(4);
  Leave(job, 1);
  Gone(job.sessions[2]);
  HangUp(job.sessions[3]);
  effects_.clear();
  EXPECT_TRUE(StatusOf(Watch(job.sessions[0], job.id)).ok());
  const auto seen = Watched<RankChanged>(job.sessions[0]);
  ASSERT_THAT(seen, SizeIs(3));
  EXPECT_EQ(seen[0].state, RankState::kLeft);
  EXPECT_EQ(seen[1].state, RankState::kDead);
  EXPECT_EQ(seen[2].state, RankState::kEnding);
}
TEST_F(WatchTest, SaysNothingWhenAllIsWell) {
  const TestJob job = ReadyJob(2);
  effects_.clear();
  EXPECT_TRUE(StatusOf(Watch(job.sessions[0], job.id)).ok());
  ASSERT_THAT(All<NotifyWatch>(), SizeIs(1));
  EXPECT_THAT(Watched<WatchEstablished>(job.sessions[0]), SizeIs(1));
}
TEST_F(WatchTest, ANewStreamEndsTheEarlierOneBeforeItIsAccepted) {
  const TestJob job = ReadyJob(1);
  effects_.clear();
  const CallId call = Watch(job.sessions[0], job.id);
  ASSERT_THAT(effects_, SizeIs(3));
  ASSERT_TRUE(std::holds_alternative<EndWatch>(effects_[0]));
  EXPECT_TRUE(absl::IsCancelled(std::get<EndWatch>(effects_[0]).status));
  EXPECT_EQ(std::get<Reply>(effects_[1]).call, call);
}
TEST_F(WatchTest, EndsWithItsSession) {
  const TestJob job = ReadyJob(2);
  Watch(job.sessions[0], job.id);
  effects_.clear();
  HangUp(job.sessions[0]);
  ASSERT_THAT(All<EndWatch>(), SizeIs(1));
  EXPECT_TRUE(absl::IsAborted(All<EndWatch>()[0].status));
}
TEST_F(WatchTest, AnothersJobIsRefused) {
  const TestJob job = ReadyJob(1);
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Watch(Open(200), job.id))));
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Watch(job.sessions[0], JobId{99}))));
}

class ResumeTest : public MachineTest {
 protected:
  SessionId OpenAs(int64_t pid, const Party& party, uint64_t process_start) {
    const SessionId id{next_session_++};
    Do(SessionOpened{id, {.pid = pid, .party = party, .process_start = process_start}});
    return id;
  }
};

TEST_F(ResumeTest, LoneRankTakesItsRankBack) {
  TestJob job = ReadyJob(1);
  HangUp(job.sessions[0]);
  const SessionId fresh = Open(100);
  const CallId call = Resume(fresh, job, 0);
  EXPECT_EQ(ResultOf<ResumeResult>(call).state, RankState::kReady);
  Gone(job.sessions[0]);  // the old session's end changes nothing now
  EXPECT_EQ(TheJob().ranks[0].state, RankState::kReady);
  job.sessions[0] = fresh;
  EXPECT_TRUE(StatusOf(Ask(job, 0, 0, AllocateOp{.bytes = 100})).ok());
  EXPECT_TRUE(StatusOf(Resume(fresh, job, 0)).ok());  // a retry
  EndJob(job);
}
TEST_F(ResumeTest, PositionsSurvive) {
  TestJob job = ReadyJob(1);
  const uint64_t offset = OffsetOf(Ask(job, 0, 0, AllocateOp{.bytes = 100}));
  HangUp(job.sessions[0]);
  job.sessions[0] = Open(100);
  Resume(job.sessions[0], job, 0);
  EXPECT_EQ(OffsetOf(Ask(job, 0, 0, AllocateOp{.bytes = 100})), offset);
  EXPECT_NE(OffsetOf(Ask(job, 0, 1, AllocateOp{.bytes = 100})), offset);
}
TEST_F(ResumeTest, JobThatBrokeStaysBrokenButCanBeLeft) {
  TestJob job = ReadyJob(2);
  HangUp(job.sessions[1]);
  const SessionId fresh = Open(101);
  const CallId call = Resume(fresh, job, 1);
  EXPECT_TRUE(absl::IsAborted(StatusOf(call)));
  EXPECT_THAT(StatusOf(call).message(), HasSubstr("rank 1 (pid 101) hung up"));
  job.sessions[1] = fresh;
  EXPECT_TRUE(absl::IsAborted(StatusOf(Ask(job, 1, 0, AllocateOp{.bytes = 1}))));
  EXPECT_TRUE(StatusOf(Leave(job, 1)).ok());
  EXPECT_TRUE(StatusOf(Leave(job, 0)).ok());
  EXPECT_TRUE(machine_->Jobs().empty());
}
TEST_F(ResumeTest, AnotherProcessIsRefused) {
  TestJob job = ReadyJob(1);
  HangUp(job.sessions[0]);
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Resume(OpenAs(101, {1000}, 7), job, 0))));
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Resume(OpenAs(100, {1000}, 8), job, 0))));
  EXPECT_TRUE(absl::IsNotFound(StatusOf(Resume(OpenAs(100, {1001}, 7), job, 0))));
  EXPECT_EQ(TheJob().ranks[0].state, RankState::kEnding);
}
TEST_F(ResumeTest, SessionThatStillStandsIsNotTakenOver) {
  TestJob job = ReadyJob(1);
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(Resume(Open(100), job, 0))));
  EXPECT_EQ(TheJob().ranks[0].session, job.sessions[0]);
}
TEST_F(ResumeTest, UnknownJobIsNotFound) {
  TestJob job = ReadyJob(1);
  HangUp(job.sessions[0]);
  const SessionId fresh = Open(100);
  EXPECT_TRUE(absl::IsNotFound(StatusOf(Resume(fresh, job, 0, "other"))));
  job.id = JobId{99};
  EXPECT_TRUE(absl::IsNotFound(StatusOf(Resume(fresh, job, 0))));
}
TEST_F(ResumeTest, WrongEpochOrRankIsRefused) {
  TestJob job = ReadyJob(1);
  HangUp(job.sessions[0]);
  const SessionId fresh = Open(100);
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Resume(fresh, job, 0, "train", 2))));
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Resume(fresh, job, 1))));
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Resume(fresh, job, -1))));
}
TEST_F(ResumeTest, RankThatLeftIsNotTakenBack) {
  TestJob job = ReadyJob(2);
  Leave(job, 0);
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(Resume(Open(100), job, 0))));
}
TEST_F(ResumeTest, MemberOfAnotherJobIsRefused) {
  TestJob job = ReadyJob(1);
  HangUp(job.sessions[0]);
  const SessionId fresh = Open(100);
  Join(fresh, With(Spec(0, 2), &JoinSpec::job, "other"));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(Resume(fresh, job, 0))));
}

using StopTest = MachineTest;

TEST_F(StopTest, EveryPendingAndLaterCallIsUnavailable) {
  const TestJob ready = ReadyJob(2);
  const CallId operation = Ask(ready, 0, 0, AllocateOp{.bytes = 1});
  JoinSpec other = Spec(0, 2);
  other.job = "other";
  const CallId join = Join(Open(200), other);
  Do(StopRequested{"test"});
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(operation)));
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(join)));
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(Ask(ready, 1, 0, AllocateOp{.bytes = 1}))));
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(Join(Open(201), other))));
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(Leave(ready, 0))));
  EndJob(ready);
}
TEST_F(StopTest, MappingCallsAreAnswered) {
  const TestJob job = MappingJob(2);
  const CallId call = Mapped(job, 0);
  Do(StopRequested{"test"});
  EXPECT_TRUE(absl::IsUnavailable(StatusOf(call)));
  Do(StopRequested{"test"});
  EndJob(job);
}

TEST_F(StopTest, TellsEveryWatcherAndLeavesTheStatusPagesAlone) {
  const TestJob job = ReadyJob(2);
  effects_.clear();
  Do(StopRequested{"test"});
  for (const SessionId session : job.sessions) {
    ASSERT_THAT(Watched<WatchStopping>(session), SizeIs(1));
    EXPECT_EQ(Watched<WatchStopping>(session)[0].reason, "test");
  }
  ASSERT_THAT(All<EndWatch>(), SizeIs(2));
  EXPECT_EQ(All<EndWatch>()[0].status, absl::UnavailableError("irisd is stopping: test"));
  // irisd closes every session itself now. The ranks live on: their barriers must not end.
  HangUp(job.sessions[0]);
  EXPECT_THAT(All<SetRankState>(), IsEmpty());
}

using SnapshotTest = MachineTest;

TEST_F(SnapshotTest, ShowsTheJob) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, AllocateOp{.bytes = 5000, .name = "x", .tensor = {"f32", {10, 125}}});
  const JobSnapshot shot = TheJob();
  EXPECT_EQ(shot.name, "train");
  EXPECT_EQ(shot.party, Party{1000});
  EXPECT_EQ(shot.state, JobState::kReady);
  EXPECT_EQ(shot.heap_bytes, kHeap);
  EXPECT_EQ(shot.n_teams, 1u);
  EXPECT_EQ(shot.allocated_bytes, 8 * kKiB + 5 * kKiB);
  EXPECT_EQ(shot.largest_free_bytes, kHeap - 13 * kKiB);
  ASSERT_THAT(shot.ranks, SizeIs(2));
  EXPECT_EQ(shot.ranks[1].pid, 101);
  EXPECT_EQ(shot.ranks[1].session, job.sessions[1]);
  EXPECT_EQ(shot.ranks[1].base, wire::kProposedBase);
  ASSERT_THAT(shot.ranks[1].segments, SizeIs(1));
  ASSERT_THAT(shot.allocations, SizeIs(2));
  EXPECT_EQ(shot.allocations[1].name, "x");
  EXPECT_EQ(shot.allocations[1].bytes, 5000u);
  EXPECT_EQ(shot.allocations[1].tensor.dtype, "f32");
  EXPECT_EQ(shot.allocations[1].created, clock_.Now());
}
TEST_F(SnapshotTest, ShowsSessionsInOrder) {
  const TestJob job = ReadyJob(1);
  Open(500, {2000});
  const auto shots = machine_->Sessions();
  ASSERT_THAT(shots, SizeIs(2));
  EXPECT_EQ(shots[0].job, "train");
  EXPECT_EQ(shots[0].rank, 0);
  EXPECT_EQ(shots[1].job, "");
  EXPECT_EQ(shots[1].rank, -1);
  EXPECT_EQ(shots[1].caller.party, Party{2000});
}

}  // namespace
}  // namespace iris::server
