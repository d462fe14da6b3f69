// Each system call that can fail does so once: in a first start, in a start that goes on with a
// job, and while irisd serves a job from its join to its leave. irisd goes on, or ends with an
// error that says why; the next one has everything. Whoever is refused is told why.
//
// IRIS_TEST_OPS=1000 (or any number from 1000 on) goes through all calls one after another; fewer
// are spread over them, by IRIS_TEST_SEED.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "device/driver/testing/own_memory.h"
#include "server/sandbox/sanitizers.h"
#include "tests/integration/require.h"
#include "tests/model/seed.h"
#include "tests/restart/restart_fixture.h"

namespace iris {
namespace {

using driver::testing::OwnMemory;
using testing::CountOf;
using testing::Daemon;
using testing::Eventually;
using testing::kFailingCallCount;
using testing::kFailingCalls;
using testing::KillPoints;
using testing::RankProcesses;
using testing::Require;
using testing::Text;

constexpr uint64_t kMiB = 1 << 20;
constexpr int kRanks = 2;
constexpr uint64_t kAllCalls = 1000;

// Scenarios: what a rank does.

uint64_t Pattern(uint32_t rank, uint64_t i) { return rank * 0x9E3779B97F4A7C15ull + i; }

// A job with all that irisd keeps of one.
class Life {
 public:
  explicit Life(OwnMemory& own) : own_(own) {}

  int Begin() {
    ContextOptions options;
    options.heap_bytes = 2 * kMiB;
    options.max_heap_bytes = 64 * kMiB;
    options.join_timeout = std::chrono::seconds(10);
    options.timeout = std::chrono::seconds(10);
    context_ = std::make_unique<Context>(Require(Context::Create(options)));
    Context& c = *context_;
    auto first = Require(c.Allocate<uint64_t>(1000, "first"));
    auto grown = c.Allocate<uint64_t>(3 * kMiB / 8, "grown");  // needs more memory
    REQUIRE_OK(grown);
    auto shared = Require(
        c.RegisterSymmetric<uint64_t>(reinterpret_cast<uint64_t*>(own_.at(0)), 1000, "own"));
    auto local = Require(c.AllocateLocal<uint64_t>(16, "local"));
    arrays_ = {first, *grown, shared};
    for (const Array<uint64_t>& each : arrays_) {
      for (uint64_t i = 0; i < each.size; ++i) each.get()[i] = Pattern(c.rank(), i);
    }
    local_ = local;
    REQUIRE_OK(c.Barrier());
    return 0;
  }
  // Everything is there, byte by byte, and irisd does all that it did before.
  int Check() {
    Context& c = *context_;
    for (const Array<uint64_t>& each : arrays_) {
      for (uint32_t rank = 0; rank < kRanks; ++rank) {
        const uint64_t* const found = c.Translate(rank, each.get());
        for (uint64_t i = 0; i < each.size; ++i) REQUIRE(found[i] == Pattern(rank, i));
      }
    }
    auto more = Require(c.Allocate<uint64_t>(1000, "more"));
    REQUIRE_OK(c.Free(more));
    const std::string value(20'000, 'v');
    REQUIRE(Require(c.Broadcast(value, 1)) == value);
    auto team = Require(c.Split(0));
    REQUIRE_OK(c.Barrier(team));
    REQUIRE_OK(c.DestroyTeam(team));
    REQUIRE_OK(c.Barrier());
    return 0;
  }
  int End() {
    Context& c = *context_;
    REQUIRE_OK(c.Free(local_));
    for (const Array<uint64_t>& each : arrays_) REQUIRE_OK(c.Free(each));
    REQUIRE_OK(c.Leave());
    return 0;
  }

 private:
  OwnMemory& own_;
  std::unique_ptr<Context> context_;
  std::vector<Array<uint64_t>> arrays_;  // with a pattern
  Array<uint64_t> local_;
};

int Stays(const std::vector<std::string>&) {
  auto own = OwnMemory::Create(driver::BackendKind::kEmu, "", 0, 1, 2 * kMiB);
  REQUIRE(own.ok());
  Life life(**own);
  if (const int code = life.Begin(); code != 0) return code;
  std::cout << "stays" << std::endl;
  std::string line;
  for (uint64_t n = 0; std::getline(std::cin, line) && line == "check"; ++n) {
    if (const int code = life.Check(); code != 0) return code;
    std::cout << "checked " << n << "." << std::endl;
  }
  return life.End();
}

int Passes(const std::vector<std::string>&) {
  auto own = OwnMemory::Create(driver::BackendKind::kEmu, "", 0, 1, 2 * kMiB);
  REQUIRE(own.ok());
  Life life(**own);
  if (const int code = life.Begin(); code != 0) return code;
  if (const int code = life.Check(); code != 0) return code;
  return life.End();
}

// Tests.

// The calls of an undisturbed run, all or some, each to fail once.
class Failures {
 public:
  struct Point {
    uint32_t call = 0;
    int64_t n = 0;
    int error = 0;
    std::string Text() const {
      return absl::StrCat("call ", n, " of ", kFailingCalls[call].name, " fails with ",
                          strerror(error));
    }
  };

