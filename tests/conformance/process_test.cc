// Ranks as processes: each is started anew, maps one memfd with all heaps at an address of its own,
// and launches kernels. For backends whose kernels reach ordinary host memory; on others it skips,
// and tests/integration has ranks as processes with memory from irisd.
//
// This program is both: the tests, which start it again with --rank, and a rank, whose exit code
// says which check failed.
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/collective/collective.h"
#include "iris/device.h"

extern char** environ;

namespace iris::conformance {
namespace {

constexpr uint64_t kStrideBytes = 4 << 20;
constexpr uint64_t kHeapsAt = 4096;  // behind the page that all share
constexpr uint64_t kDataAt = 2 << 20;
constexpr uint64_t kWorkspaceAt = 64 << 10;
constexpr uint64_t kTimeoutNs = 120ull * 1000 * 1000 * 1000;

// The first page of the memfd.
struct Shared {
  uint32_t abort_word;
  uint32_t waiting;  // ranks that are about to wait for what never comes
};

uint64_t TotalBytes(uint32_t n) { return kHeapsAt + n * kStrideBytes; }

// The rank.

IRIS_KERNEL void Rounds(DeviceContext ctx, uint32_t* x, uint32_t rounds, uint32_t* bad) {
  const uint32_t i = backend::BlockIndex() * backend::BlockSize() + backend::ThreadIndex();
  for (uint32_t k = 1; k <= rounds; ++k) {
    x[i] = k * 100 + ctx.rank;
    if (Barrier(ctx, ctx.world) != WaitResult::kOk) {
      *bad = 1;
      return;
    }
    for (uint32_t p = 0; p < ctx.n_ranks; ++p) {
      if (Load(ctx, p, x + i) != k * 100 + p) *bad = 1;
    }
    if (Barrier(ctx, ctx.world) != WaitResult::kOk) {
      *bad = 1;
      return;
    }
  }
}

// A message goes round the ranks `rounds` times; each adds one to every word of it.
IRIS_KERNEL void RingOfMessages(DeviceContext ctx, uint32_t* message, uint64_t* signal,
                                uint32_t rounds, uint32_t* bad) {
  constexpr uint32_t kWords = 50;
  const uint32_t next = (ctx.rank + 1) % ctx.n_ranks;
  for (uint32_t k = 1; k <= rounds; ++k) {
    if (ctx.rank != 0 || k > 1) {
      const uint64_t wanted = ctx.rank == 0 ? k - 1 : k;
      if (WaitUntil(ctx, signal, Compare::kGe, wanted, Block{}) != WaitResult::kOk) {
        *bad = 1;
        return;
      }
    }
    for (uint32_t i = backend::ThreadIndex(); i < kWords; i += backend::BlockSize()) {
      const uint32_t expected = (k - 1) * ctx.n_ranks + ctx.rank;
      if (message[i] != expected) *bad = 1;
      ++message[i];
    }
    backend::BlockSync();
    PutSignal(ctx, next, message, message, kWords, {signal, k}, Block{});
  }
}

IRIS_KERNEL void WaitForever(DeviceContext ctx, const uint64_t* signal, uint32_t* waiting,
                             uint32_t* result) {
  (void)backend::FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kAcqRel>(waiting, 1u);
  *result = static_cast<uint32_t>(WaitUntil(ctx, signal, Compare::kNe, 0));
}

IRIS_KERNEL void BarrierOnce(DeviceContext ctx, uint64_t timeout_ns, uint32_t* result,
                             uint32_t* missing) {
  *result = static_cast<uint32_t>(Barrier(ctx, ctx.world, timeout_ns, missing));
}

// Returns 0, or the line that failed.
#define CHECK_THAT(condition) \
  if (!(condition)) return __LINE__ % 250 + 1

int RunRank(const std::string& scenario, uint32_t rank, uint32_t n, int fd) {
  uint8_t* memory = static_cast<uint8_t*>(
      mmap(nullptr, TotalBytes(n), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  CHECK_THAT(memory != MAP_FAILED);
  Shared* shared = reinterpret_cast<Shared*>(memory);
  DeviceContext ctx;
  ctx.rank = rank;
  ctx.n_ranks = n;
  ctx.base = reinterpret_cast<uint64_t>(memory) + kHeapsAt;
  ctx.stride_bytes = kStrideBytes;
  ctx.timeout_ns = kTimeoutNs;
  ctx.abort_word = &shared->abort_word;
  ctx.world.size = n;
  ctx.world.index = rank;
  for (uint32_t i = 0; i < n; ++i) ctx.world.members[i] = static_cast<uint8_t>(i);
  uint32_t* data = AtOffset<uint32_t>(ctx, rank, kDataAt);
  uint64_t* signal = AtOffset<uint64_t>(ctx, rank, kDataAt + 64 * 1024);
  uint32_t* result = AtOffset<uint32_t>(ctx, rank, kDataAt + 65 * 1024);
  uint32_t* missing = result + 1;
  backend::Stream stream;
  CHECK_THAT(backend::Stream::Create(&stream).ok());

  if (scenario == "rounds") {
    CHECK_THAT(backend::Launch({3, 32}, stream, Rounds, ctx, data, 50u, result).ok());
    CHECK_THAT(stream.Synchronize().ok());
    CHECK_THAT(*result == 0);
  } else if (scenario == "ring") {
    CHECK_THAT(
        backend::Launch({1, 32}, stream, RingOfMessages, ctx, data, signal, 100u, result).ok());
    CHECK_THAT(stream.Synchronize().ok());
    CHECK_THAT(*result == 0);
  } else if (scenario == "collectives") {
    ccl::ErrorReport report;
    ccl::CommOptions options;
    options.context = ctx;
    options.team = ctx.world;
    options.workspace = AtOffset<void>(ctx, rank, kWorkspaceAt);
    options.config.max_blocks = 2;
    options.config.stage_bytes = 4096;
    options.workspace_bytes = ccl::WorkspaceBytes(n, options.config);
    options.report = &report;
    CHECK_THAT(kWorkspaceAt + options.workspace_bytes <= kDataAt);
    ccl::Comm comm;
    CHECK_THAT(ccl::CreateComm(options, &comm).ok());
    constexpr uint64_t kCount = 5000;
    std::vector<float> outside(kCount);  // through the stage
    float* inside = AtOffset<float>(ctx, rank, kDataAt);
    for (uint32_t round = 0; round < 30; ++round) {
      for (uint64_t i = 0; i < kCount; ++i) {
        inside[i] = outside[i] = static_cast<float>(i % 100 + rank + round);
      }
      CHECK_THAT(
          ccl::AllReduce(comm, inside, inside, kCount, DType::kF32, ccl::ReduceOp::kSum, stream)
              .ok());
      CHECK_THAT(ccl::AllReduce(comm, outside.data(), outside.data(), kCount, DType::kF32,
                                ccl::ReduceOp::kSum, stream)
                     .ok());
      CHECK_THAT(stream.Synchronize().ok());
      CHECK_THAT(ccl::CheckError(comm).ok());
      for (uint64_t i = 0; i < kCount; ++i) {
        const float expected = static_cast<float>(n * (i % 100 + round) + n * (n - 1) / 2);
        CHECK_THAT(inside[i] == expected);
        CHECK_THAT(outside[i] == expected);
      }
    }
  } else if (scenario == "wait_forever") {
    CHECK_THAT(backend::Launch({}, stream, WaitForever, ctx, static_cast<const uint64_t*>(signal),
                               &shared->waiting, result)
                   .ok());
    CHECK_THAT(stream.Synchronize().ok());
    CHECK_THAT(*result == static_cast<uint32_t>(WaitResult::kAborted));
  } else if (scenario == "killed_peer") {
    if (rank == n - 1) {  // dies where it should have met the others
      (void)raise(SIGKILL);
    }
    CHECK_THAT(
        backend::Launch({}, stream, BarrierOnce, ctx, uint64_t{300 * 1000 * 1000}, result, missing)
            .ok());
    CHECK_THAT(stream.Synchronize().ok());
    CHECK_THAT(*result == static_cast<uint32_t>(WaitResult::kTimeout));
    // A machine under load may make others late as well; the dead one is missing for sure.
    CHECK_THAT(*missing < n && *missing != rank);
  } else {
    return 255;
  }
  return 0;
}

// The tests.

class NeedsHostMemory : public testing::Environment {
 public:
  void SetUp() override {
    if (!backend::Traits::kEmulated) {
      GTEST_SKIP() << "kernels of this backend do not reach a memfd";
    }
  }
};

class Ranks {
 public:
  Ranks(const std::string& scenario, uint32_t n) {
    fd_ = memfd_create("iris-process-test", 0);  // inherited on purpose
    EXPECT_GE(fd_, 0);
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(TotalBytes(n))), 0);
    shared_ = static_cast<Shared*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    EXPECT_NE(shared_, MAP_FAILED);
    for (uint32_t r = 0; r < n; ++r) {
      std::vector<std::string> args = {"/proc/self/exe",  "--rank",          scenario,
                                       std::to_string(r), std::to_string(n), std::to_string(fd_)};
      std::vector<char*> argv;
      for (std::string& arg : args) argv.push_back(arg.data());
      argv.push_back(nullptr);
      pid_t pid = 0;
      EXPECT_EQ(posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, argv.data(), environ), 0);
      pids_.push_back(pid);
    }
  }
  ~Ranks() {
    munmap(shared_, 4096);
    close(fd_);
  }

