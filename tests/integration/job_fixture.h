// JobTest: a fixture with an irisd of its own, on which a test runs the ranks of jobs.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

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

}  // namespace iris::testing
