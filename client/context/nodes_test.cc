// Contexts of a job that spans nodes. The test plays irisd for each rank, and a thread the ports.
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

#include "client/context/host_context.h"
#include "client/context/host_rma.h"
#include "client/session/testing/fake_control_plane.h"
#include "device/local/port_thread.h"

namespace iris::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using wire::DescriptorKind;

constexpr uint64_t kGranule = FakeMemory::kGranule;
constexpr uint64_t kStride = 2 * kGranule;
constexpr uint64_t kEpoch = 3;

wire::UniqueFd Dup(const wire::UniqueFd& fd) {
  return wire::UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
}

// A job of nodes with equally many ranks. Each node has its own irisd, and so another number of the
// job.
class NodesTest : public ::testing::Test {
 protected:
  struct PerRank {
    std::unique_ptr<FakeControlPlane> plane;
    wire::UniqueFd segment, control, port, wake;
    HostContext::Owned context;
  };

  void Start(uint32_t n_nodes, uint32_t n_local,
             std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    n_local_ = n_local;
    const uint32_t n = n_nodes * n_local;
    std::vector<Node> nodes;
    for (uint32_t node = 0; node < n_nodes; ++node) {
      nodes.push_back({node * n_local, n_local, absl::StrCat("host", node)});
    }
    ranks_.resize(n);
    for (uint32_t r = 0; r < n; ++r) Prepare(r, nodes);
    for (uint32_t node = 0; node < n_nodes; ++node) {
      statuses_.push_back(FakeMemory::NewPage());
      void* const page = mmap(nullptr, wire::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                              statuses_.back().get(), 0);
      pages_.push_back(static_cast<wire::StatusPage*>(page));
      for (uint32_t i = 0; i < n_local; ++i) {
        pages_[node]->rank_state[i] = static_cast<uint32_t>(wire::PageRankState::kReady);
        pages_[node]->rank_pid[i] = 100 + node * n_local + i;
      }
    }
    for (uint32_t r = 0; r < n; ++r) GiveDescriptors(r);
    for (uint32_t r = 0; r < n; ++r) {
      ContextOptions options = {.job = "job",
                                .rank = static_cast<int>(r),
                                .n_ranks = static_cast<int>(n),
                                .local_rank = static_cast<int>(r % n_local),
                                .timeout = timeout,
                                .n_local = static_cast<int>(n_local),
                                .rendezvous = "a:5"};
      planes_.push_back(ranks_[r].plane.get());
      auto made = HostContext::Create({std::move(options)}, std::move(ranks_[r].plane),
                                      absl::ZeroDuration());
      ASSERT_TRUE(made.ok()) << made.status();
      ranks_[r].context = *std::move(made);
    }
    // By the contexts' own mappings, so that ThreadSanitizer sees what orders the two.
    std::vector<local::PortThread::Rank> served;
    for (uint32_t r = 0; r < n; ++r) {
      auto* const memory = reinterpret_cast<PortMemory*>(
          reinterpret_cast<uint8_t*>(context(r).port()->device()->asleep) -
          offsetof(PortMemory, asleep));
      served.push_back({memory, At(r, 0), kGranule, ranks_[r].wake.get()});
    }
    thread_ = std::make_unique<local::PortThread>(served, local::PortThread::Options{.seed = 3});
  }

  void TearDown() override {
    thread_.reset();
    for (PerRank& rank : ranks_) rank.context.reset();
    for (wire::StatusPage* page : pages_) munmap(page, wire::kPageBytes);
  }

  uint64_t JobOf(uint32_t rank) const { return job_id_ + rank / n_local_; }

