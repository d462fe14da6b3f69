// Ranks whose gRPC connections are cut again and again under traffic: nobody notices more than slow
// calls, nobody is told of a death, and every byte is right.
//
// Each rank is a process that shuts down its own gRPC sockets, from before it joins until after it
// has left. To irisd that is a connection lost for whatever reason.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/iris/context.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"

namespace iris {
namespace {

using testing::Daemon;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankProcesses;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kWords = 16 << 10;  // of a rank's part of an allocation

// Shuts down every stream socket of this process whose other end `irisd` made. How many.
int CutOnce(pid_t irisd) {
  std::vector<int> fds;
  DIR* const dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  while (const dirent* entry = readdir(dir)) {
    int fd = -1;
    if (absl::SimpleAtoi(entry->d_name, &fd) && fd != dirfd(dir)) fds.push_back(fd);
  }
  closedir(dir);
  int n = 0;
  for (const int fd : fds) {
    int domain = 0, type = 0;
    socklen_t bytes = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain != AF_UNIX) continue;
    bytes = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_STREAM) continue;
    struct ucred peer = {};
    bytes = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid != irisd) continue;
    if (shutdown(fd, SHUT_RDWR) == 0) ++n;
  }
  return n;
}

class Cutter {
 public:
  Cutter(pid_t irisd, uint32_t seed)
      : thread_([this, irisd, seed] {
          std::mt19937 random(seed);
          while (!stop_) {
            absl::SleepFor(absl::Milliseconds(20 + random() % 250));
            n_ += CutOnce(irisd);
          }
        }) {}
  ~Cutter() { Stop(); }
  int Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return n_;
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> n_{0};
  std::thread thread_;
};

#define REQUIRE(condition)                                                              \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      std::cout << "REQUIRE failed, line " << __LINE__ << ": " #condition << std::endl; \
      return 1;                                                                         \
    }                                                                                   \
  } while (false)

#define REQUIRE_OK(expression)                                                    \
  do {                                                                            \
    if (const absl::Status status = StatusOf(expression); !status.ok()) {         \
      std::cout << "line " << __LINE__ << ": " << status.ToString() << std::endl; \
      return 1;                                                                   \
    }                                                                             \
  } while (false)

absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

uint32_t Word(uint32_t life, uint32_t round, uint32_t from, uint32_t to, uint32_t i) {
  return (((life * 977 + round) * 131 + from) * 131 + to) * 2654435761u + i;
}

