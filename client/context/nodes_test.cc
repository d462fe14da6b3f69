// Contexts of a job that spans nodes, over NodesJob.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/context/host_context.h"
#include "client/context/host_rma.h"
#include "client/context/testing/nodes_job.h"
#include "client/session/testing/fake_control_plane.h"
#include "device/local/port_thread.h"

namespace iris::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kStride = 2 * FakeMemory::kGranule;

class NodesTest : public NodesJob {};

TEST_F(NodesTest, MapsTheHeapsOfItsNode) {
  Start(2, 2);
  HostContext& c = context(3);
  EXPECT_EQ(c.first_local(), 2u);
  EXPECT_EQ(c.n_local(), 2u);
  EXPECT_EQ(c.window().n_segments(), 2u);
  EXPECT_FALSE(c.IsLocal(1));
  EXPECT_EQ(c.peer_pid(2), 102);
  EXPECT_EQ(c.peer_pid(1), 0);
  const DeviceContext device = c.device_context();
  EXPECT_EQ(device.first_mapped, 2u);
  EXPECT_EQ(device.n_mapped, 2u);
  EXPECT_NE(device.port, nullptr);
  EXPECT_EQ(device.base + 3 * device.stride_bytes, reinterpret_cast<uint64_t>(At(3, 0)));
  EXPECT_EQ(device.world.size, 4u);
  EXPECT_EQ(device.world.step, 1u);
  EXPECT_EQ(c.Locate(reinterpret_cast<void*>(c.window().address(2, 5)))->rank, 2u);
  EXPECT_FALSE(c.Locate(reinterpret_cast<void*>(device.base)).ok());
  EXPECT_TRUE(c.Health().ok());
  // The heaps of the node are shared.
  *At(2, kData) = 77;
  EXPECT_EQ(*reinterpret_cast<uint8_t*>(c.window().address(2, kData)), 77);
}

TEST_F(NodesTest, MapsTheHeapsOfNodesThatShareAFabric) {
  fabric_ = true;
  Start(2, 2);
  for (uint32_t r = 0; r < 4; ++r) {
    HostContext& c = context(r);
    EXPECT_EQ(c.first_local(), r / 2 * 2);
    EXPECT_EQ(c.n_local(), 2u);
    EXPECT_EQ(c.window().n_segments(), 4u);
    EXPECT_TRUE(c.Maps(0) && c.Maps(3) && !c.Maps(4));
    EXPECT_EQ(c.peer_pid(3 - r / 2 * 2), 0);  // processes are known on their own node
    const DeviceContext device = c.device_context();
    EXPECT_EQ(device.first_mapped, 0u);
    EXPECT_EQ(device.n_mapped, 4u);
    EXPECT_NE(device.port, nullptr);
    EXPECT_EQ(device.world.step, DeviceTeam::kListed);
    EXPECT_EQ(c.Locate(reinterpret_cast<void*>(c.window().address(3, 5)))->rank, 3u);
    *reinterpret_cast<uint8_t*>(c.window().address((r + 2) % 4, kData + r)) =
        static_cast<uint8_t>(10 + r);
  }
  for (uint32_t r = 0; r < 4; ++r) EXPECT_EQ(*At((r + 2) % 4, kData + r), 10 + r);
  // Transfers of the host do not take the port, which could not reach this.
  const uint64_t value = 5;
  thread_.reset();
  ASSERT_TRUE(HostPut(context(0), 3, At(0, kData), &value, {1, 8, 8, 8},
                      {At<uint64_t>(0, kData + 64), 1, SignalOp::kAdd})
                  .ok());
  const HostAtomic add = {3, At(0, kData), PortAtomic::kAdd, PortType::kUint64, 2, 0};
  EXPECT_EQ(HostFetch(context(0), add).value(), 5u);
  EXPECT_EQ(*At<uint64_t>(3, kData), 7u);
  EXPECT_EQ(*At<uint64_t>(3, kData + 64), 1u);
}