  Failures(const model::RandomRun& run, const std::vector<uint32_t>& counts) {
    model::Random random(run.seed);
    uint64_t n_calls = 0;
    for (const uint32_t count : counts) n_calls += count;
    const bool all = run.n_ops >= kAllCalls;
    for (uint32_t call = 0; call < kFailingCallCount; ++call) {
      const auto& errors = kFailingCalls[call].errors;
      uint32_t n_errors = 0;
      while (n_errors < std::size(errors) && errors[n_errors] != 0) ++n_errors;
      for (uint32_t n = 1; n <= counts[call]; ++n) {
        if (!all && random.Below(n_calls) >= run.n_ops) continue;
        const uint64_t turn = all ? n - 1 : random.Below(n_errors);
        points_.push_back({call, n, errors[turn % n_errors]});
      }
    }
  }
  const std::vector<Point>& points() const { return points_; }

  void Injected(const Point& point, bool ended) {
    Seen& seen = seen_[kFailingCalls[point.call].name];
    ++seen.n;
    seen.ended += ended ? 1 : 0;
  }
  void Print(const char* what) const {
    uint64_t n = 0;
    std::string text;
    for (const auto& [name, seen] : seen_) {
      n += seen.n;
      absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", seen.n);
      if (seen.ended > 0) absl::StrAppend(&text, " (", seen.ended, " refused)");
    }
    std::printf("%s: %llu failures: %s\n", what, static_cast<unsigned long long>(n), text.c_str());
    std::fflush(stdout);
  }

 private:
  struct Seen {
    uint64_t n = 0, ended = 0;
  };
  std::vector<Point> points_;
  std::map<std::string, Seen> seen_;
};

// An irisd that ended by itself has said once why: in its log, or, before there was one, by itself.
void ExpectOneError(const std::string& log, int error) {
  const int n = CountOf(log, "msg=\"irisd cannot run\"") + CountOf(log, "irisd: cannot run: ");
  EXPECT_EQ(n, 1) << log;
  // No more threads, and no more descriptors, are said in words of their own.
  const bool named =
      absl::StrContains(log, strerror(error)) || absl::StrContains(log, "starts no more threads");
  EXPECT_TRUE(named) << "no \"" << strerror(error) << "\" in:\n" << log;
}

class FailuresTest : public testing::RestartFixture {
 protected:
  // With sanitizers each start takes several times as long.
  static model::RandomRun Run(uint64_t n_ops) {
    return model::BeginRandomRun("failures_test", server::kSanitized ? n_ops / 5 : n_ops);
  }
  testing::DaemonOptions Options() override {
    testing::DaemonOptions options = RestartFixture::Options();
    options.n_devices = 2;
    options.environment = points_.Environment();
    return options;
  }
  void ExpectNoOtherEnd() override {
    const std::string log = daemon_->Log();
    for (const char* end : {"end=\"signal 6", "end=\"signal 11", "Sanitizer", "runtime error",
                            "gives no sign of life", "is not ready in time"}) {
      EXPECT_FALSE(absl::StrContains(log, end)) << end;
    }
  }

