// irisd is killed or hands over again and again under traffic, with a supervisor that keeps its
// descriptors, and comes back each time: no rank hears of it, and every byte is as the ranks left
// it. Ranks are real processes; irisd and its supervisor are the real ones.
//
// IRIS_TEST_SEED says when it is killed, and IRIS_TEST_OPS how often.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "device/base/descriptors.h"
#include "iris/context.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"
#include "tests/integration/require.h"
#include "tests/model/seed.h"

namespace iris {
namespace {

using testing::Daemon;
using testing::RankProcesses;
using testing::Require;
using testing::Text;

constexpr uint64_t kMiB = 1 << 20;
constexpr int kRanks = 4;

// Scenarios: what a rank does.

uint64_t Pattern(uint32_t rank, uint64_t round, uint64_t i) {
  return (round * 131 + rank) * 0x9E3779B97F4A7C15ull + i;
}

// One round of everything that needs irisd. What it leaves in the heap is as it found it.
int Round(Context& context, uint64_t round, bool more, bool* all_more) {
  const uint32_t n = context.n_ranks(), me = context.rank();
  const uint64_t size = 64 + round % 1000;
  auto allocated = Require(context.Allocate<uint64_t>(size, absl::StrCat("round ", round)));
  for (uint64_t i = 0; i < size; ++i) allocated.get()[i] = Pattern(me, round, i);
  REQUIRE_OK(context.Barrier());
  for (uint32_t peer = 0; peer < n; ++peer) {
    const uint64_t* const theirs = context.Translate(peer, allocated.get());
    for (uint64_t i = 0; i < size; ++i) REQUIRE(theirs[i] == Pattern(peer, round, i));
  }
  const uint32_t root = static_cast<uint32_t>(round % n);
  std::string value(40 + 7 * (round % 5000), static_cast<char>('a' + round % 26));
  value[0] = root != 0 || more ? 'm' : 'e';
  auto heard = Require(context.Broadcast(value, root));
  *all_more = heard[0] == 'm';
  value[0] = heard[0];
  REQUIRE(heard == value);
  if (round % 3 == 0) {
    auto team = Require(context.Split(static_cast<int>(me % 2)));
    REQUIRE_OK(context.Barrier(team));
    REQUIRE_OK(context.DestroyTeam(team));
  }
  if (round % 5 == 0) {
    auto own = Require(context.AllocateLocal<uint64_t>(16, absl::StrCat("own ", me)));
    own.get()[0] = Pattern(me, round, 7);
    auto opened = Require(context.Open<uint64_t>((me + 1) % n, absl::StrCat("own ", (me + 1) % n)));
    REQUIRE_OK(context.Barrier());
    REQUIRE(opened.get()[0] == Pattern((me + 1) % n, round, 7));
    REQUIRE_OK(context.Barrier());
    REQUIRE_OK(context.Close(opened));
    REQUIRE_OK(context.Free(own));
  }
  if (round % 40 == 39 && context.heap_bytes() < 32 * kMiB) REQUIRE_OK(context.Grow(kMiB));
  REQUIRE_OK(context.Free(allocated));
  return 0;
}

// Until it is told to stop. What is allocated first has to be there at the end.
int Traffic(const std::vector<std::string>&) {
  auto context = Require(Context::Create({.heap_bytes = 4 * kMiB, .max_heap_bytes = 64 * kMiB}));
  const uint32_t me = context.rank();
  auto kept = Require(context.Allocate<uint64_t>(1 << 16, "kept"));
  for (uint64_t i = 0; i < kept.size; ++i) kept.get()[i] = Pattern(me, 0, i);
  std::cout << "ready" << std::endl;
  std::atomic<bool> stop{false};
  std::thread listener([&stop] {
    for (std::string line; std::getline(std::cin, line) && line != "stop";) {
    }
    stop = true;
  });
  const auto run = [&]() -> int {
    bool more = true;
    uint64_t rounds = 0;
    std::chrono::nanoseconds longest{0};
    for (; more; ++rounds) {
      const auto start = std::chrono::steady_clock::now();
      if (const int code = Round(context, rounds, !stop, &more); code != 0) return code;
      longest =
          std::max<std::chrono::nanoseconds>(longest, std::chrono::steady_clock::now() - start);
    }
    for (uint32_t peer = 0; peer < context.n_ranks(); ++peer) {
      const uint64_t* const theirs = context.Translate(peer, kept.get());
      for (uint64_t i = 0; i < kept.size; ++i) REQUIRE(theirs[i] == Pattern(peer, 0, i));
    }
    REQUIRE_OK(context.Health());
    REQUIRE_OK(context.Barrier());
    REQUIRE_OK(context.Leave());
    std::cout << "rounds " << rounds << ", longest "
              << std::chrono::duration_cast<std::chrono::milliseconds>(longest).count() << " ms"
              << std::endl;
    return 0;
  };
  const int code = run();
  if (code != 0) _exit(code);
  listener.join();
  return 0;
}

// Joins, does a round and leaves, until it is told to stop.
int ComeAndGo(const std::vector<std::string>&) {
  std::atomic<bool> stop{false};
  std::thread listener([&stop] {
    for (std::string line; std::getline(std::cin, line) && line != "stop";) {
    }
    stop = true;
  });
  const auto run = [&]() -> int {
    bool more = true;
    uint64_t lives = 0;
    for (; more; ++lives) {
      auto context =
          Require(Context::Create({.job = absl::StrCat("life-", lives), .heap_bytes = 2 * kMiB}));
      if (lives == 0) std::cout << "ready" << std::endl;
      if (const int code = Round(context, 0, !stop, &more); code != 0) return code;
      REQUIRE_OK(context.Leave());
    }
    std::cout << "lives " << lives << std::endl;
    return 0;
  };
  const int code = run();
  if (code != 0) _exit(code);
  listener.join();
  return 0;
}

// Tests.

class RestartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = Daemon::Start({.supervised = true});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }

