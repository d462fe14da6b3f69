// RankSet: the processes of one iris-run, which start and end together.
//
// A rank leads its own process group, so processes that the rank starts end with it. A rank dies
// when iris-run dies, and a guard process then ends the groups. iris-run adopts processes that
// leave their group (PR_SET_CHILD_SUBREAPER) and ends them, too. Ended ranks stay zombies until all
// ranks have ended, so that no other process gets their group's number. One thread: Run blocks the
// signals that it forwards and reads them from a descriptor. One RankSet per process.
//
// This class starts ranks on this node. Classes derived from it replace the virtual functions where
// the ranks are on other hosts (remote_ranks.h), and where another iris-run decides (agent.h).
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/ctl/line_prefixer.h"
#include "proto/wire/unique_fd.h"

namespace iris::ctl {

struct RunOptions {
  std::vector<std::string> command;  // not empty
  int n_ranks = 1;
  int first_rank = 0;       // of this node
  int n_local = 1;          // ranks of this node
  std::string job;          // IRIS_JOB
  std::string runtime_dir;  // IRIS_RUNTIME_DIR; empty: as inherited
  bool prefix = true;       // before each line; else lines are not put together
  bool capture = true;      // false: ranks write to iris-run's own output, without a prefix
  bool colour_stdout = false;
  bool colour_stderr = false;
  absl::Duration timeout = absl::InfiniteDuration();
  std::vector<std::string> environment;     // NAME=VALUE, for every rank
  std::vector<std::vector<int>> cpus;       // of each local rank, ascending; empty: as inherited
  bool keep_going = false;                  // a failure does not end the other ranks
  absl::Duration grace = absl::Seconds(5);  // between a failure and SIGTERM to the others
  absl::Duration kill_after = absl::Seconds(5);  // between SIGTERM and SIGKILL
};

// Exit codes of iris-run that do not come from a rank.
inline constexpr int kExitUsage = 2;
inline constexpr int kExitTimeout = 124;
inline constexpr int kExitHostFailed = 125;
inline constexpr int kExitCannotExecute = 126;
inline constexpr int kExitNotFound = 127;

// Returns texts such as "exited with code 3" and "was ended by SIGKILL (killed)".
std::string DescribeWaitStatus(int code, int status);

// Partitions the cores among the local ranks. Returns lines that report the result if `verbose` or
// if it is surprising, else nothing.
absl::StatusOr<std::string> BindCores(bool verbose, RunOptions* options);

class RankSet {
 public:
  explicit RankSet(RunOptions options) : options_(std::move(options)) {}
  RankSet(const RankSet&) = delete;
  RankSet& operator=(const RankSet&) = delete;
  virtual ~RankSet() = default;

  // Starts the ranks, passes on their output until all have ended, reports the first failure on
  // stderr. Returns the exit code for iris-run: 0, that of the first rank that failed, 128 +
  // signal, or one of those above.
  int Run();

 protected:
  struct Output {
    wire::UniqueFd fd;                     // read end; invalid: ended
    int to = 1;                            // 1 or 2
    std::optional<LinePrefixer> prefixer;  // none: bytes are passed on as they come
  };
  struct Process {
    int rank = 0;
    pid_t pid = -1;
    bool ended = false;
    std::string host;  // empty: this node
  };
  // A process that leads a group.
  struct Child {
    std::vector<std::string> command;
    std::vector<std::string> environment;  // empty: as inherited
    std::vector<int> cpus;                 // empty: as inherited
    int input = -1;                        // descriptors; -1: /dev/null, and as inherited
    int output = -1;
    int error = -1;
  };

  // Starts the ranks, or begins to.
  virtual absl::Status StartAll();
  virtual void HandleSignal(int signal);
  virtual void SignalRunning(int signal);
  // A process has ended, with these values of waitid.
  virtual void ReapEnded();
  virtual void Ended(const Process& process, int code, int status);
  virtual void Write(int fd, const std::string& text);
  virtual bool Finished() const { return AllEnded(); }
  // Returns false while ranks have to wait with their output.
  virtual bool TakesOutput() const { return true; }
  // Other descriptors to wait for. HandlePolled gets the entries that AddPolled has appended.
  virtual void AddPolled(std::vector<pollfd>* /*polled*/) {}
  virtual void HandlePolled(const pollfd* /*polled*/) {}
  // Does what is due at a time. Returns when it wants to be called again.
  virtual absl::Time Tick(absl::Time /*now*/) { return absl::InfiniteFuture(); }

  absl::StatusOr<pid_t> Spawn(const Child& child);
  // Reports a failure unless it follows from an earlier one, and begins the end of the others.
  void Fail(int exit_code, const std::string& text);
  void TakeFailure(const Process& process, int code, int status);
  void ReadOutput(Output& output);
  void BeginEnding();
  bool AllEnded() const;

  const RunOptions options_;
  std::vector<Process> processes_;
  std::vector<std::unique_ptr<Output>> outputs_;
  int exit_code_ = 0;
  bool ending_ = false;    // SIGTERM has been sent
  bool stopping_ = false;  // the user has requested the end
  absl::Time kill_time_ = absl::InfiniteFuture();

 private:
  absl::Status Start(int rank);
  absl::Status StartGuard();
  int FailToStart(const absl::Status& status);
  void EndSurvivors();
  int PollOutputs(int other_fd, int timeout_ms);
  void DrainOutputs();
  void EndEverything();
  int PollTimeoutMs(absl::Time tick) const;

  wire::UniqueFd signal_fd_;
  wire::UniqueFd guard_pipe_;  // the guard acts if this closes without a message
  pid_t guard_pid_ = -1;
  std::vector<pid_t> groups_;                     // of all that Spawn has started
  absl::Time end_time_ = absl::InfiniteFuture();  // of SIGTERM to the survivors
  absl::Time timeout_time_ = absl::InfiniteFuture();
};

absl::Status MakePipe(wire::UniqueFd* read_end, wire::UniqueFd* write_end);

}  // namespace iris::ctl
