// NodesJob: a fixture with the contexts of a job that spans nodes. It plays irisd for each rank,
// and a thread the ports. For tests only.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/context/host_context.h"
#include "client/session/testing/fake_control_plane.h"
#include "device/driver/emu_driver.h"
#include "device/driver/fabric.h"
#include "device/local/port_thread.h"

namespace iris::internal {

// A job of nodes with equally many ranks. Each node has its own irisd, and so another number of the
// job.
class NodesJob : public ::testing::Test {
 protected:
  static constexpr uint64_t kGranule = FakeMemory::kGranule;
  static constexpr uint64_t kEpoch = 3;

  static wire::UniqueFd Dup(const wire::UniqueFd& fd) {
    return wire::UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  }

  struct PerRank {
    std::unique_ptr<FakeControlPlane> plane;
    wire::UniqueFd segment, control, port, wake;
    std::unique_ptr<driver::PhysicalMemory> memory;  // of `segment`
    HostContext::Owned context;
  };

  void Start(uint32_t n_nodes, uint32_t n_local,
             std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    n_local_ = n_local;
    const uint32_t n = n_nodes * n_local;
    std::vector<Node> nodes;
    for (uint32_t node = 0; node < n_nodes; ++node) {
      nodes.push_back({node * n_local, n_local, absl::StrCat("host", node), fabric_ && node > 0});
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
      served.push_back({memory, At(r, 0), heap_bytes_, ranks_[r].wake.get()});
    }
    thread_ = std::make_unique<local::PortThread>(served, local::PortThread::Options{.seed = 3});
  }

  void TearDown() override {
    thread_.reset();
    for (PerRank& rank : ranks_) rank.context.reset();
    for (wire::StatusPage* page : pages_) munmap(page, wire::kPageBytes);
  }

  // The ranks that a rank maps.
  uint32_t FirstMapped(uint32_t rank) const { return fabric_ ? 0 : rank / n_local_ * n_local_; }
  uint32_t NMapped() const { return fabric_ ? static_cast<uint32_t>(ranks_.size()) : n_local_; }

  uint64_t JobOf(uint32_t rank) const { return job_id_ + rank / n_local_; }

  void Prepare(uint32_t r, const std::vector<Node>& nodes) {
    PerRank& rank = ranks_[r];
    rank.plane = std::make_unique<FakeControlPlane>();
    auto memory = driver_->Create(0, heap_bytes_, /*prealloc=*/false);
    ASSERT_TRUE(memory.ok()) << memory.status();
    rank.memory = *std::move(memory);
    rank.segment = wire::UniqueFd(rank.memory->ExportFd(driver::Access::kReadWrite).value_or(-1));
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
    job.stride_bytes = 2 * heap_bytes_;
    job.heap_bytes = heap_bytes_;
    job.backend = "emu";
    job.device_uuid = "emu-0";
    job.map_timeout = absl::Seconds(60);
    job.nodes = nodes;
    job.first_local = r / n_local_ * n_local_;
    for (uint32_t i = 0; i < n_local_; ++i) {
      job.peers.push_back({100 + job.first_local + i, "emu-0", 0});
    }
    for (uint32_t of = FirstMapped(r); of < FirstMapped(r) + NMapped(); ++of) {
      job.segments.push_back({1 + of, of, 0, heap_bytes_});
    }
    rank.plane->committed.world.ranks.resize(ranks_.size());
    for (uint32_t i = 0; i < ranks_.size(); ++i) rank.plane->committed.world.ranks[i] = i;
  }

  void GiveDescriptors(uint32_t r) {
    PerRank& rank = ranks_[r];
    auto& descriptors = rank.plane->descriptors;
    using wire::DescriptorKind;
    const auto key = [&](DescriptorKind kind, uint32_t of, uint64_t segment = 0) {
      return DescriptorKey{kind, JobOf(r), kEpoch, of, segment};
    };
    const uint32_t first = r / n_local_ * n_local_;
    for (uint32_t i = 0; i < n_local_; ++i) {
      descriptors[key(DescriptorKind::kControlPage, first + i)] = Dup(ranks_[first + i].control);
    }
    for (uint32_t of = FirstMapped(r); of < FirstMapped(r) + NMapped(); ++of) {
      wire::UniqueFd& to = descriptors[key(DescriptorKind::kSegment, 0, 1 + of)];
      if (of / n_local_ == r / n_local_) {
        to = Dup(ranks_[of].segment);
        continue;
      }
      auto handle = driver::WrapFabricHandle(driver::BackendKind::kEmu,
                                             ranks_[of].memory->ExportFabric().value_or(""));
      ASSERT_TRUE(handle.ok()) << handle.status();
      to = *std::move(handle);
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

  uint64_t heap_bytes_ = kGranule;  // set before Start, like the next
  bool fabric_ = false;             // all nodes share a fabric domain
  const std::unique_ptr<driver::GpuDriver> driver_ =
      driver::CreateEmuDriver({.n_devices = 1,
                               .memory_bytes_per_device = 1 << 30,
                               .link_bytes = 0,
                               .fabric_domain = "rack"});
  uint32_t n_local_ = 1;
  std::vector<PerRank> ranks_;
  std::vector<FakeControlPlane*> planes_;  // owned by the contexts
  std::vector<wire::UniqueFd> statuses_;
  std::vector<wire::StatusPage*> pages_;  // of each node
  std::unique_ptr<local::PortThread> thread_;
  uint64_t job_id_ = next_job_id_ += 100;
  static inline uint64_t next_job_id_ = 7000;
};

}  // namespace iris::internal