TEST_F(NodesTest, PutsGetsSignalsAndAtomicsReachAllRanks) {
  Start(2, 2);
  HostContext& c = context(0);
  for (uint32_t peer = 0; peer < 4; ++peer) {
    const uint64_t value = 1000 + peer;
    ASSERT_TRUE(HostPut(c, peer, At(0, kData), &value, {1, 8, 8, 8},
                        {At<uint64_t>(0, kData + 64), peer + 1})
                    .ok());
    ASSERT_TRUE(HostQuiet(c, absl::ZeroDuration()).ok());
    uint64_t back = 0;
    ASSERT_TRUE(HostGet(c, peer, &back, At(0, kData), {1, 8, 8, 8}).ok());
    EXPECT_EQ(back, value);
    EXPECT_EQ(*At<uint64_t>(peer, kData), value);
    EXPECT_EQ(*At<uint64_t>(peer, kData + 64), peer + 1);
    const HostAtomic add = {peer, At(0, kData + 128), PortAtomic::kAdd, PortType::kInt32, 5, 0};
    EXPECT_EQ(HostFetch(c, add).value(), 0u);
    EXPECT_EQ(HostFetch(c, add).value(), 5u);
    EXPECT_EQ(*At<int32_t>(peer, kData + 128), 10);
    const HostAtomic wrong = {peer, At(0, kData), PortAtomic::kAnd, PortType::kFloat, 5, 0};
    EXPECT_EQ(HostFetch(c, wrong).status().code(), absl::StatusCode::kInvalidArgument);
    std::vector<uint8_t> rows(300, static_cast<uint8_t>(peer + 1));
    ASSERT_TRUE(HostPut(c, peer, At(0, kData + 256), rows.data(), {3, 10, 20, 100}).ok());
    std::vector<uint8_t> got(60);
    ASSERT_TRUE(HostGet(c, peer, got.data(), At(0, kData + 256), {3, 10, 20, 20}).ok());
    EXPECT_EQ(got[0] + got[20] + got[49] + got[15], 3 * (peer + 1));
  }
}

TEST_F(NodesTest, WrongPlacesAreRefused) {
  Start(2, 1);
  HostContext& c = context(0);
  uint64_t local = 0;
  const RowsToCopy word = {1, 8, 8, 8};
  const auto text = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(text(HostPut(c, 2, At(0, 0), &local, word)), HasSubstr("no such rank in a job of 2"));
  EXPECT_THAT(text(HostPut(c, 1, &local, &local, word)), HasSubstr("not in this rank's heap"));
  EXPECT_THAT(text(HostPut(c, 1, At(0, kData), nullptr, word)), HasSubstr("the source is null"));
  EXPECT_THAT(text(HostPut(c, 1, At(0, kData), &local, word, {At<uint64_t>(0, kData + 4), 1})),
              HasSubstr("the signal is not aligned"));
  EXPECT_THAT(text(HostGet(c, 1, &local, At(0, kStride - 4), word)),
              HasSubstr("ends beyond the heap"));
  EXPECT_THAT(text(HostPut(c, 1, At(0, kData), At(0, kData), {2, 8, 4, 8})),
              HasSubstr("less than a row"));
  EXPECT_THAT(text(HostGet(c, 1, &local, At(0, kGranule), word)),
              HasSubstr("ends beyond the heap, which has"));
}

// As on one node, whichever of the two ranks comes first in the job.
TEST_F(NodesTest, PlacesAtRanksOfOtherNodesAreComparedWithAllocations) {
  Start(2, 1);
  uint64_t values[8] = {};
  OnAll([&](uint32_t r) {
    HostContext& c = context(r);
    OperationResult result;
    result.offset_bytes = kData;
    result.heap_bytes = heap_bytes_;
    planes_[r]->Script({FakeControlPlane::Decided(absl::OkStatus(), result)});
    AllocateOptions wanted;
    wanted.bytes = 32;
    wanted.name = "x";
    ASSERT_TRUE(c.teams().Allocate(wanted, c.world()).ok());
    const absl::Status put = HostPut(c, 1 - r, At(r, kData + 16), values, {1, 24, 24, 24});
    EXPECT_THAT(std::string(put.message()), HasSubstr("x has 32 bytes, the call 24 from byte 16"));
    EXPECT_TRUE(HostPut(c, 1 - r, At(r, kData + 16), values, {1, 16, 16, 16}).ok());
    EXPECT_TRUE(HostQuiet(c, absl::ZeroDuration()).ok());
    EXPECT_THAT(std::string(HostGet(c, 1 - r, values, At(r, kData), {1, 40, 40, 40}).message()),
                HasSubstr("x has 32 bytes, the call 40"));
  });
}

