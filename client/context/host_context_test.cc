#include "client/context/host_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/session/testing/fake_control_plane.h"

namespace iris::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using wire::DescriptorKind;
using wire::PageRankState;

constexpr uint64_t kGranule = FakeMemory::kGranule;

// Rank 0 of 2; the test plays irisd.
class HostContextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    plane_ = std::make_unique<FakeControlPlane>();
    JoinedJob& job = plane_->joined;
    job.job_id = ++job_id_;
    job.epoch = 3;
    job.stride_bytes = 4 * kGranule;
    job.heap_bytes = kGranule;
    job.segments = {{1, 0, 0, kGranule}, {2, 1, 0, kGranule}};
    job.peers = {{100, "emu-0", 0}, {101, "emu-0", 0}};
    job.backend = "emu";
    job.device_uuid = "emu-0";
    job.map_timeout = absl::Seconds(60);
    for (const uint64_t id : {1, 2}) {
      plane_->descriptors[Key(DescriptorKind::kSegment, 0, id)] = memory_.NewSegment();
    }
    for (const uint32_t rank : {0, 1}) {
      plane_->descriptors[Key(DescriptorKind::kControlPage, rank)] = FakeMemory::NewPage();
    }
    wire::UniqueFd status_page = FakeMemory::NewPage();
    void* const page =
        mmap(nullptr, wire::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, status_page.get(), 0);
    ASSERT_NE(page, MAP_FAILED);
    status_page_ = static_cast<wire::StatusPage*>(page);
    plane_->descriptors[Key(DescriptorKind::kStatusPage, 0)] = std::move(status_page);
    plane_->committed.same_address = true;
    plane_->committed.world = {0, {0, 1}, 0, 0, 0};
  }
  void TearDown() override { munmap(status_page_, wire::kPageBytes); }

  DescriptorKey Key(DescriptorKind kind, uint32_t rank, uint64_t segment_id = 0) const {
    return {kind, job_id_, 3, rank, segment_id};
  }
  // From here on `irisd_` is the plane that the context owns.
  absl::Status Join(ContextOptions options = {
                        .job = "job", .rank = 0, .n_ranks = 2, .local_rank = 0}) {
    irisd_ = plane_.get();
    auto made = HostContext::Create({std::move(options)}, std::move(plane_), absl::ZeroDuration());
    if (!made.ok()) return made.status();
    context_ = *std::move(made);
    return absl::OkStatus();
  }
  void SetState(uint32_t rank, PageRankState state, bool abort) {
    status_page_->rank_pid[rank] = 100 + rank;
    status_page_->rank_state[rank] = static_cast<uint32_t>(state);
    status_page_->abort = abort;
    if (abort) status_page_->broken_by = rank + 1;
  }

  FakeMemory memory_;
  std::unique_ptr<FakeControlPlane> plane_;
  FakeControlPlane* irisd_ = nullptr;
  HostContext::Owned context_;
  wire::StatusPage* status_page_ = nullptr;
  static inline uint64_t job_id_ = 3000;
};

TEST_F(HostContextTest, JoinsMapsAndReports) {
  ASSERT_TRUE(Join().ok());
  ASSERT_THAT(irisd_->joins, SizeIs(1));
  EXPECT_EQ(irisd_->joins[0].job, "job");
  ASSERT_THAT(irisd_->mapped, SizeIs(1));
  EXPECT_EQ(*irisd_->mapped[0], context_->window().base());
  EXPECT_EQ(context_->window().n_segments(), 2u);
  EXPECT_TRUE(context_->committed().same_address);
  EXPECT_EQ(context_->ranks_per_device(), 2u);
  EXPECT_TRUE(context_->Health().ok());
}

TEST_F(HostContextTest, DescriptorsThatComeAgainBeforeAllHaveMappedAreDropped) {
  plane_->on_mapped = [plane = plane_.get(), again = Key(DescriptorKind::kSegment, 0, 2),
                       grown = Key(DescriptorKind::kSegment, 0, 3)] {
    plane->descriptors[again] = FakeMemory::NewPage();
    plane->descriptors[grown] = FakeMemory::NewPage();
  };
  ASSERT_TRUE(Join().ok());
  ASSERT_THAT(irisd_->descriptors, SizeIs(1));
  EXPECT_EQ(irisd_->descriptors.begin()->first.segment_id, 3u);
}

TEST_F(HostContextTest, RankThatCannotMapTellsItsPeersWhy) {
  plane_->descriptors[Key(DescriptorKind::kSegment, 0, 2)] = FakeMemory::NewPage();
  std::vector<absl::StatusOr<uint64_t>>* mapped = &plane_->mapped;
  std::vector<absl::StatusOr<uint64_t>> seen;
  plane_->mapped_answer = absl::AbortedError("this very error");
  plane_->on_destroy = [&] { seen = *mapped; };
  const absl::Status status = Join();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("create a context (rank 0 of 2, job \"job\"): map segment 2"));
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_THAT(std::string(seen[0].status().message()), HasSubstr("map segment 2"));
}