  RankProcesses::Options Ranks(const std::string& job) const {
    RankProcesses::Options options;
    options.runtime_dir = daemon_->runtime_dir();
    options.job = job;
    return options;
  }

  // So long after it has been started.
  void EndIrisd(absl::Duration after, int signal) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    pid_t irisd = -1;
    while ((irisd = daemon_->Supervised()) <= 0 || irisd == killed_) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
    absl::SleepFor(after);
    ASSERT_EQ(kill(irisd, signal), 0);
    killed_ = irisd;
  }

  void TearDown() override {
    if (HasFailure() && daemon_ != nullptr) std::printf("%s\n", daemon_->Log().c_str());
  }

  void ExpectNobodyWasTold() {
    const std::string log = daemon_->Log();
    for (const char* told :
         {"rank_hung_up", "rank_dead", "rank_resumed", "job_broken", "job_failed", "join_failed",
          "memory_lost", "session ended", "end=\"signal 6", "end=\"signal 11",
          "end=\"exit code 1\"", "Sanitizer", "runtime error", "gives no sign of life"}) {
      EXPECT_FALSE(absl::StrContains(log, told)) << told;
    }
  }

  std::unique_ptr<Daemon> daemon_;
  pid_t killed_ = 0;  // last
};

// What an irisd and its supervisor have, which must not grow from one irisd to the next.
struct Size {
  static Size Of(pid_t pid) {
    Size size;
    size.descriptors = base::CountDescriptors(pid);
    std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
    for (std::string line; std::getline(file, line);) {
      absl::string_view text = line;
      int* const place = absl::ConsumePrefix(&text, "VmRSS:")     ? &size.rss_kib
                         : absl::ConsumePrefix(&text, "Threads:") ? &size.threads
                                                                  : nullptr;
      if (place == nullptr) continue;
      absl::ConsumeSuffix(&text, "kB");
      (void)absl::SimpleAtoi(absl::StripAsciiWhitespace(text), place);
    }
    return size;
  }

  int rss_kib = 0, descriptors = 0, threads = 0;
};

// Irisd's, its supervisor's and all that they have started, dead irisds' included.
int CountProcessesOfGroup(pid_t group) {
  int n = 0;
  std::error_code error;
  for (const auto& each : std::filesystem::directory_iterator("/proc", error)) {
    std::string stat;
    std::getline(std::ifstream(each.path() / "stat"), stat);
    const size_t name_end = stat.rfind(')');
    if (name_end == stat.npos) continue;
    char state = 0;
    int parent = 0, its_group = 0;
    std::istringstream(stat.substr(name_end + 1)) >> state >> parent >> its_group;
    n += its_group == group ? 1 : 0;
  }
  return n;
}

TEST_F(RestartTest, KillsUnderTrafficAreNotNoticed) {
  const model::RandomRun run = model::BeginRandomRun("restart_test", 30);
  model::Random random(run.seed);
  const auto tell = [this](uint64_t kills) {
    const Size irisd = Size::Of(daemon_->Supervised()), supervisor = Size::Of(daemon_->pid());
    std::error_code error;
    const auto journal =
        std::filesystem::file_size(daemon_->runtime_dir() + "/state/journal", error);
    std::printf(
        "%5llu kills: irisd %6d KiB %3d descriptors %2d threads | supervisor %5d KiB %3d "
        "descriptors %d threads | journal %7lld bytes | %d processes\n",
        static_cast<unsigned long long>(kills), irisd.rss_kib, irisd.descriptors, irisd.threads,
        supervisor.rss_kib, supervisor.descriptors, supervisor.threads,
        static_cast<long long>(journal), CountProcessesOfGroup(daemon_->pid()));
    std::fflush(stdout);
  };
  RankProcesses traffic("traffic", kRanks, Ranks("traffic"));
  RankProcesses comers("come_and_go", 2, Ranks("comers"));
  for (int rank = 0; rank < kRanks; ++rank) traffic.WaitLine(rank, "ready");
  for (int rank = 0; rank < 2; ++rank) comers.WaitLine(rank, "ready");
  for (uint64_t i = 0; i < run.n_ops && !HasFailure(); ++i) {
    // SIGTERM asks it to hand over.
    EndIrisd(absl::Microseconds(random.Below(200'000)), random.OneIn(4) ? SIGTERM : SIGKILL);
    if ((i + 1) % 100 != 0) continue;
    while (!daemon_->GetStatus().ok() || daemon_->Supervised() == killed_) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    tell(i + 1);
  }
  absl::SleepFor(absl::Milliseconds(300));
  traffic.TellAll("stop");
  comers.TellAll("stop");
  traffic.ExpectAllSucceed();
  comers.ExpectAllSucceed();
  std::printf("%s%s", traffic.Output(0).c_str(), comers.Output(0).c_str());
  ExpectNobodyWasTold();
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv,
                                 {{"traffic", iris::Traffic}, {"come_and_go", iris::ComeAndGo}});
}
