// RankProcesses: the ranks of a job as real processes, for tests. Each runs this very program again
// with a scenario's name; what it prints is read line by line, and what it should know is written
// to its standard input.
//
// The test's main is TestMain. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace iris::testing {

using Scenario = std::function<int(const std::vector<std::string>& args)>;

// The exit code, if this process is a rank: `PROGRAM --scenario NAME ARGS...`.
std::optional<int> RunScenario(int argc, char** argv,
                               const std::map<std::string, Scenario>& scenarios);
// Runs the scenario if this process is a rank, else the tests; returns the exit code.
int TestMain(int argc, char** argv, const std::map<std::string, Scenario>& scenarios);

class RankProcesses {
 public:
  struct Options {
    std::string runtime_dir;
    std::string job = "test";
    std::vector<std::string> args;
    std::map<std::string, std::string> environment;  // added; empty value: removed
  };
  // Starts ranks 0 to n_ranks - 1.
  RankProcesses(const std::string& scenario, int n_ranks, const Options& options);
  // Kills and reaps what still runs.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  int n_ranks() const { return static_cast<int>(ranks_.size()); }
  pid_t pid(int rank) const { return ranks_[static_cast<size_t>(rank)].pid; }

  // Waits until the rank prints a line that contains `text`; that line. Fails the test and gives ""
  // after `timeout` or at the rank's end.
  std::string WaitLine(int rank, const std::string& text,
                       absl::Duration timeout = absl::Seconds(60));
  // Writes a line to the rank's standard input.
  void Tell(int rank, const std::string& line);
  void TellAll(const std::string& line);
  void Signal(int rank, int signal);

  // Waits for the rank's end: its exit code, 128 + signal if one ended it. -1 and a failed test
  // after `timeout`.
  int Wait(int rank, absl::Duration timeout = absl::Seconds(60));
  // Expects that every rank ends with 0; prints the output of those that do not.
  void ExpectAllSucceed(absl::Duration timeout = absl::Seconds(120));
  // All that the rank has printed so far, as far as it was read.
  const std::string& Output(int rank) const { return ranks_[static_cast<size_t>(rank)].output; }

 private:
  struct RankProcess {
    pid_t pid = -1;
    int in = -1;   // its standard input
    int out = -1;  // its standard output and error
    std::string output;
    size_t scanned = 0;  // bytes of output that WaitLine has passed
    std::optional<int> exit_code;
  };
  // Reads what is there, waiting for at most `timeout`; false at the end of the output.
  bool ReadMore(RankProcess& rank, absl::Duration timeout);
  std::vector<RankProcess> ranks_;
};

}  // namespace iris::testing
