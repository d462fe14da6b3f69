// irisd is killed at every system call that somebody else could notice: of its start, and of a
// job's whole life. No rank hears of it, and nothing is left.
//
// IRIS_TEST_OPS=1000 (or any number from 1000 on) goes through all calls one after another; fewer
// are spread over them, from a place on that IRIS_TEST_SEED says.
#include <gtest/gtest.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "device/driver/testing/own_memory.h"
#include "tests/integration/require.h"
#include "tests/model/seed.h"
#include "tests/restart/restart_fixture.h"

namespace iris {
namespace {

using driver::testing::OwnMemory;
using testing::Eventually;
using testing::KillPoints;
using testing::Prober;
using testing::RankProcesses;
using testing::Require;
using testing::Text;

constexpr uint64_t kMiB = 1 << 20;
constexpr int kRanks = 2;
constexpr uint64_t kAllCalls = 1000;

// Scenarios: what a rank does.

uint64_t Pattern(uint32_t rank, uint64_t life, uint64_t i) {
  return (life * 131 + rank) * 0x9E3779B97F4A7C15ull + i;
}

// Everything that has an effect in irisd, once.
int Life(uint64_t life, OwnMemory& own) {
  ContextOptions options;
  options.job = absl::StrCat("life-", life);
  options.heap_bytes = 2 * kMiB;
  options.max_heap_bytes = 64 * kMiB;
  Context c = Require(Context::Create(options));
  const uint32_t me = c.rank(), peer = 1 - me;
  auto first = Require(c.Allocate<uint64_t>(1000, "first"));
  for (uint64_t i = 0; i < 1000; ++i) first.get()[i] = Pattern(me, life, i);
  auto grown = c.Allocate<uint64_t>(3 * kMiB / 8, "grown");  // needs more memory
  REQUIRE_OK(grown);
  for (uint64_t i = 0; i < grown->size; i += 1000) grown->get()[i] = Pattern(me, life, i);
  auto shared =
      Require(c.RegisterSymmetric<uint64_t>(reinterpret_cast<uint64_t*>(own.at(0)), 1000, "own"));
  for (uint64_t i = 0; i < 1000; ++i) shared.get()[i] = ~Pattern(me, life, i);
  auto local = Require(c.AllocateLocal<uint64_t>(16, "local"));
  local.get()[3] = Pattern(me, life, 3);
  auto opened = Require(c.Open<uint64_t>(peer, "local"));
  REQUIRE_OK(c.Barrier());
  REQUIRE(opened.get()[3] == Pattern(peer, life, 3));
  for (uint64_t i = 0; i < 1000; ++i) {
    REQUIRE(c.Translate(peer, first.get())[i] == Pattern(peer, life, i));
    REQUIRE(c.Translate(peer, shared.get())[i] == ~Pattern(peer, life, i));
  }
  for (uint64_t i = 0; i < grown->size; i += 1000) {
    REQUIRE(c.Translate(peer, grown->get())[i] == Pattern(peer, life, i));
  }
  const std::string value(20'000, static_cast<char>('a' + life % 26));
  REQUIRE(Require(c.Broadcast(value, static_cast<uint32_t>(life % kRanks))) == value);
  auto team = Require(c.Split(0));
  REQUIRE_OK(c.Barrier(team));
  REQUIRE_OK(c.DestroyTeam(team));
  REQUIRE_OK(c.Close(opened));
  REQUIRE_OK(c.Barrier());
  REQUIRE_OK(c.Free(local));
  REQUIRE_OK(c.Free(shared));
  REQUIRE_OK(c.Free(*grown));
  REQUIRE_OK(c.Free(first));
  REQUIRE_OK(c.Leave());
  return 0;
}

// A life for each line that comes.
int Lives(const std::vector<std::string>&) {
  auto own = OwnMemory::Create(driver::BackendKind::kEmu, "", 0, 1, 2 * kMiB);
  REQUIRE(own.ok());
  std::string line;
  for (uint64_t life = 0; std::getline(std::cin, line) && line == "live"; ++life) {
    if (const int code = Life(life, **own); code != 0) return code;
    std::cout << "lived " << life << "." << std::endl;
  }
  return 0;
}

// Tests.

class PointsTest : public testing::RestartFixture {
 protected:
  testing::DaemonOptions Options() override {
    testing::DaemonOptions options = RestartFixture::Options();
    options.n_devices = 2;
    options.environment = points_.Environment();
    return options;
  }

  // Calls from the first on, all or some.
  class Points {
   public:
    explicit Points(const model::RandomRun& run) : run_(run), random_(run.seed) { Next(); }
    int64_t call() const { return call_; }
    bool after() const { return after_; }
    void Next() {
      // About as many as are wanted, if there are 400.
      call_ += run_.n_ops >= kAllCalls
                   ? (after_ ? 1 : 0)
                   : 1 + static_cast<int64_t>(random_.Below(2 * 400 / (run_.n_ops + 1) + 1));
      after_ = run_.n_ops >= kAllCalls ? !after_ : random_.OneIn(2);
    }

   private:
    const model::RandomRun run_;
    model::Random random_;
    int64_t call_ = 0;
    bool after_ = true;
  };

  testing::TempDir folder_;
  KillPoints points_{folder_.path()};
};

TEST_F(PointsTest, EveryCallOfALifeCanBeTheLast) {
  const model::RandomRun run = model::BeginRandomRun("points_test", 20);
  RankProcesses ranks("lives", kRanks, Ranks("lives"));
  uint64_t life = 0;
  const auto live = [&] { ranks.TellAll("live"); };
  const auto lived = [&] {
    for (int rank = 0; rank < kRanks; ++rank) {
      if (ranks.WaitLine(rank, absl::StrCat("lived ", life, ".")).empty()) return false;
    }
    ++life;
    return true;
  };
  live();
  ASSERT_TRUE(lived());
  Prober prober(daemon_->runtime_dir());
  ASSERT_TRUE(Eventually([&] { return NowHeld().heap_bytes == Prober::kHeapBytes; }));
  absl::SleepFor(absl::Milliseconds(200));
  const Held before = NowHeld();
  Points points(run);
  prober.Stop();
  for (; !HasFailure(); points.Next()) {
    const uint32_t killed = points_.killed();
    const pid_t pid = Serving();
    points_.Arm(points.call(), points.after());
    live();
    ASSERT_TRUE(lived()) << "call " << points.call()
                         << " of irisd was its last: " << points_.last();
    if (points_.armed()) break;  // no call was the last one
    ASSERT_EQ(points_.killed(), killed + 1);
    ASSERT_NE(Serving(pid), pid);
    if (life % 10 == 0)
      ExpectNoMoreHeldThan({before.heap_bytes - Prober::kHeapBytes, 1 << 20, 1 << 20,
                            before.supervisor_fds, before.supervisor_memfds});
  }
  points_.Disarm();
  std::printf("%llu lives, killed %u times, up to call %lld\n",
              static_cast<unsigned long long>(life), points_.killed(),
              static_cast<long long>(points.call()));
  Prober last(daemon_->runtime_dir());
  ExpectNoMoreHeldThan(before);
  last.Stop();
  ranks.TellAll("end");
  ranks.ExpectAllSucceed();
  EXPECT_TRUE(Eventually([&] { return NowHeld().heap_bytes == 0; }));
  ExpectNobodyWasTold();
}

TEST_F(PointsTest, EveryCallOfAStartCanBeTheLast) {
  const model::RandomRun run = model::BeginRandomRun("points_test", 20);
  RankProcesses ranks("lives", kRanks, Ranks("lives"));
  Prober prober(daemon_->runtime_dir());
  model::Random random(run.seed + 1);
  absl::SleepFor(absl::Milliseconds(200));
  const Held before = NowHeld();
  uint64_t life = 0;
  Points points(run);
  for (; !HasFailure(); points.Next()) {
    const uint32_t killed = points_.killed();
    // A life is under way, somewhere.
    ranks.TellAll("live");
    points_.Arm(1 + static_cast<int64_t>(random.Below(200)), points.after(), points.call());
    ASSERT_TRUE(Eventually([&] { return points_.killed() > killed; }));
    prober.Killed();
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_FALSE(ranks.WaitLine(rank, absl::StrCat("lived ", life, ".")).empty())
          << "call " << points.call() << " of irisd's start was its last: " << points_.last();
    }
    ++life;
    ASSERT_TRUE(prober.AwaitAnswer());
    if (points_.killed() == killed + 1) break;  // it has started, and lived on
    points_.Disarm();
  }
  points_.Disarm();
  std::printf("%llu lives, killed %u times, up to call %lld\n",
              static_cast<unsigned long long>(life), points_.killed(),
              static_cast<long long>(points.call()));
  prober.Print("killed in its start");
  ExpectNoMoreHeldThan(before);
  prober.Stop();
  ranks.TellAll("end");
  ranks.ExpectAllSucceed();
  EXPECT_TRUE(Eventually([&] { return NowHeld().heap_bytes == 0; }));
  ExpectNobodyWasTold();
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv, {{"lives", iris::Lives}});
}
