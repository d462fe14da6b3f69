#include "client/membership/growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/session/testing/fake_control_plane.h"

namespace iris::internal {
namespace {

using ::testing::SizeIs;

constexpr uint64_t kGranule = FakeMemory::kGranule;

// Two ranks; this one is rank 0. Every heap has one granule and room for three more.
class GrowthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto window = Window::Acquire({{77, ++job_id_, 1}, "emu", 2, 4 * kGranule, 0});
    ASSERT_TRUE(window.ok()) << window.status();
    window_ = *std::move(window);
    heap_.AtLeast(kGranule);
    growth_.emplace(Growth::Options{job_id_, 1, 0, {}}, &plane_, window_.get(), &heap_);
  }

  // Growth `id` by a granule for each of two ranks.
  SegmentsAdded Added(uint64_t id) {
    SegmentsAdded added;
    added.grow_id = id;
    added.heap_bytes = 2 * kGranule;
    added.timeout = absl::Seconds(60);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      added.segments.push_back({10 * id + rank, rank, kGranule, kGranule});
    }
    return added;
  }
  void Arrive(const Segment& segment, wire::UniqueFd fd) {
    plane_.descriptors[{wire::DescriptorKind::kSegment, job_id_, 1, 0, segment.segment_id}] =
        std::move(fd);
  }
  SegmentsAdded AddedAndSent(uint64_t id) {
    const SegmentsAdded added = Added(id);
    for (const Segment& segment : added.segments) Arrive(segment, memory_.NewSegment());
    return added;
  }

  FakeMemory memory_;
  FakeControlPlane plane_;
  HeapSize heap_;
  std::shared_ptr<Window> window_;
  std::optional<Growth> growth_;
  static inline uint64_t job_id_ = 1000;
};

TEST_F(GrowthTest, MapsAcknowledgesAndIsLargerOncePublished) {
  growth_->OnSegmentsAdded(AddedAndSent(1));
  ASSERT_THAT(plane_.grow_mapped, SizeIs(1));
  EXPECT_EQ(plane_.grow_mapped[0].first, 1u);
  EXPECT_TRUE(plane_.grow_mapped[0].second.ok()) << plane_.grow_mapped[0].second;
  EXPECT_EQ(window_->n_segments(), 2u);
  *reinterpret_cast<uint8_t*>(window_->address(1, kGranule)) = 1;  // mapped, or this faults
  EXPECT_EQ(heap_.bytes(), kGranule);                              // not yet
  growth_->OnGrowDone({1, true, ""});
  EXPECT_EQ(heap_.bytes(), 2 * kGranule);
  EXPECT_EQ(window_->n_segments(), 2u);
}

TEST_F(GrowthTest, TakenBackIsUnmapped) {
  growth_->OnSegmentsAdded(AddedAndSent(1));
  growth_->OnGrowDone({1, false, "rank 1 could not map"});
  EXPECT_EQ(window_->n_segments(), 0u);
  EXPECT_EQ(heap_.bytes(), kGranule);
  // The next growth can use the same place.
  growth_->OnSegmentsAdded(AddedAndSent(2));
  EXPECT_TRUE(plane_.grow_mapped.back().second.ok()) << plane_.grow_mapped.back().second;
  growth_->OnGrowDone({2, true, ""});
  EXPECT_EQ(heap_.bytes(), 2 * kGranule);
}

TEST_F(GrowthTest, RepeatedAnnouncementIsOnlyAcknowledgedAgain) {
  const SegmentsAdded added = AddedAndSent(1);
  growth_->OnSegmentsAdded(added);
  growth_->OnSegmentsAdded(added);  // no descriptors of it are left to take
  ASSERT_THAT(plane_.grow_mapped, SizeIs(2));
  EXPECT_TRUE(plane_.grow_mapped[1].second.ok());
  EXPECT_EQ(window_->n_segments(), 2u);
}

TEST_F(GrowthTest, DescriptorsThatComeAgainAreDroppedWithTheAcknowledgement) {
  const SegmentsAdded added = AddedAndSent(1);
  plane_.on_mapped = [&] {
    for (const Segment& segment : added.segments) Arrive(segment, memory_.NewSegment());
    Arrive({99, 0, 0, kGranule}, memory_.NewSegment());
  };
  growth_->OnSegmentsAdded(added);
  EXPECT_THAT(plane_.descriptors, SizeIs(1));  // of another growth
  growth_->OnSegmentsAdded(added);
  EXPECT_THAT(plane_.descriptors, SizeIs(1));
}