  void Stay() {
    stays_ = std::make_unique<RankProcesses>("stays", kRanks, Ranks("stays"));
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_FALSE(stays_->WaitLine(rank, "stays").empty());
    }
    ASSERT_TRUE(Check());
    before_ = SettledFds();
  }
  bool Check() {
    stays_->TellAll("check");
    for (int rank = 0; rank < kRanks; ++rank) {
      if (stays_->WaitLine(rank, absl::StrCat("checked ", checked_, ".")).empty()) return false;
    }
    ++checked_;
    return true;
  }
  void Leave() {
    stays_->TellAll("end");
    stays_->ExpectAllSucceed();
    EXPECT_TRUE(Eventually([&] { return NowHeld().heap_bytes == 0; }));
    ExpectNobodyWasTold();
  }
  // Kills irisd, and has `arm` done before the next one starts.
  template <typename F>
  void KillAnd(F arm) {
    ASSERT_TRUE(Eventually([&] { return daemon_->Supervised() > 0; }));
    const pid_t pid = daemon_->Supervised();
    ASSERT_EQ(kill(daemon_->pid(), SIGSTOP), 0);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_TRUE(
        Eventually([&] { return !std::filesystem::exists(absl::StrCat("/proc/", pid, "/fd/0")); }));
    arm();
    ASSERT_EQ(kill(daemon_->pid(), SIGCONT), 0);
  }
  // What was logged since the last time.
  std::string TakeLog() {
    std::string log = daemon_->Log();
    std::string more = log.substr(std::min(logged_, log.size()));
    logged_ = log.size();
    return more;
  }

  Held Fds() {
    Held held;
    const pid_t pid = daemon_->Supervised();
    held.irisd_fds = base::CountDescriptors(pid);
    held.irisd_memfds = testing::CountMemfds(pid);
    held.supervisor_fds = daemon_->OpenFds();
    held.supervisor_memfds = testing::CountMemfds(daemon_->pid());
    return held;
  }
  // What stays open: helpers come and go for a moment.
  Held SettledFds() {
    Held least = Fds();
    for (const absl::Time end = absl::Now() + absl::Seconds(1); absl::Now() < end;) {
      const Held now = Fds();
      least.irisd_fds = std::min(least.irisd_fds, now.irisd_fds);
      least.irisd_memfds = std::min(least.irisd_memfds, now.irisd_memfds);
      least.supervisor_fds = std::min(least.supervisor_fds, now.supervisor_fds);
      least.supervisor_memfds = std::min(least.supervisor_memfds, now.supervisor_memfds);
      absl::SleepFor(absl::Milliseconds(5));
    }
    return least;
  }
  // For as long as something may be about to close.
  void ExpectNoLeak() {
    Held now;
    EXPECT_TRUE(Eventually(
        [&] {
          now = Fds();
          return now <= before_;
        },
        absl::Seconds(20)))
        << "before: " << before_.Text() << "\nnow: " << now.Text();
  }

