// Kernels of different processes, on memory that they share through a descriptor, as ranks do.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "iris/backend/emu/testing/test_util.h"
#include "iris/backend/select.h"

extern char** environ;

namespace iris::backend {
namespace {

constexpr uint32_t kProcesses = 4;
constexpr uint32_t kBlocks = 3;
constexpr uint32_t kThreads = 16;
constexpr uint32_t kRounds = kSlow ? 20 : 100;
constexpr uint64_t kTimeoutNs = 100ull * 1000 * 1000 * 1000;

struct SharedArea {
  uint32_t arrived[kBlocks];
  uint32_t data[kProcesses][kBlocks][kThreads];
  uint32_t wrong;
};

// Block b of all processes meets; between two meetings each thread reads what its peers wrote.
void MeetPeers(SharedArea* area, uint32_t me, uint32_t rounds) {
  const uint32_t b = BlockIndex();
  const uint32_t t = ThreadIndex();
  uint32_t meeting = 0;
  auto meet = [&] {
    BlockSync();
    ++meeting;
    if (t == 0) {
      FetchOp<AtomicOp::kAdd, Scope::kSystem, Order::kAcqRel>(&area->arrived[b], 1u);
      const uint64_t deadline = ClockNanoseconds() + kTimeoutNs;
      while (Load<Scope::kSystem, Order::kAcquire>(&area->arrived[b]) < meeting * kProcesses) {
        Pause();
        if (ClockNanoseconds() > deadline) Trap("a peer did not come");
      }
    }
    BlockSync();
  };
  for (uint32_t round = 0; round < rounds; ++round) {
    StorePlain(&area->data[me][b][t], round * 1000 + me);
    meet();
    for (uint32_t peer = 0; peer < kProcesses; ++peer) {
      if (LoadPlain(&area->data[peer][b][(t + 3) % kThreads]) != round * 1000 + peer) {
        CountUp(&area->wrong);
      }
    }
    meet();
  }
}

void RunRank(int descriptor, uint32_t me) {
  void* mapped =
      mmap(nullptr, sizeof(SharedArea), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  SharedArea* area = static_cast<SharedArea*>(mapped);
  RunKernel({kBlocks, kThreads, 0}, &MeetPeers, area, me, kRounds);
  EXPECT_EQ(area->wrong, 0u);
  munmap(mapped, sizeof(SharedArea));
}

// The other processes are this program again, with only this test: a forked child would have no
// workers.
TEST(PeerProcess, RunsAsOneRank) {
  const char* descriptor = getenv("IRIS_TEST_DESCRIPTOR");
  const char* rank = getenv("IRIS_TEST_RANK");
  if (descriptor == nullptr || rank == nullptr) GTEST_SKIP() << "run by the test below";
  RunRank(std::atoi(descriptor), static_cast<uint32_t>(std::atoi(rank)));
}

TEST(ProcessTest, KernelsOfFourProcessesMeetAndSeeEachOthersWrites) {
  const int descriptor = memfd_create("iris-process-test", 0);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(ftruncate(descriptor, sizeof(SharedArea)), 0);
  std::vector<pid_t> children;
  for (uint32_t rank = 1; rank < kProcesses; ++rank) {
    // Everything that the child needs is made before fork, which may be one of a program with
    // threads.
    const std::string filter = "--gtest_filter=PeerProcess.RunsAsOneRank";
    std::vector<std::string> variables = {"IRIS_TEST_DESCRIPTOR=" + std::to_string(descriptor),
                                          "IRIS_TEST_RANK=" + std::to_string(rank),
                                          "XML_OUTPUT_FILE=/dev/null"};
    std::vector<char*> environment;
    for (char** e = environ; *e != nullptr; ++e) {
      if (std::string(*e).rfind("XML_OUTPUT_FILE=", 0) != 0 &&
          std::string(*e).rfind("TEST_SHARD", 0) != 0) {
        environment.push_back(*e);
      }
    }
    for (std::string& variable : variables) environment.push_back(variable.data());
    environment.push_back(nullptr);
    std::string name = "process_test";
    std::string option = filter;
    char* arguments[] = {name.data(), option.data(), nullptr};
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      execve("/proc/self/exe", arguments, environment.data());
      _exit(127);
    }
    children.push_back(child);
  }
  RunRank(descriptor, 0);
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  }
  close(descriptor);
}

}  // namespace
}  // namespace iris::backend
