// RankSet: the processes of one iris-run, which start and end together.
//
// A rank leads its own process group, so processes that the rank starts end with it. A rank dies
// when iris-run dies, and a guard process then ends the groups. iris-run adopts processes that
// leave their group (PR_SET_CHILD_SUBREAPER) and ends them, too. Ended ranks stay zombies until all
// ranks have ended, so that no other process gets their group's number. One thread: Run blocks the
// signals that it forwards and reads them from a descriptor. One RankSet per process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/ctl/line_prefixer.h"
#include "proto/wire/unique_fd.h"

namespace iris::ctl {

struct RunOptions {
  std::vector<std::string> command;  // not empty
  int n_ranks = 1;
  std::string job;          // IRIS_JOB
  std::string runtime_dir;  // IRIS_RUNTIME_DIR; empty: as inherited
  bool prefix = true;       // false: ranks write to iris-run's own output
  bool colour_stdout = false;
  bool colour_stderr = false;
  absl::Duration timeout = absl::InfiniteDuration();
  std::vector<std::string> environment;     // NAME=VALUE, for every rank
  std::vector<std::vector<int>> cpus;       // those of each rank, ascending; empty: as inherited
  bool keep_going = false;                  // a failure does not end the other ranks
  absl::Duration grace = absl::Seconds(5);  // between a failure and SIGTERM to the others
  absl::Duration kill_after = absl::Seconds(5);  // between SIGTERM and SIGKILL
};

// Exit codes of iris-run that do not come from a rank.
inline constexpr int kExitUsage = 2;
inline constexpr int kExitTimeout = 124;
inline constexpr int kExitCannotExecute = 126;
inline constexpr int kExitNotFound = 127;

// Returns texts such as "exited with code 3" and "was ended by SIGKILL (killed)".
std::string DescribeWaitStatus(int code, int status);

class RankSet {
 public:
  explicit RankSet(RunOptions options) : options_(std::move(options)) {}

  // Starts the ranks, passes on their output until all have ended, reports the first failure on
  // stderr. Returns the exit code for iris-run: 0, that of the first rank that failed, 128 +
  // signal, or one of those above.
  int Run();

 private:
  struct Output {
    wire::UniqueFd fd;  // read end; invalid: ended
    int to = 1;         // 1 or 2
    LinePrefixer prefixer;
  };
  struct Process {
    int rank = 0;
    pid_t pid = -1;
    bool ended = false;
  };

  absl::Status Start(int rank);
  absl::Status StartGuard();
  int FailToStart(const absl::Status& status);
  void HandleSignal(int signal);
  void ReapEnded();
  void TakeFailure(const Process& process, int code, int status);
  void EndSurvivors();
  void ReadOutput(Output& output);
  int PollOutputs(int other_fd, int timeout_ms);
  void DrainOutputs();
  void SignalRunning(int signal);
  void BeginEnding();
  void EndEverything();
  void Write(int fd, const std::string& text);
  bool AllEnded() const;
  int PollTimeoutMs() const;

  const RunOptions options_;
  wire::UniqueFd signal_fd_;
  wire::UniqueFd guard_pipe_;  // the guard acts if this closes without a message
  pid_t guard_pid_ = -1;
  std::vector<Process> processes_;
  std::vector<std::unique_ptr<Output>> outputs_;
  int exit_code_ = 0;
  bool ending_ = false;                           // SIGTERM has been sent
  bool stopping_ = false;                         // the user has requested the end
  absl::Time end_time_ = absl::InfiniteFuture();  // of SIGTERM to the survivors
  absl::Time kill_time_ = absl::InfiniteFuture();
  absl::Time timeout_time_ = absl::InfiniteFuture();
};

}  // namespace iris::ctl
