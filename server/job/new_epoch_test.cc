// Tests each line of the table in Job::NewEpoch: what a new epoch resets, and what it carries over.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/wire/limits.h"
#include "server/job/job.h"

namespace iris::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kHeapBytes = 1 << 20;
constexpr uint64_t kSyncBytes = 8192;

class NewEpochTest : public ::testing::Test {
 protected:
  NewEpochTest() {
    job_.id = JobId{7};
    job_.name = "train";
    job_.state = JobState::kMapping;
    job_.heap_bytes = job_.heap_bytes_initial = kHeapBytes;
    job_.stride_bytes = 4 * kHeapBytes;
    job_.team_sync_bytes = kSyncBytes;
    job_.ranks.resize(3);
    for (Rank rank = 0; rank < 3; ++rank) job_.ranks[rank].base = wire::kProposedBase;
  }

  Team& World() { return job_.teams.at(kWorldTeam); }

  // The job has run for a while, and is to go on in its next epoch.
  void RunAndBreak() {
    job_.NewEpoch(absl::UnixEpoch());
    world_k_ = 5;
    World().next_k = 5;
    World().position = {5, 6, 2};
    World().history.push_back({3, absl::OkStatus(), {}});
    World().history.push_back({4, absl::OkStatus(), {.value = SharedBytes("value")}});
    job_.value_bytes = 5;
    ASSERT_TRUE(job_.MakeTeam({2, 0}, 3, absl::UnixEpoch()).ok());
    auto offset = job_.Place(
        {.bytes = 4096, .k = 1, .label = AllocationLabel("weights", {}), .alignment_log2 = 10});
    ASSERT_TRUE(offset.ok());
    weights_ = *offset;
    job_.teams.at(1).info.barrier_start_epoch = 40;
    job_.slot_epochs = {{0, 12}, {3, 40}, {4, kMaxSlotEpoch}};
    job_.past_teams.Change().emplace_back();
    job_.last_growth = {GrowId{9}, true, ""};
    job_.state = JobState::kBroken;
    job_.broken_reason = "rank 1 (pid 4) died";
  }

  Job job_;
  uint64_t world_k_ = 0;
  uint64_t weights_ = 0;
};

TEST_F(NewEpochTest, FirstMakesAnEmptyHeapAndTheWorld) {
  job_.NewEpoch(absl::UnixEpoch());
  EXPECT_EQ(job_.state, JobState::kReady);
  EXPECT_EQ(job_.epoch, 1u);
  EXPECT_TRUE(job_.same_address);
  EXPECT_EQ(job_.allocator.capacity_bytes(), kHeapBytes);
  EXPECT_EQ(job_.allocator.used_bytes(), kSyncBytes);
  ASSERT_EQ(job_.n_teams(), 1u);
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(job_.teams.at(OwnTeam(rank)).info.ranks, ElementsAre(rank));
    EXPECT_THAT(job_.teams.at(OwnTeam(rank)).position, ElementsAre(0u));
  }
  EXPECT_THAT(World().info.ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(World().info.barrier_slot, 0u);
  EXPECT_EQ(World().info.barrier_start_epoch, 0u);
  EXPECT_EQ(World().next_k, 0u);
  EXPECT_THAT(World().position, Each(0u));
  EXPECT_THAT(job_.slots_in_use, ElementsAre(0u));
  EXPECT_EQ(job_.next_team, 1u);
}

TEST_F(NewEpochTest, SaysWhetherAllMappedAtTheSameAddress) {
  job_.ranks[1].base += 4096;
  job_.NewEpoch(absl::UnixEpoch());
  EXPECT_FALSE(job_.same_address);
}

TEST_F(NewEpochTest, NumberIsTheOneThatWasMapped) {
  RunAndBreak();
  job_.epoch = 2;
  job_.NewEpoch(absl::UnixEpoch());
  EXPECT_EQ(job_.epoch, 2u);
  EXPECT_EQ(job_.state, JobState::kReady);
  EXPECT_THAT(job_.broken_reason, IsEmpty());
}

TEST_F(NewEpochTest, HeapIsCarriedOver) {
  RunAndBreak();
  const uint64_t used = job_.allocator.used_bytes();
  job_.NewEpoch(absl::UnixEpoch());
  EXPECT_EQ(job_.allocator.used_bytes(), used);
  ASSERT_TRUE(job_.allocations.contains(weights_));
  EXPECT_EQ(job_.allocations.at(weights_).label.name(), "weights");
  EXPECT_TRUE(job_.names.contains(ByName::Key("weights", kWorldTeam)));
  job_.Unplace(weights_);
}

TEST_F(NewEpochTest, TeamsAndTheirAreasAreCarriedOver) {
  RunAndBreak();
  const TeamInfo before = job_.teams.at(1).info;
  job_.NewEpoch(absl::UnixEpoch());
  ASSERT_EQ(job_.n_teams(), 2u);
  const TeamInfo& after = job_.teams.at(1).info;
  EXPECT_EQ(after.ranks, before.ranks);
  EXPECT_EQ(after.barrier_slot, before.barrier_slot);
  EXPECT_EQ(after.sync_offset_bytes, before.sync_offset_bytes);
  EXPECT_TRUE(job_.allocations.contains(before.sync_offset_bytes));
  EXPECT_THAT(job_.slots_in_use, ElementsAre(0u, 3u));
  EXPECT_EQ(job_.next_team, 2u);
  EXPECT_EQ(World().n_allocations, 1u);
}

TEST_F(NewEpochTest, KGoesOnAndEveryMemberIsInStep) {
  RunAndBreak();
  job_.NewEpoch(absl::UnixEpoch());
  EXPECT_EQ(World().next_k, world_k_);
  EXPECT_THAT(World().position, Each(world_k_));
}

TEST_F(NewEpochTest, OutcomesAndPastTeamsAreForgotten) {
  RunAndBreak();
  job_.NewEpoch(absl::UnixEpoch());
  EXPECT_THAT(World().history, IsEmpty());
  EXPECT_EQ(job_.value_bytes, 0u);
  EXPECT_THAT(*job_.past_teams, IsEmpty());
  EXPECT_EQ(job_.last_growth.grow, GrowId());
}

TEST_F(NewEpochTest, BarriersStartAtZeroInEverySlot) {
  RunAndBreak();
  job_.NewEpoch(absl::UnixEpoch());
  for (const auto& [id, team] : job_.teams) EXPECT_EQ(team.info.barrier_start_epoch, 0u);
  EXPECT_THAT(job_.slot_epochs, IsEmpty());
  // Slot 4 was worn out; 0 and 3 are in use.
  const auto made = job_.MakeTeam({1}, 4, absl::UnixEpoch());
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(made->barrier_start_epoch, 0u);
}

TEST_F(NewEpochTest, NothingMayBeUnderWay) {
  RunAndBreak();
  job_.growth.emplace();
  EXPECT_DEATH(job_.NewEpoch(absl::UnixEpoch()), "no growth is under way");
  job_.growth.reset();
  World().op.emplace();
  EXPECT_DEATH(job_.NewEpoch(absl::UnixEpoch()), "no operation is under way");
}

}  // namespace
}  // namespace iris::server