// One round of everything that a team decides together, and bytes to and from every peer.
int Round(Context& context, uint32_t life, uint32_t round) {
  const uint32_t n = context.n_ranks(), me = context.rank();
  auto x = context.Allocate({.bytes = n * kWords * sizeof(uint32_t), .name = "x"});
  REQUIRE_OK(x);
  for (uint32_t peer = 0; peer < n; ++peer) {
    uint32_t* const theirs = context.Translate(x->As<uint32_t>(), peer) + me * kWords;
    for (uint32_t i = 0; i < kWords; ++i) theirs[i] = Word(life, round, me, peer, i);
  }
  REQUIRE_OK(context.Barrier());
  for (uint32_t peer = 0; peer < n; ++peer) {
    for (uint32_t i = 0; i < kWords; ++i) {
      REQUIRE(x->As<uint32_t>()[peer * kWords + i] == Word(life, round, peer, me, i));
    }
  }
  const uint32_t root = round % n;
  std::string value(40'000 + 7 * round, '\0');
  for (size_t i = 0; i < value.size(); ++i) {
    value[i] = static_cast<char>(Word(life, round, root, 0, static_cast<uint32_t>(i)) >> 13);
  }
  auto sent = context.Broadcast(me == root ? value : "", root);
  REQUIRE_OK(sent);
  REQUIRE(*sent == value);
  REQUIRE_OK(context.Free(*x));
  if (round % 3 == 0) {
    auto pair = context.CreateTeam({0, n - 1});
    REQUIRE_OK(pair);
    if (pair->member()) {
      REQUIRE_OK(context.Barrier(*pair));
      REQUIRE_OK(context.DestroyTeam(*pair));
    }
  }
  if (round % 4 == 1) {
    const uint64_t before = context.heap_bytes();
    if (before + 2 * kMiB <= 48 * kMiB) {
      REQUIRE_OK(context.Grow(2 * kMiB));
      REQUIRE(context.heap_bytes() == before + 2 * kMiB);
      // The last byte of every peer's heap is there.
      for (uint32_t peer = 0; peer < n; ++peer) {
        static_cast<volatile uint8_t*>(context.heap_bases()[peer])[context.heap_bytes() - 1] = 1;
      }
    }
  }
  REQUIRE_OK(context.Health());
  return 0;
}

// Lives of a job, each as long as rank 0 says, while connections are cut.
int Traffic(const std::vector<std::string>& args) {
  int irisd = 0, lives = 0, seconds = 0;
  REQUIRE(args.size() == 3 && absl::SimpleAtoi(args[0], &irisd) &&
          absl::SimpleAtoi(args[1], &lives) && absl::SimpleAtoi(args[2], &seconds));
  Cutter cutter(irisd, static_cast<uint32_t>(getpid()));
  uint32_t n_rounds = 0;
  for (int life = 0; life < lives; ++life) {
    ContextOptions options;
    options.job = absl::StrCat("life-", life);  // the earlier one may not have ended everywhere
    options.heap_bytes = 8 * kMiB;
    options.max_heap_bytes = 64 * kMiB;
    auto created = Context::Create(options);
    REQUIRE_OK(created);
    Context& context = **created;
    const absl::Time end = absl::Now() + absl::Seconds(seconds);
    for (uint32_t round = 0;; ++round) {
      const bool on = absl::Now() < end || round < 5;
      auto more = context.Broadcast(context.rank() == 0 ? (on ? "on" : "end") : "", 0);
      REQUIRE_OK(more);
      if (*more == "end") break;
      if (const int code = Round(context, static_cast<uint32_t>(life), round); code != 0) {
        return code;
      }
      ++n_rounds;
    }
    REQUIRE_OK(context.Barrier());
    REQUIRE_OK(context.Leave());
    created->reset();
  }
  std::cout << "cuts " << cutter.Stop() << " rounds " << n_rounds << std::endl;
  return 0;
}

class ReconnectTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = Daemon::Start({});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    ASSERT_TRUE(daemon_->GetStatus().ok());
    idle_fds_ = daemon_->OpenFds();
  }

  std::unique_ptr<Daemon> daemon_;
  int idle_fds_ = 0;
};

TEST_F(ReconnectTest, CutConnectionsAreSlowCallsAndNothingElse) {
  constexpr int kRanks = 4;
  RankProcesses::Options options;
  options.runtime_dir = daemon_->runtime_dir();
  options.args = {absl::StrCat(daemon_->pid()), "3", "3"};
  RankProcesses ranks("traffic", kRanks, options);
  int n_cuts = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::string line = ranks.WaitLine(rank, "cuts ", absl::Minutes(4));
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    int n = 0;
    ASSERT_TRUE(words.size() >= 2 && absl::SimpleAtoi(words[1], &n)) << ranks.Output(rank);
    n_cuts += n;
  }
  ranks.ExpectAllSucceed();
  EXPECT_GE(n_cuts, 20) << "the connections were hardly cut";
  for (int rank = 0; rank < kRanks; ++rank) {
    for (const char* told : {"died", "hung up", "connecting again", "back in touch", "cancelled"}) {
      EXPECT_THAT(ranks.Output(rank), Not(HasSubstr(told))) << "rank " << rank;
    }
  }
  for (const char* told : {"rank_hung_up", "rank_dead", "rank_resumed", "job_broken", "job_failed",
                           "join_failed", "session ended"}) {
    EXPECT_THAT(daemon_->Log(), Not(HasSubstr(told)));
  }
  const absl::Status idle = daemon_->WaitIdle(idle_fds_ + 2);
  EXPECT_TRUE(idle.ok()) << idle << "\n" << daemon_->Log();
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  if (auto code = iris::testing::RunScenario(argc, argv, {{"traffic", iris::Traffic}})) {
    return *code;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