  testing::TempDir folder_;
  KillPoints points_{folder_.path()};
  std::unique_ptr<RankProcesses> stays_;
  uint64_t checked_ = 0;
  size_t logged_ = 0;
  Held before_;
};

TEST_F(FailuresTest, InAStartThatGoesOn) {
  const model::RandomRun run = Run(40);
  Stay();
  // Undisturbed.
  KillAnd([&] { points_.TakeCounts(); });
  ASSERT_TRUE(Check());
  Failures failures(run, points_.TakeCounts());
  before_ = SettledFds();
  TakeLog();
  for (const Failures::Point& point : failures.points()) {
    SCOPED_TRACE(point.Text());
    KillAnd([&] { points_.Fail(point.call, point.n, point.error); });
    ASSERT_TRUE(Check());
    const bool failed = points_.StopFailing();
    ExpectNoLeak();
    const std::string log = TakeLog();
    const int n_ends = CountOf(log, "end=\"exit code 1\"");
    EXPECT_LE(n_ends, failed ? 1 : 0) << log;
    if (n_ends > 0) ExpectOneError(log, point.error);
    if (failed) failures.Injected(point, n_ends > 0);
    if (HasFailure()) return;
  }
  failures.Print("a start that goes on");
  Leave();
}

TEST_F(FailuresTest, WhileItServes) {
  const model::RandomRun run = Run(25);
  Stay();
  uint64_t n_lives = 0;
  std::string told;
  const auto live = [&](bool expect_success) {
    RankProcesses ranks("passes", kRanks, Ranks(absl::StrCat("life-", n_lives++)));
    bool succeeds = true;
    for (int rank = 0; rank < kRanks; ++rank) {
      const int code = ranks.Wait(rank);
      EXPECT_TRUE(code == 0 || code == 1) << code << "\n" << ranks.Output(rank);
      succeeds = succeeds && code == 0;
      if (code != 0) {
        EXPECT_FALSE(expect_success) << ranks.Output(rank);
        EXPECT_GT(ranks.Output(rank).size(), 20u);
        told += ranks.Output(rank);
      }
    }
    return succeeds;
  };
  live(true);
  ExpectNoLeak();
  points_.TakeCounts();
  live(true);
  Failures failures(run, points_.TakeCounts());
  before_ = SettledFds();
  TakeLog();
  for (const Failures::Point& point : failures.points()) {
    SCOPED_TRACE(point.Text());
    points_.Fail(point.call, point.n, point.error);
    told.clear();
    const bool succeeds = live(false);
    const bool failed = points_.StopFailing();
    EXPECT_TRUE(failed || succeeds) << told;
    if (!succeeds) std::printf("%s: %s\n", point.Text().c_str(), told.c_str());
    ASSERT_TRUE(Check());
    ExpectNoLeak();
    const std::string log = TakeLog();
    const int n_ends = CountOf(log, "end=\"exit code 1\"");
    EXPECT_EQ(n_ends, 0) << log;
    if (failed) failures.Injected(point, !succeeds);
    // Another life, and another irisd, go on as if nothing had been.
    if (n_lives % 5 == 0) {
      EXPECT_TRUE(live(true));
    }
    KillAnd([] {});
    ASSERT_TRUE(Check());
    ExpectNoLeak();
    if (HasFailure()) return;
  }
  failures.Print("while irisd serves");
  stays_->TellAll("end");
  stays_->ExpectAllSucceed();
  EXPECT_TRUE(Eventually([&] { return NowHeld().heap_bytes == 0; }));
}

// Of an irisd that has no job yet.
class FirstStartTest : public FailuresTest {
 protected:
  void SetUp() override {}
  testing::DaemonOptions Options() override {
    testing::DaemonOptions options = FailuresTest::Options();
    options.runtime_dir = absl::StrCat(folder_.path(), "/run-", n_runs_);
    return options;
  }
  // A job lives, irisd is stopped, and nothing of it stays.
  void ExpectServes() {
    RankProcesses ranks("passes", kRanks, Ranks("first"));
    ranks.ExpectAllSucceed();
    const auto code = daemon_->Stop();
    ASSERT_TRUE(code.ok()) << code.status();
    EXPECT_EQ(*code, 0) << daemon_->Log();
    ExpectNoOtherEnd();
    const std::string daemon_log = daemon_->Log();
    daemon_.reset();
    // The directory itself stays if an irisd that was refused has made it.
    std::error_code error;
    EXPECT_TRUE(!std::filesystem::exists(Options().runtime_dir) ||
                std::filesystem::is_empty(Options().runtime_dir, error))
        << daemon_log;
    ++n_runs_;
  }

  int n_runs_ = 0;
};

TEST_F(FirstStartTest, Fails) {
  const model::RandomRun run = Run(20);
  auto started = Daemon::Start(Options());
  ASSERT_TRUE(started.ok()) << started.status();
  daemon_ = *std::move(started);
  Failures failures(run, points_.TakeCounts());
  ExpectServes();
  for (const Failures::Point& point : failures.points()) {
    SCOPED_TRACE(point.Text());
    points_.Fail(point.call, point.n, point.error);
    started = Daemon::Start(Options());
    const bool failed = points_.StopFailing();
    if (!started.ok()) {
      EXPECT_TRUE(failed) << started.status();
      ExpectOneError(std::string(started.status().message()), point.error);
      EXPECT_FALSE(absl::StrContains(started.status().message(), "end=\"signal"))
          << started.status();
    }
    if (failed) failures.Injected(point, !started.ok());
    if (!started.ok()) started = Daemon::Start(Options());
    ASSERT_TRUE(started.ok()) << started.status();
    daemon_ = *std::move(started);
    ExpectServes();
    if (HasFailure()) return;
  }
  failures.Print("a first start");
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv, {{"stays", iris::Stays}, {"passes", iris::Passes}});
}