TEST_F(HostContextTest, ARefusalThatNamesTheJobNamesItOnce) {
  plane_->join_answer = absl::AlreadyExistsError("join job 'job' as rank 0: it is taken");
  EXPECT_EQ(Join().message(), "create a context: join job 'job' as rank 0: it is taken");
}

TEST_F(HostContextTest, AnswerWithoutAllPeersIsRefused) {
  plane_->joined.peers.pop_back();
  EXPECT_EQ(Join().code(), absl::StatusCode::kInternal);
}

TEST_F(HostContextTest, WindowBeyondTheProtocolIsRefused) {
  plane_->joined.stride_bytes = wire::kMaxWindowBytes;
  EXPECT_EQ(Join().code(), absl::StatusCode::kInternal);
}

TEST_F(HostContextTest, WhoHungUpIsNotSaidToHaveDied) {
  ASSERT_TRUE(Join().ok());
  SetState(1, PageRankState::kEnding, true);
  context_->OnEvent(RankChange{1, PageRankState::kEnding, 101, "its session hung up"});
  const absl::Status hung_up = context_->Health();
  EXPECT_EQ(hung_up.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(hung_up.message()), HasSubstr("rank 1 (pid 101) hung up"));
  EXPECT_THAT(std::string(hung_up.message()), HasSubstr("(its session hung up)"));
  EXPECT_THAT(std::string(hung_up.message()), Not(HasSubstr("died")));
  SetState(1, PageRankState::kDead, true);
  context_->OnEvent(RankChange{1, PageRankState::kDead, 101, "its process is gone"});
  const absl::Status died = context_->Health();
  EXPECT_THAT(std::string(died.message()), HasSubstr("rank 1 (pid 101) died"));
  EXPECT_THAT(std::string(died.message()), HasSubstr("(its process is gone)"));
}

TEST_F(HostContextTest, LogTellsHangingUpFromDying) {
  ASSERT_TRUE(Join().ok());
  ::testing::internal::CaptureStderr();
  context_->OnEvent(RankChange{1, PageRankState::kEnding, 101, "a"});
  context_->OnEvent(RankChange{1, PageRankState::kDead, 101, "b"});
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, HasSubstr("rank 1 (pid 101) hung up: a\n"));
  EXPECT_THAT(printed, HasSubstr("rank 1 (pid 101) died: b\n"));
}

TEST_F(HostContextTest, LogSaysWhoIsGoneOnce) {
  ASSERT_TRUE(Join().ok());
  ::testing::internal::CaptureStderr();
  context_->OnEvent(
      RankChange{1, PageRankState::kEnding, 101, "rank 1 (pid 101) hung up (by force)"});
  context_->OnEvent(RankChange{1, PageRankState::kDead, 101, "rank 1 (pid 101) died"});
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, HasSubstr(": rank 1 (pid 101) hung up (by force)\n"));
  EXPECT_THAT(printed, HasSubstr(": rank 1 (pid 101) died\n"));
  EXPECT_THAT(printed, Not(HasSubstr("died: ")));
  EXPECT_THAT(printed, Not(HasSubstr("hung up: ")));
}

TEST_F(HostContextTest, WhatANewWatchStreamRepeatsIsNoNews) {
  ASSERT_TRUE(Join().ok());
  SetState(1, PageRankState::kDead, true);
  ::testing::internal::CaptureStderr();
  context_->OnEvent(RankChange{1, PageRankState::kDead, 101, "first"});
  context_->OnEvent(RankChange{1, PageRankState::kDead, 101, "again"});
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, HasSubstr("first"));
  EXPECT_THAT(printed, Not(HasSubstr("again")));
  EXPECT_THAT(std::string(context_->Health().message()), HasSubstr("(first)"));
}

TEST_F(HostContextTest, LeavingUnmapsBeforeIrisdIsToldAndEndsOnce) {
  ASSERT_TRUE(Join().ok());
  EXPECT_TRUE(context_->Usable().ok());
  EXPECT_TRUE(context_->Leave().ok());
  EXPECT_EQ(context_->window().n_segments(), 0u);
  EXPECT_EQ(context_->Usable().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(context_->Health().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(context_->Leave().code(), absl::StatusCode::kFailedPrecondition);
  int leaves = 0;
  irisd_->on_destroy = [irisd = irisd_, &leaves] {
    leaves = irisd->leaves;
    EXPECT_GE(irisd->stops, 1);
  };
  context_.reset();
  EXPECT_EQ(leaves, 1);
}

}  // namespace
}  // namespace iris::internal