TEST_F(NodesTest, HostBarrierOfAllNodes) {
  Start(3, 2);
  std::atomic<uint32_t> arrived = 0;
  std::atomic<int> wrong = 0;
  constexpr uint32_t kRounds = 30;
  OnAll([&](uint32_t r) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      ++arrived;
      if (!context(r).teams().Barrier(context(r).world()).ok()) ++wrong;
      if (arrived < (round + 1) * 6) ++wrong;
      if (!context(r).teams().Barrier(context(r).world()).ok()) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(NodesTest, PutsHaveArrivedAfterTheBarrier) {
  Start(2, 2);
  std::atomic<int> wrong = 0;
  OnAll([&](uint32_t r) {
    std::vector<uint8_t> values(100 * 1000, static_cast<uint8_t>(r + 1));
    for (uint32_t peer = 0; peer < 4; ++peer) {
      if (!HostPut(context(r), peer, At(r, kData + r * 100000), values.data(),
                   {1, values.size(), 0, 0})
               .ok()) {
        ++wrong;
      }
    }
    if (!context(r).teams().Barrier(context(r).world()).ok()) ++wrong;
    for (uint32_t from = 0; from < 4; ++from) {
      if (At(r, kData + from * 100000)[99999] != from + 1) ++wrong;
    }
    (void)context(r).teams().Barrier(context(r).world());
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(NodesTest, ABarrierNamesTheNodeThatDoesNotCome) {
  Start(2, 2);
  std::vector<absl::Status> statuses(4);
  const auto meet = [&](uint32_t r, absl::Duration timeout) {
    statuses[r] = context(r).teams().Barrier(context(r).world(), timeout);
  };
  OnAll([&](uint32_t r) {
    if (r < 2) meet(r, absl::Milliseconds(r == 0 ? 200 : 60000));
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("node \"host1\" of ranks 2 to 3 has not come"));
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(statuses[1].message()),
              HasSubstr("rank 0 (pid 100) gave up its wait for them"));
  // The others make up for it; then all are in step.
  OnAll([&](uint32_t r) {
    if (r >= 2) meet(r, absl::Seconds(60));
  });
  EXPECT_TRUE(statuses[2].ok()) << statuses[2];
  OnAll([&](uint32_t r) { meet(r, absl::Seconds(60)); });
  for (uint32_t r = 0; r < 4; ++r) EXPECT_TRUE(statuses[r].ok()) << r << " " << statuses[r];
}

// A rank whose time is up a little before its leader's must not take the leader for missing.
TEST_F(NodesTest, ARankDoesNotBlameTheLeaderThatWaitsForOtherNodes) {
  Start(2, 2);
  std::vector<absl::Status> statuses(2);
  OnAll([&](uint32_t r) {
    if (r >= 2) return;
    const absl::Duration timeout = absl::Milliseconds(r == 1 ? 200 : 1000);
    statuses[r] = context(r).teams().Barrier(context(r).world(), timeout);
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(statuses[1].message()),
              HasSubstr("host barrier of 4 ranks: ranks of other nodes did not come: rank 0 (pid "
                        "100), which asks for them, waits still"));
}

TEST_F(NodesTest, ABarrierNamesTheRankOfAnotherNodeThatHasLeft) {
  Start(2, 2);
  pages_[0]->left_elsewhere[0] = 1u << 3;
  const absl::Status health = context(1).Health();
  EXPECT_EQ(health.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(health.message()), HasSubstr("rank 3 (on another node) left the job"));
  std::vector<absl::Status> statuses(2);
  OnAll([&](uint32_t r) {
    if (r >= 2) return;
    statuses[r] = context(r).teams().Barrier(context(r).world(), absl::Milliseconds(300));
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("host barrier of 4 ranks: rank 3 (on another node) left the job"));
  }
}

// The news that a rank has left may come before what it has sent in its last barrier.
TEST_F(NodesTest, ARankThatLeavesAfterABarrierHasCome) {
  Start(2, 1);
  pages_[0]->left_elsewhere[0] = 1u << 1;
  absl::Status status;
  OnAll([&](uint32_t r) {
    if (r == 1) absl::SleepFor(absl::Milliseconds(300));
    const absl::Status met = context(r).teams().Barrier(context(r).world());
    if (r == 0) status = met;
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(NodesTest, ABarrierNamesTheRankOfItsNodeThatDoesNotCome) {
  Start(2, 2);
  std::vector<absl::Status> statuses(4);
  OnAll([&](uint32_t r) {
    if (r == 1) return;
    statuses[r] = context(r).teams().Barrier(context(r).world(), absl::Milliseconds(200));
  });
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("missing: rank 1 (pid 101"));
  EXPECT_THAT(std::string(statuses[2].message()), HasSubstr("node \"host0\" of ranks 0 to 1"));
  EXPECT_EQ(statuses[3].code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(NodesTest, AbortEndsTheBarrierAndNamesTheRankOfTheOtherNode) {
  Start(2, 1);
  absl::Status status;
  std::thread waits([&] { status = context(0).teams().Barrier(context(0).world()); });
  absl::SleepFor(absl::Milliseconds(20));
  pages_[0]->broken_by = 2;
  __atomic_store_n(&pages_[0]->abort, 1u, __ATOMIC_RELEASE);
  waits.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 (on another node)"));
  EXPECT_EQ(context(0).Health().code(), absl::StatusCode::kAborted);
}

// The port ends with the last rank of its node that leaves.
TEST_F(NodesTest, ARankLeavesAfterItsPutsHaveArrived) {
  Start(2, 1);
  thread_->Pause();
  const uint64_t value = 17;
  ASSERT_TRUE(HostPut(context(0), 1, At(0, kData), &value, {1, 8, 8, 8}).ok());
  std::thread resumes([&] {
    absl::SleepFor(absl::Milliseconds(50));
    thread_->Resume();
  });
  EXPECT_TRUE(context(0).Leave().ok());
  EXPECT_EQ(*At<uint64_t>(1, kData), value);
  resumes.join();
}

TEST_F(NodesTest, TeamsOfARail) {
  Start(2, 2);
  // irisd's answer to the split.
  OnAll([&](uint32_t r) {
    OperationResult result;
    result.team = TeamInfo{5 + r % 2, {r % 2, 2 + r % 2}, 1, 0, 128 << 10};
    planes_[r]->Script({FakeControlPlane::Decided(absl::OkStatus(), result)});
    const auto rail = context(r).RailTeam();
    ASSERT_TRUE(rail.ok()) << rail.status();
    EXPECT_THAT(rail->ranks, ElementsAre(r % 2, 2 + r % 2));
    EXPECT_EQ(rail->device.step, 2u);
    EXPECT_EQ(rail->device.first, r % 2);
    EXPECT_TRUE(context(r).teams().Barrier(*rail).ok());
    EXPECT_EQ(context(r).RailTeam()->id, rail->id);
  });
}

TEST_F(NodesTest, AnIrisdWithoutNodesIsRefused) {
  FakeControlPlane* const plane = new FakeControlPlane();
  plane->joined.peers = {{100, "emu-0", 0}};
  ContextOptions options = {.job = "job", .rank = 0, .n_ranks = 2, .local_rank = 0};
  options.n_local = 1;
  options.rendezvous = "a:5";
  const auto made =
      HostContext::Create({options}, std::unique_ptr<ControlPlane>(plane), absl::ZeroDuration());
  EXPECT_EQ(made.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(made.status().message()), HasSubstr("start a newer one"));
}

}  // namespace
}  // namespace iris::internal
