// World: ranks that leave each other do not hang.
#include "device/local/world.h"

#include <atomic>

#include "gtest/gtest.h"

namespace iris::local {
namespace {

class WorldTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<World>> world = World::Create({.n_ranks = 3});
    if (world.status().code() == absl::StatusCode::kFailedPrecondition) {
      GTEST_SKIP() << world.status();
    }
    ASSERT_TRUE(world.ok()) << world.status();
    world_ = std::move(*world);
  }

  std::unique_ptr<World> world_;
};

TEST_F(WorldTest, ARankThatReturnsEndsTheOthersAtTheirBarrier) {
  std::atomic<int> passed = 0;
  const absl::Status status = world_->Run([&](Rank& rank) {
    rank.HostBarrier();
    if (rank.rank() == 1) return;  // as a failed assertion of a test does
    rank.HostBarrier();
    ++passed;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_NE(status.message().find("rank 1 has ended without it"), std::string::npos) << status;
  EXPECT_EQ(passed, 0);
}

TEST_F(WorldTest, TheNextRunBeginsAnew) {
  ASSERT_FALSE(world_
                   ->Run([](Rank& rank) {
                     if (rank.rank() != 2) rank.HostBarrier();
                   })
                   .ok());
  std::atomic<int> passed = 0;
  const absl::Status status = world_->Run([&](Rank& rank) {
    for (int i = 0; i < 100; ++i) rank.HostBarrier();
    ++passed;
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(passed, 3);
}

}  // namespace
}  // namespace iris::local
