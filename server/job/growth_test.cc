// Growth of the heap: two phases, one outcome, and no leftovers after a failure.
#include <string>
#include <vector>

#include "server/job/testing/job_machine_testing.h"

namespace iris::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class GrowthTest : public MachineTest {
 protected:
  static AllocateOp TooBig() { return {.bytes = kHeap}; }
  GrowId CurrentGrow(const TestJob& job) {
    const auto added = Watched<SegmentsAdded>(job.sessions[0]);
    return added.empty() ? GrowId{1} : added.back().grow;
  }
  void MapGrowth(const TestJob& job) {
    const GrowId grow = CurrentGrow(job);
    for (size_t rank = 0; rank < job.size(); ++rank) {
      EXPECT_TRUE(StatusOf(GrowMapped(job, rank, grow)).ok());
    }
  }
  void ExpectUngrown(const TestJob& job) {
    EXPECT_EQ(TheJob().heap_bytes, kHeap);
    EXPECT_THAT(TheJob().ranks[0].segments, SizeIs(1));
    DropSegments();
    EXPECT_EQ(machine_->ledger().used_bytes_total(), job.size() * kHeap);
  }
};

TEST_F(GrowthTest, AllocationThatDoesNotFitGrowsTheHeap) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, TooBig());
  EXPECT_FALSE(Answered(calls[0]));
  ASSERT_THAT(to_create_, SizeIs(2));
  EXPECT_EQ(to_create_[0].bytes, kHeap);
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 4 * kHeap);
  effects_.clear();
  CreateSegments();
  // Phase two: descriptors and news to every rank.
  ASSERT_THAT(All<SendDescriptors>(), SizeIs(2));
  EXPECT_FALSE(All<SendDescriptors>()[0].pages);
  EXPECT_THAT(All<SendDescriptors>()[0].segments, SizeIs(2));
  ASSERT_THAT(Watched<SegmentsAdded>(job.sessions[1]), SizeIs(1));
  const SegmentsAdded added = Watched<SegmentsAdded>(job.sessions[1])[0];
  EXPECT_EQ(added.heap_bytes, 2 * kHeap);
  ASSERT_THAT(added.segments, SizeIs(2));
  EXPECT_EQ(added.segments[1].rank, 1u);
  EXPECT_EQ(added.segments[1].index, 1u);
  EXPECT_EQ(added.segments[1].offset_bytes, kHeap);
  EXPECT_TRUE(StatusOf(GrowMapped(job, 0, added.grow)).ok());
  EXPECT_FALSE(Answered(calls[0]));
  EXPECT_EQ(TheJob().heap_bytes, kHeap);
  EXPECT_TRUE(StatusOf(GrowMapped(job, 1, added.grow)).ok());
  EXPECT_TRUE(OneOutcome(calls).ok()) << OneOutcome(calls);
  EXPECT_EQ(OffsetOf(calls[0]), 8 * kKiB);
  EXPECT_EQ(ResultOf<OperationResult>(calls[0]).heap_bytes, 2 * kHeap);
  EXPECT_EQ(TheJob().heap_bytes, 2 * kHeap);
  ASSERT_THAT(Watched<GrowDone>(job.sessions[0]), SizeIs(1));
  EXPECT_TRUE(Watched<GrowDone>(job.sessions[0])[0].published);
  EXPECT_EQ(Events<event::HeapGrown>().size(), 1u);
  EndJob(job);
}
TEST_F(GrowthTest, NewsPrecedesTheOutcome) {
  const TestJob job = ReadyJob(1);
  const CallId call = Ask(job, 0, 0, TooBig());
  CreateSegments();
  MapGrowth(job);
  size_t done = 0, reply = 0;
  for (size_t i = 0; i < effects_.size(); ++i) {
    if (const auto* notify = std::get_if<NotifyWatch>(&effects_[i]);
        notify != nullptr && std::holds_alternative<GrowDone>(notify->event)) {
      done = i;
    }
    if (const auto* answer = std::get_if<Reply>(&effects_[i]);
        answer != nullptr && answer->call == call)
      reply = i;
  }
  EXPECT_LT(done, reply);
}
TEST_F(GrowthTest, GrowsByWhatIsNeededIfThatIsMore) {
  const TestJob job = ReadyJob(1);
  Ask(job, 0, 0, AllocateOp{.bytes = 3 * kHeap});
  ASSERT_THAT(to_create_, SizeIs(1));
  EXPECT_EQ(to_create_[0].bytes, 2 * kHeap + kGranularity);
}
TEST_F(GrowthTest, GrowsOnlyByWhatIsNeededWhenMemoryIsShort) {
  JoinSpec spec = Spec(0, 1);
  spec.heap_bytes = 40 * kMiB;
  const TestJob job = ReadyJob(1, spec);
  const CallId call = Ask(job, 0, 0, AllocateOp{.bytes = 50 * kMiB});
  ASSERT_THAT(to_create_, SizeIs(1));
  EXPECT_EQ(to_create_[0].bytes, 10 * kMiB + kGranularity);
  CreateSegments();
  MapGrowth(job);
  EXPECT_TRUE(StatusOf(call).ok());
}
TEST_F(GrowthTest, ExplicitGrowth) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, GrowOp{kHeap + 1});
  CreateSegments();
  MapGrowth(job);
  EXPECT_TRUE(OneOutcome(calls).ok());
  EXPECT_EQ(ResultOf<OperationResult>(calls[0]).heap_bytes, 2 * kHeap + kGranularity);
}
TEST_F(GrowthTest, ExplicitGrowthAddsEvenWhenThereIsRoom) {
  const TestJob job = ReadyJob(1);
  Ask(job, 0, 0, GrowOp{1});
  CreateSegments();
  MapGrowth(job);
  EXPECT_EQ(TheJob().heap_bytes, kHeap + kGranularity);
}
TEST_F(GrowthTest, BadExplicitGrowthIsRefused) {
  const TestJob job = ReadyJob(1);
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Ask(job, 0, 0, GrowOp{0}))));
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Ask(job, 0, 1, GrowOp{3 * kHeap + 1}))));
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Ask(job, 0, 2, GrowOp{~uint64_t{0}}))));
  Ask(job, 0, 3, CreateTeamOp{{0}});
  EXPECT_TRUE(absl::IsInvalidArgument(StatusOf(Ask(job, 0, 0, GrowOp{1}, 1))));
}
TEST_F(GrowthTest, NotBeyondTheStride) {
  const TestJob job = ReadyJob(1);
  const absl::Status status = StatusOf(Ask(job, 0, 0, AllocateOp{.bytes = 4 * kHeap}));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(),
              HasSubstr("3 MiB of a maximum of 4 MiB are left (max_heap_bytes of a Context"));
  EXPECT_THAT(to_create_, IsEmpty());
}
TEST_F(GrowthTest, UpToTheStrideExactly) {
  const TestJob job = ReadyJob(1);
  for (uint64_t k = 0; k < 3; ++k) {
    const CallId call = Ask(job, 0, k, GrowOp{kHeap});
    CreateSegments();
    MapGrowth(job);
    EXPECT_TRUE(StatusOf(call).ok());
  }
  EXPECT_EQ(TheJob().heap_bytes, TheJob().stride_bytes);
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Ask(job, 0, 3, GrowOp{1}))));
}
TEST_F(GrowthTest, NoMemoryOnOneDeviceFailsItForAll) {
  JoinSpec spec = Spec(0, 2);
  spec.heap_bytes = 16 * kMiB;
  const TestJob job = ReadyJob(2, spec);
  JoinSpec hog = Spec(0, 1);
  hog.job = "hog";
  hog.heap_bytes = 40 * kMiB;
  hog.device_uuid = "dev-1";
  Join(Open(300), hog);
  const uint64_t used = machine_->ledger().used_bytes_total();
  const absl::Status status = OneOutcome(AskAll(job, 0, GrowOp{16 * kMiB}));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("held: 40 MiB by job 'hog', 16 MiB by job 'train'"));
  EXPECT_EQ(machine_->ledger().used_bytes_total(), used);
}
TEST_F(GrowthTest, FailedCreationFailsEveryRank) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, TooBig());
  Do(SegmentCreated{to_create_[0].id, absl::OkStatus()});
  Do(SegmentCreated{to_create_[1].id, absl::ResourceExhaustedError("ENOSPC")});
  const absl::Status status = OneOutcome(calls);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(),
              HasSubstr("memory of rank 1 (pid 101) could not be created: ENOSPC"));
  EXPECT_EQ(Events<event::GrowthFailed>().size(), 1u);
  EXPECT_THAT(Watched<GrowDone>(job.sessions[0]), IsEmpty());  // it was never announced
  ExpectUngrown(job);
  EXPECT_TRUE(OneOutcome(AskAll(job, 1, AllocateOp{.bytes = 1})).ok());
}
TEST_F(GrowthTest, FailedMappingFailsEveryRank) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, TooBig());
  CreateSegments();
  const GrowId grow = CurrentGrow(job);
  GrowMapped(job, 0, grow);
  GrowMapped(job, 1, grow, "mmap: no room");
  const absl::Status status = OneOutcome(calls);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 (pid 101) could not map: mmap: no room"));
  const auto done = Watched<GrowDone>(job.sessions[0]);
  ASSERT_THAT(done, SizeIs(1));
  EXPECT_FALSE(done[0].published);
  EXPECT_THAT(done[0].reason, HasSubstr("could not map"));
  ExpectUngrown(job);
}
TEST_F(GrowthTest, TimeOutNamesWhoHasNotMapped) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, TooBig());
  CreateSegments();
  GrowMapped(job, 0, CurrentGrow(job));
  Advance(JobLimits().grow_timeout);
  const absl::Status status = OneOutcome(calls);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("not mapped by rank 1 (pid 101)"));
  ExpectUngrown(job);
}
TEST_F(GrowthTest, TimeOutOfCreationNamesTheMemory) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, TooBig());
  Advance(JobLimits().grow_timeout);
  EXPECT_THAT(OneOutcome(calls).message(),
              HasSubstr("memory not created for rank 0 (pid 100), rank 1 (pid 101)"));
  ExpectUngrown(job);
}
TEST_F(GrowthTest, DeathWhileCreatingAborts) {
  const TestJob job = ReadyJob(2);
  const auto calls = AskAll(job, 0, TooBig());
  HangUp(job.sessions[1]);
  EXPECT_TRUE(absl::IsAborted(OneOutcome(calls)));
  EXPECT_THAT(StatusOf(calls[0]).message(), HasSubstr("rank 1 (pid 101) hung up"));
  ExpectUngrown(job);
  EndJob(job);
}
TEST_F(GrowthTest, DeathWhileMappingAborts) {
  const TestJob job = ReadyJob(3);
  const auto calls = AskAll(job, 0, TooBig());
  CreateSegments();
  GrowMapped(job, 0, CurrentGrow(job));
  Gone(job.sessions[2]);
  EXPECT_TRUE(absl::IsAborted(OneOutcome(calls)));
  ASSERT_THAT(Watched<GrowDone>(job.sessions[0]), SizeIs(1));
  EXPECT_FALSE(Watched<GrowDone>(job.sessions[0])[0].published);
  ExpectUngrown(job);
  EndJob(job);
}
TEST_F(GrowthTest, LeavingWhileMappingAborts) {
  const TestJob job = ReadyJob(2);
  Ask(job, 0, 0, CreateTeamOp{{0}});
  Ask(job, 1, 0, CreateTeamOp{{0}});
  const CallId call = Ask(job, 0, 0, TooBig(), 1);
  CreateSegments();
  Leave(job, 1);
  EXPECT_TRUE(absl::IsAborted(StatusOf(call)));
  ExpectUngrown(job);
}
TEST_F(GrowthTest, NotAfterARankHasLeft) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, CreateTeamOp{{0}});
  Leave(job, 1);
  const absl::Status status = StatusOf(Ask(job, 0, 0, TooBig(), 1));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 (pid 101) is no longer in the job"));
}
TEST_F(GrowthTest, RanksOutsideTheTeamMapToo) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, CreateTeamOp{{0}});
  const CallId call = Ask(job, 0, 0, TooBig(), 1);
  CreateSegments();
  EXPECT_THAT(Watched<SegmentsAdded>(job.sessions[1]), SizeIs(1));
  MapGrowth(job);
  EXPECT_TRUE(StatusOf(call).ok());
}
TEST_F(GrowthTest, OnlyOneAtATimeTheOthersQueue) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, CreateTeamOp{{0}});
  AskAll(job, 1, CreateTeamOp{{1}});
  const CallId first = Ask(job, 0, 0, TooBig(), 1);
  const CallId second = Ask(job, 1, 0, TooBig(), 2);
  EXPECT_THAT(to_create_, SizeIs(2));
  CreateSegments();
  MapGrowth(job);
  EXPECT_TRUE(StatusOf(first).ok());
  EXPECT_FALSE(Answered(second));
  EXPECT_THAT(to_create_, SizeIs(2));
  CreateSegments();
  MapGrowth(job);
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_NE(OffsetOf(first), OffsetOf(second));
  EXPECT_EQ(TheJob().heap_bytes, 3 * kHeap);
}
TEST_F(GrowthTest, QueuedAllocationUsesTheFirstGrowthIfItFits) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, CreateTeamOp{{0}});
  AskAll(job, 1, CreateTeamOp{{1}});
  Ask(job, 0, 0, AllocateOp{.bytes = 1000 * kKiB}, 1);
  const CallId second = Ask(job, 1, 0, AllocateOp{.bytes = 1020 * kKiB}, 2);
  CreateSegments();
  MapGrowth(job);
  EXPECT_TRUE(StatusOf(second).ok());
  EXPECT_EQ(TheJob().heap_bytes, 2 * kHeap);
}
TEST_F(GrowthTest, OtherTeamsAllocateMeanwhile) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, CreateTeamOp{{0}});
  const auto growing = AskAll(job, 1, TooBig());
  EXPECT_TRUE(StatusOf(Ask(job, 0, 0, AllocateOp{.bytes = 1}, 1)).ok());
  EXPECT_FALSE(Answered(growing[0]));
}
TEST_F(GrowthTest, TeamsAreaThatDoesNotFitGrowsTheHeap) {
  const TestJob job = ReadyJob(1);
  Ask(job, 0, 0, AllocateOp{.bytes = kHeap - 8 * kKiB});
  const CallId call = Ask(job, 0, 1, CreateTeamOp{{0}});
  EXPECT_FALSE(Answered(call));
  CreateSegments();
  MapGrowth(job);
  ASSERT_TRUE(StatusOf(call).ok());
  EXPECT_EQ(ResultOf<OperationResult>(call).team->sync_offset_bytes, kHeap);
}
TEST_F(GrowthTest, TheAreasOfASplitGrowTheHeapOnce) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, AllocateOp{.bytes = kHeap - 16 * kKiB});  // room for one team
  const CallId a = Ask(job, 0, 1, SplitOp{{{0, 0, 0}}});
  const CallId b = Ask(job, 1, 1, SplitOp{{{1, 1, 0}}});
  EXPECT_FALSE(Answered(a));
  EXPECT_EQ(TheJob().n_teams, 1u);
  EXPECT_EQ(TheJob().allocations.size(), 2u);
  CreateSegments();
  MapGrowth(job);
  EXPECT_TRUE(OneOutcome({a, b}).ok());
  EXPECT_EQ(ResultOf<OperationResult>(a).team->id, 1u);
  EXPECT_EQ(ResultOf<OperationResult>(b).team->id, 2u);
  EXPECT_EQ(TheJob().heap_bytes, 2 * kHeap);
}
TEST_F(GrowthTest, ReportsAreIdempotent) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, TooBig());
  CreateSegments();
  const GrowId grow = CurrentGrow(job);
  EXPECT_TRUE(StatusOf(GrowMapped(job, 0, grow)).ok());
  EXPECT_TRUE(StatusOf(GrowMapped(job, 0, grow)).ok());
  EXPECT_EQ(TheJob().heap_bytes, kHeap);  // rank 0 twice is not rank 1
  GrowMapped(job, 1, grow);
  EXPECT_TRUE(StatusOf(GrowMapped(job, 0, grow)).ok());
}
TEST_F(GrowthTest, ReportOfAFailedGrowthSaysSo) {
  const TestJob job = ReadyJob(2);
  AskAll(job, 0, TooBig());
  CreateSegments();
  const GrowId grow = CurrentGrow(job);
  GrowMapped(job, 1, grow, "no");
  EXPECT_TRUE(absl::IsAborted(StatusOf(GrowMapped(job, 0, grow))));
}
TEST_F(GrowthTest, ReportsOfWhatIsNotMappedAreRefused) {
  const TestJob job = ReadyJob(1);
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(GrowMapped(job, 0, GrowId{0}))));
  EXPECT_TRUE(absl::IsFailedPrecondition(StatusOf(GrowMapped(job, 0, GrowId{1}))));
  Ask(job, 0, 0, TooBig());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(StatusOf(GrowMapped(job, 0, GrowId{1}))));  // being created
  TestJob stranger = job;
  stranger.sessions[0] = Open(300);
  EXPECT_TRUE(absl::IsPermissionDenied(StatusOf(GrowMapped(stranger, 0, GrowId{1}))));
}
TEST_F(GrowthTest, WatchThatStartsLateHearsOfTheGrowth) {
  const TestJob job = ReadyJob(1);
  Ask(job, 0, 0, TooBig());
  CreateSegments();
  effects_.clear();
  Watch(job.sessions[0], job.id);
  ASSERT_THAT(Watched<SegmentsAdded>(job.sessions[0]), SizeIs(1));
  MapGrowth(job);
  effects_.clear();
  Watch(job.sessions[0], job.id);
  EXPECT_THAT(Watched<SegmentsAdded>(job.sessions[0]), IsEmpty());
  EXPECT_THAT(Watched<GrowDone>(job.sessions[0]), SizeIs(1));
}
TEST_F(GrowthTest, LoneRankThatHangsUpAbortsItsGrowth) {
  const TestJob job = ReadyJob(1);
  const CallId call = Ask(job, 0, 0, TooBig());
  HangUp(job.sessions[0]);
  EXPECT_TRUE(absl::IsAborted(StatusOf(call)));
  ExpectUngrown(job);
}
TEST_F(GrowthTest, SegmentsPerHeapAreBounded) {
  JoinSpec spec = Spec(0, 1);
  spec.max_heap_bytes = 40 * kMiB;
  const TestJob job = ReadyJob(1, spec);
  uint64_t k = 0;
  for (; k < wire::kMaxSegmentsPerHeap - 1; ++k) {
    Ask(job, 0, k, GrowOp{1});
    CreateSegments();
    MapGrowth(job);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOf(Ask(job, 0, k, GrowOp{1}))));
}

class GrowthQuotaTest : public GrowthTest {
 protected:
  JobLimits Limits() override {
    JobLimits limits;
    limits.max_heap_bytes_per_uid = 3 * kHeap;
    return limits;
  }
};
TEST_F(GrowthQuotaTest, QuotaCountsGrowth) {
  const TestJob job = ReadyJob(2);
  const absl::Status status = OneOutcome(AskAll(job, 0, GrowOp{kHeap}));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(status.message(), HasSubstr("uid 1000 holds 3 MiB of the 3 MiB"));
  EXPECT_EQ(machine_->ledger().used_bytes_total(), 2 * kHeap);
}

}  // namespace
}  // namespace iris::server