  // Exit code of each, or minus the signal.
  std::vector<int> Join() {
    std::vector<int> codes;
    for (pid_t pid : pids_) {
      int status = 0;
      EXPECT_EQ(waitpid(pid, &status, 0), pid);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return codes;
  }

  Shared* shared() { return shared_; }

 private:
  int fd_ = -1;
  Shared* shared_ = nullptr;
  std::vector<pid_t> pids_;
};

class ProcessTest : public testing::TestWithParam<uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ProcessTest, testing::Values(1, 2, 4));

TEST_P(ProcessTest, BarriersOrderDataBetweenProcesses) {
  EXPECT_EQ(Ranks("rounds", GetParam()).Join(), std::vector<int>(GetParam(), 0));
}

TEST_P(ProcessTest, MessagesGoRoundARingOfProcesses) {
  EXPECT_EQ(Ranks("ring", GetParam()).Join(), std::vector<int>(GetParam(), 0));
}

TEST_P(ProcessTest, CollectivesBetweenProcesses) {
  EXPECT_EQ(Ranks("collectives", GetParam()).Join(), std::vector<int>(GetParam(), 0));
}

TEST_P(ProcessTest, AnotherProcessAbortsTheirWaits) {
  Ranks ranks("wait_forever", GetParam());
  const uint64_t deadline = backend::ClockNanoseconds() + kTimeoutNs;
  while (__atomic_load_n(&ranks.shared()->waiting, __ATOMIC_ACQUIRE) != GetParam()) {
    ASSERT_LT(backend::ClockNanoseconds(), deadline) << "the ranks have not come to their wait";
    usleep(1000);
  }
  __atomic_store_n(&ranks.shared()->abort_word, 1, __ATOMIC_RELEASE);
  EXPECT_EQ(ranks.Join(), std::vector<int>(GetParam(), 0));
}

TEST(ProcessDeathTest, AKilledPeerIsMissedInTime) {
  EXPECT_EQ(Ranks("killed_peer", 3).Join(), (std::vector<int>{0, 0, -SIGKILL}));
}

}  // namespace
}  // namespace iris::conformance

int main(int argc, char** argv) {
  if (argc == 6 && std::strcmp(argv[1], "--rank") == 0) {
    return iris::conformance::RunRank(argv[2], static_cast<uint32_t>(std::atoi(argv[3])),
                                      static_cast<uint32_t>(std::atoi(argv[4])),
                                      std::atoi(argv[5]));
  }
  testing::InitGoogleTest(&argc, argv);
  testing::AddGlobalTestEnvironment(new iris::conformance::NeedsHostMemory);
  return RUN_ALL_TESTS();
}