  void Prepare(uint32_t r, const std::vector<Node>& nodes) {
    PerRank& rank = ranks_[r];
    rank.plane = std::make_unique<FakeControlPlane>();
    rank.segment = memory_.NewSegment();
    rank.control = FakeMemory::NewPage();
    rank.port = wire::UniqueFd(memfd_create("port", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    rank.wake = wire::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    ASSERT_EQ(ftruncate(rank.port.get(), sizeof(PortMemory)), 0);
    ASSERT_EQ(fcntl(rank.port.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    const uint32_t head[] = {kPortMagic, kPortVersion, r};
    ASSERT_EQ(pwrite(rank.port.get(), head, sizeof(head), 0), static_cast<ssize_t>(sizeof(head)));
    JoinedJob& job = rank.plane->joined;
    job.job_id = JobOf(r);
    job.epoch = kEpoch;
    job.stride_bytes = kStride;
    job.heap_bytes = kGranule;
    job.backend = "emu";
    job.device_uuid = "emu-0";
    job.map_timeout = absl::Seconds(60);
    job.nodes = nodes;
    job.first_local = r / n_local_ * n_local_;
    for (uint32_t i = 0; i < n_local_; ++i) {
      job.peers.push_back({100 + job.first_local + i, "emu-0", 0});
      job.segments.push_back({1 + i, job.first_local + i, 0, kGranule});
    }
    rank.plane->committed.world.ranks.resize(ranks_.size());
    for (uint32_t i = 0; i < ranks_.size(); ++i) rank.plane->committed.world.ranks[i] = i;
  }

  void GiveDescriptors(uint32_t r) {
    PerRank& rank = ranks_[r];
    auto& descriptors = rank.plane->descriptors;
    const auto key = [&](DescriptorKind kind, uint32_t of, uint64_t segment = 0) {
      return DescriptorKey{kind, JobOf(r), kEpoch, of, segment};
    };
    const uint32_t first = r / n_local_ * n_local_;
    for (uint32_t i = 0; i < n_local_; ++i) {
      descriptors[key(DescriptorKind::kSegment, 0, 1 + i)] = Dup(ranks_[first + i].segment);
      descriptors[key(DescriptorKind::kControlPage, first + i)] = Dup(ranks_[first + i].control);
    }
    descriptors[key(DescriptorKind::kStatusPage, 0)] = Dup(statuses_[r / n_local_]);
    descriptors[key(DescriptorKind::kPortMemory, 0)] = Dup(rank.port);
    descriptors[key(DescriptorKind::kPortWake, 0)] = Dup(rank.wake);
  }

  HostContext& context(uint32_t r) { return *ranks_[r].context; }
  // The address at an offset of a rank's heap, in the rank's own window.
  template <typename T = uint8_t>
  T* At(uint32_t r, uint64_t offset) {
    return reinterpret_cast<T*>(context(r).window().address(r, offset));
  }
  template <typename Body>
  void OnAll(Body body) {
    std::vector<std::thread> threads;
    for (uint32_t r = 0; r < ranks_.size(); ++r) threads.emplace_back([&, r] { body(r); });
    for (std::thread& thread : threads) thread.join();
  }

  static constexpr uint64_t kData = 256 << 10;  // beyond the world's SyncArea

  FakeMemory memory_;
  uint32_t n_local_ = 1;
  std::vector<PerRank> ranks_;
  std::vector<FakeControlPlane*> planes_;  // owned by the contexts
  std::vector<wire::UniqueFd> statuses_;
  std::vector<wire::StatusPage*> pages_;  // of each node
  std::unique_ptr<local::PortThread> thread_;
  uint64_t job_id_ = next_job_id_ += 100;
  static inline uint64_t next_job_id_ = 7000;
};

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
  EXPECT_THAT(text(HostPut(c, 1, At(0, 64), nullptr, word)), HasSubstr("the source is null"));
  EXPECT_THAT(text(HostPut(c, 1, At(0, kData), &local, word, {At<uint64_t>(0, 4), 1})),
              HasSubstr("the signal is not aligned"));
  EXPECT_THAT(text(HostGet(c, 1, &local, At(0, kStride - 4), word)),
              HasSubstr("not in this rank's heap"));
  EXPECT_THAT(text(HostPut(c, 1, At(0, kData), At(0, kData), {2, 8, 4, 8})),
              HasSubstr("less than a row"));
  // The other node says what it does not have.
  EXPECT_EQ(HostGet(c, 1, &local, At(0, kGranule), word).code(), absl::StatusCode::kOutOfRange);
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