TEST_F(GrowthTest, DescriptorsThatComeAgainLateAreDroppedWithTheEnd) {
  const SegmentsAdded added = AddedAndSent(1);
  growth_->OnSegmentsAdded(added);
  Arrive(added.segments[0], memory_.NewSegment());
  growth_->OnGrowDone({1, true, ""});
  EXPECT_THAT(plane_.descriptors, SizeIs(0));
}

TEST_F(GrowthTest, RepetitionOfAPublishedGrowthIsOnlyAcknowledged) {
  const SegmentsAdded added = AddedAndSent(1);
  growth_->OnSegmentsAdded(added);
  growth_->OnGrowDone({1, true, ""});
  growth_->OnSegmentsAdded(added);  // without descriptors
  for (const Segment& segment : added.segments) Arrive(segment, memory_.NewSegment());
  growth_->OnSegmentsAdded(added);
  growth_->OnGrowDone({1, true, ""});
  ASSERT_THAT(plane_.grow_mapped, SizeIs(3));
  EXPECT_TRUE(plane_.grow_mapped[1].second.ok()) << plane_.grow_mapped[1].second;
  EXPECT_TRUE(plane_.grow_mapped[2].second.ok()) << plane_.grow_mapped[2].second;
  EXPECT_THAT(plane_.descriptors, SizeIs(0));
  EXPECT_EQ(window_->n_segments(), 2u);
  EXPECT_EQ(heap_.bytes(), 2 * kGranule);
}

TEST_F(GrowthTest, OneSegmentThatCannotBeMappedUnmapsTheOthersAndIsReported) {
  const SegmentsAdded added = Added(1);
  Arrive(added.segments[0], memory_.NewSegment());
  Arrive(added.segments[1], FakeMemory::NewPage());  // not memory of that size
  growth_->OnSegmentsAdded(added);
  ASSERT_THAT(plane_.grow_mapped, SizeIs(1));
  EXPECT_FALSE(plane_.grow_mapped[0].second.ok());
  EXPECT_EQ(window_->n_segments(), 0u);
  growth_->OnGrowDone({1, false, "rank 0 could not map"});
  EXPECT_EQ(heap_.bytes(), kGranule);
}

TEST_F(GrowthTest, DescriptorsThatDoNotComeAreReported) {
  growth_->OnSegmentsAdded(Added(1));
  ASSERT_THAT(plane_.grow_mapped, SizeIs(1));
  EXPECT_EQ(plane_.grow_mapped[0].second.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GrowthTest, OneWhoseEndWasNotHeardIsUnmappedWhenALaterOneComes) {
  growth_->OnSegmentsAdded(AddedAndSent(1));
  // It failed while the watch stream was away. The next one lies at the same place.
  growth_->OnSegmentsAdded(AddedAndSent(2));
  ASSERT_THAT(plane_.grow_mapped, SizeIs(2));
  EXPECT_TRUE(plane_.grow_mapped[1].second.ok()) << plane_.grow_mapped[1].second;
  EXPECT_EQ(window_->n_segments(), 2u);
  growth_->OnGrowDone({2, true, ""});
  EXPECT_EQ(heap_.bytes(), 2 * kGranule);
}

TEST_F(GrowthTest, OneWhoseEndWasNotHeardIsUnmappedWhenALaterOneEnds) {
  growth_->OnSegmentsAdded(AddedAndSent(1));
  growth_->OnGrowDone({2, false, "rank 1 could not map"});
  EXPECT_EQ(window_->n_segments(), 0u);
  EXPECT_EQ(heap_.bytes(), kGranule);
}

TEST_F(GrowthTest, APublishedOneIsToldOfBeforeALaterOneThatFailed) {
  growth_->OnSegmentsAdded(AddedAndSent(1));
  // As a new watch stream tells.
  growth_->OnGrowDone({1, true, ""});
  growth_->OnGrowDone({2, false, "rank 1 could not map"});
  EXPECT_EQ(window_->n_segments(), 2u);
  EXPECT_EQ(heap_.bytes(), 2 * kGranule);
}

TEST_F(GrowthTest, EndOfAGrowthThatThisRankNeverSawChangesNothing) {
  growth_->OnGrowDone({9, true, ""});
  EXPECT_EQ(heap_.bytes(), kGranule);
}

}  // namespace
}  // namespace iris::internal
