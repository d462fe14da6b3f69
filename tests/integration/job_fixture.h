// JobTest: a fixture with an irisd of its own, on which a test runs the ranks of jobs.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/integration/daemon_harness.h"
#include "tests/integration/rank_processes.h"

namespace iris::testing {

class JobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto daemon = Daemon::Start();
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
  }
  RankProcesses::Options Ranks() const {
    RankProcesses::Options options;
    options.runtime_dir = daemon_->runtime_dir();
    return options;
  }
  // All ranks of a scenario, which has to succeed on each.
  void Run(const std::string& scenario, int n_ranks) {
    RankProcesses ranks(scenario, n_ranks, Ranks());
    ranks.ExpectAllSucceed();
  }

  std::unique_ptr<Daemon> daemon_;
};

// Kills a rank. All others must write a line "error " that says so and has the words `operation`,
// and end.
inline void ExpectTheKilledIsNamed(RankProcesses& ranks, int killed, const std::string& operation) {
  using ::testing::AnyOf;
  using ::testing::HasSubstr;
  ranks.Signal(killed, SIGKILL);
  for (int r = 0; r < ranks.n_ranks(); ++r) {
    if (r == killed) continue;
    const std::string error = ranks.WaitLine(r, "error ");
    EXPECT_THAT(error, AllOf(HasSubstr("ABORTED"), HasSubstr(operation)));
    // Who is killed hangs up first; that its process is gone is known a moment later.
    const std::string who = absl::StrCat("rank ", killed, " (pid ", ranks.pid(killed), ")");
    EXPECT_THAT(error, AnyOf(HasSubstr(who + " hung up"), HasSubstr(who + " died")));
    EXPECT_EQ(ranks.Wait(r), 0) << ranks.Output(r);
  }
}

}  // namespace iris::testing
