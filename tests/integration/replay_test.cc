// What a live irisd records, with ranks that are real processes, has the same effects when it is
// replayed.
#include "server/recording/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <iostream>
#include <string>
#include <vector>

#include "iris/context.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"

namespace iris {
namespace {

using testing::Daemon;
using ::testing::HasSubstr;
using testing::RankProcesses;

// A rank that does everything that the machine decides. Told "go", it leaves; else it is killed.
int Live(const std::vector<std::string>&) {
  ContextOptions options;
  options.heap_bytes = 4 << 20;
  options.max_heap_bytes = 64 << 20;
  auto context = Context::Create(options);
  const auto fail = [](const Status& status) {
    std::cout << status << std::endl;
    return 1;
  };
  if (!context.ok()) return fail(context.status());
  auto first = context->Allocate({.bytes = 4096, .name = "first", .dtype = DType::kF32});
  if (!first.ok()) return fail(first.status());
  auto said = context->Broadcast("a value", 0);
  if (!said.ok()) return fail(said.status());
  // Each rank names another: the operation fails, the same for all.
  const auto mine = "n" + std::to_string(context->rank());
  if (context->Allocate({.bytes = 64, .name = mine}).ok()) return 1;
  auto team = context->CreateTeam({0, 1});
  if (!team.ok()) return fail(team.status());
  if (Status s = context->DestroyTeam(*team); !s.ok()) return fail(s);
  if (Status s = context->Grow(8 << 20); !s.ok()) return fail(s);
  if (Status s = context->Free(*first); !s.ok()) return fail(s);
  std::cout << "done" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  if (line != "go") return 0;
  const Status left = context->Leave();
  return left.ok() ? 0 : fail(left);
}

class ReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = Daemon::Start({.n_devices = 2, .flags = {"--record", recording_}});
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  RankProcesses Ranks(const std::string& job) {
    return RankProcesses("live", 2, {.runtime_dir = daemon_->runtime_dir(), .job = job});
  }

  const testing::TempDir dir_;
  const std::string recording_ = dir_.path() + "/recording";
  std::unique_ptr<Daemon> daemon_;
};

TEST_F(ReplayTest, ALiveRecordingHasTheSameEffectsAgain) {
  {
    RankProcesses leave = Ranks("leaves");
    for (int rank = 0; rank < 2; ++rank) leave.WaitLine(rank, "done");
    leave.TellAll("go");
    leave.ExpectAllSucceed();
    RankProcesses die = Ranks("dies");
    for (int rank = 0; rank < 2; ++rank) die.WaitLine(rank, "done");
    die.Signal(1, SIGKILL);
    EXPECT_EQ(die.Wait(1), 128 + SIGKILL);
    die.Tell(0, "end");
    (void)die.Wait(0);
  }
  const auto code = daemon_->Stop();
  ASSERT_TRUE(code.ok() && *code == 0) << daemon_->Log();
  EXPECT_THAT(daemon_->Log(), HasSubstr("msg=\"the recording ends\""));
  EXPECT_THAT(daemon_->Log(), HasSubstr("inputs_dropped=0"));
  struct stat info;
  ASSERT_EQ(stat(recording_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);

  const auto report = server::Replay(recording_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->n_inputs, 40u);
  EXPECT_FALSE(report->cut);
}

TEST_F(ReplayTest, AKilledIrisdLeavesARecordingThatReplays) {
  {
    RankProcesses ranks = Ranks("lives");
    for (int rank = 0; rank < 2; ++rank) ranks.WaitLine(rank, "done");
    daemon_->Kill();
  }
  const auto report = server::Replay(recording_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->n_inputs, 20u);
}

// A unit whose irisd was killed starts it again, and the recording of what happened stays.
TEST_F(ReplayTest, ARecordingIsNeverOverwritten) {
  daemon_->Kill();
  const auto second = Daemon::Start({.n_devices = 2, .flags = {"--record", recording_}});
  ASSERT_TRUE(second.ok()) << second.status();
  for (const char* file : {"", ".1"}) {
    const auto report = server::Replay(recording_ + file);
    EXPECT_TRUE(report.ok()) << report.status();
  }
}

// In the order of what happened, and nothing that is in order warns.
TEST_F(ReplayTest, AnOrderlyJobIsLoggedInOrderAndWithoutAWarning) {
  {
    RankProcesses ranks = Ranks("orderly");
    for (int rank = 0; rank < 2; ++rank) ranks.WaitLine(rank, "done");
    ranks.TellAll("go");
    ranks.ExpectAllSucceed();
  }
  ASSERT_TRUE(daemon_->Stop().ok());
  const std::string log = daemon_->Log();
  EXPECT_EQ(log.find("level=warning"), log.npos) << log;
  size_t last = 0;
  for (const char* kind : {"job_forming", "rank_joined", "job_mapping", "job_ready",
                           "operation_mismatch", "team_created", "rank_left", "job_ended"}) {
    const size_t at = log.find(std::string("kind=") + kind + " ");
    ASSERT_NE(at, log.npos) << kind << "\n" << log;
    EXPECT_GT(at, last) << kind << " comes too early\n" << log;
    last = at;
  }
}

}  // namespace
}  // namespace iris

int main(int argc, char** argv) {
  return iris::testing::TestMain(argc, argv, {{"live", iris::Live}});
}
