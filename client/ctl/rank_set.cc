#include "client/ctl/rank_set.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/base/clock.h"
#include "device/base/posix.h"

namespace iris::ctl {

using internal::Now;

namespace {

constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
constexpr absl::Duration kDrainTime = absl::Milliseconds(500);

bool AsksForTheEnd(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

sigset_t HandledSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kForwarded) sigaddset(&set, signal);
  sigaddset(&set, SIGCHLD);
  return set;
}

}  // namespace

std::string DescribeWaitStatus(int code, int status) {
  if (code == CLD_EXITED) return absl::StrCat("exited with code ", status);
  const char* text = sigdescr_np(status);
  return absl::StrCat("was ended by ", SignalName(status), text == nullptr ? "" : " (",
                      text == nullptr ? "" : text, text == nullptr ? "" : ")",
                      code == CLD_DUMPED ? ", core dumped" : "");
}

// Writes complete lines. If the reader is gone, the run ends, as a single process would.
void RankSet::Write(int fd, const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      pollfd wait = {fd, POLLOUT, 0};
      poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      if (!ending_) {
        if (exit_code_ == 0) exit_code_ = 128 + SIGPIPE;
        BeginEnding();
      }
      return;
    }
  }
}

void RankSet::SignalRunning(int signal) {
  for (const Process& process : processes_) {
    if (!process.ended) kill(-process.pid, signal);
  }
}

void RankSet::BeginEnding() {
  if (ending_) return;
  ending_ = true;
  end_time_ = absl::InfiniteFuture();
  kill_time_ = Now() + options_.kill_after;
  SignalRunning(SIGTERM);
  SignalRunning(SIGCONT);  // a stopped rank, too
}

void RankSet::HandleSignal(int signal) {
  if (signal == SIGCHLD) {
    ReapEnded();
    return;
  }
  if (AsksForTheEnd(signal)) {
    if (stopping_) {  // asked twice: no more patience
      kill_time_ = absl::InfinitePast();
      ending_ = true;
      return;
    }
    stopping_ = true;
  }
  SignalRunning(signal);
}

// Finds the ranks that have ended, and leaves them zombies to keep their pids.
void RankSet::ReapEnded() {
  std::vector<std::pair<const Process*, siginfo_t>> ends;
  for (Process& process : processes_) {
    if (process.ended) continue;
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    process.ended = true;
    ends.emplace_back(&process, info);
  }
  // If several have failed since the last call, one that a signal ended is the likelier cause: the
  // others may have left because it was gone.
  for (const bool by_signal : {true, false}) {
    for (const auto& [process, info] : ends) {
      if ((info.si_code != CLD_EXITED) != by_signal) continue;
      Ended(*process, info.si_code, info.si_status);
    }
  }
}

void RankSet::Ended(const Process& process, int code, int status) {
  if (code != CLD_EXITED || status != 0) TakeFailure(process, code, status);
}

void RankSet::TakeFailure(const Process& process, int code, int status) {
  // A rank that iris-run has killed itself needs no hint.
  const char* const hint = code != CLD_EXITED && status == SIGKILL && !stopping_ && !ending_
                               ? ", perhaps by the kernel's out-of-memory killer (see dmesg)"
                               : "";
  Fail(code == CLD_EXITED ? status : 128 + status,
       absl::StrCat("rank ", process.rank, " of ", options_.n_ranks, " (pid ", process.pid,
                    process.host.empty() ? "" : " on ", process.host, ") ",
                    DescribeWaitStatus(code, status), hint));
}

void RankSet::Fail(int exit_code, const std::string& text) {
  const bool first = exit_code_ == 0;
  if (first) exit_code_ = exit_code;
  // Later failures are consequences of the first, except with --keep-going.
  if (!first && (!options_.keep_going || ending_ || stopping_)) return;
  const auto others = std::count_if(processes_.begin(), processes_.end(),
                                    [](const Process& each) { return !each.ended; });
  std::string next;
  if (others > 0 && !stopping_ && !ending_) {
    if (options_.keep_going) {
      absl::StrAppend(&next, "; ", others, others == 1 ? " other goes on" : " others go on");
    } else if (options_.grace > absl::ZeroDuration()) {
      absl::StrAppend(&next, "; ending the other ", others, " in ",
                      absl::FormatDuration(options_.grace));
    } else {
      absl::StrAppend(&next, "; ending the other ", others);
    }
  }
  Write(2, absl::StrCat("iris-run: ", text, next, "\n"));
  if (stopping_) {
    if (ending_) return;  // the others have been asked already
    ending_ = true;
    kill_time_ = Now() + options_.kill_after;
  } else if (!options_.keep_going) {
    end_time_ = Now() + options_.grace;
  }
}

void RankSet::EndSurvivors() {
  if (options_.grace > absl::ZeroDuration() && !AllEnded()) {
    std::vector<int> ranks;
    for (const Process& process : processes_) {
      if (!process.ended) ranks.push_back(process.rank);
    }
    Write(2, absl::StrCat("iris-run: not ended ", absl::FormatDuration(options_.grace),
                          " after the failure, and ended now: rank", ranks.size() == 1 ? " " : "s ",
                          absl::StrJoin(ranks, ", "), "\n"));
  }
  BeginEnding();
}

bool RankSet::AllEnded() const {
  return std::all_of(processes_.begin(), processes_.end(),
                     [](const Process& process) { return process.ended; });
}

void RankSet::ReadOutput(Output& output) {
  char buffer[64 << 10];
  const ssize_t n = read(output.fd.get(), buffer, sizeof(buffer));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  std::string lines;
  if (n > 0) {
    const absl::string_view bytes(buffer, static_cast<size_t>(n));
    if (output.prefixer.has_value()) {
      output.prefixer->Append(bytes, &lines);
    } else {
      absl::StrAppend(&lines, bytes);
    }
  } else {
    if (output.prefixer.has_value()) output.prefixer->Finish(&lines);
    output.fd.Reset();
  }
  Write(output.to, lines);
}

// Waits for outputs and, if `other_fd` is not negative, for that and the entries of AddPolled;
// passes on the output. Returns the number of open outputs, or -1 with errno.
int RankSet::PollOutputs(int other_fd, int timeout_ms) {
  std::vector<pollfd> polled = {{other_fd, POLLIN, 0}};
  std::vector<Output*> open;
  for (auto& output : outputs_) {
    if (!output->fd.valid() || (other_fd >= 0 && !TakesOutput())) continue;
    polled.push_back({output->fd.get(), POLLIN, 0});
    open.push_back(output.get());
  }
  if (open.empty() && other_fd < 0) return 0;
  if (other_fd >= 0) AddPolled(&polled);
  if (poll(polled.data(), polled.size(), timeout_ms) < 0) return -1;
  for (size_t i = 0; i < open.size(); ++i) {
    if (polled[i + 1].revents != 0) ReadOutput(*open[i]);
  }
  if (other_fd >= 0) HandlePolled(polled.data() + 1 + open.size());
  return static_cast<int>(open.size());
}

// Takes the rest of the pipes after all processes have ended.
void RankSet::DrainOutputs() {
  const absl::Time end = Now() + kDrainTime;
  while (Now() < end && PollOutputs(-1, 50) > 0) {
  }
  for (auto& output : outputs_) {
    std::string lines;
    if (output->prefixer.has_value()) output->prefixer->Finish(&lines);
    Write(output->to, lines);
  }
}

int RankSet::PollTimeoutMs(absl::Time tick) const {
  const absl::Time next = std::min({end_time_, kill_time_, timeout_time_, tick});
  if (next == absl::InfiniteFuture()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(next - Now()) + 1;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 1000000));
}

// Ends the processes that ranks have left in their groups, and those that left the groups.
void RankSet::EndEverything() {
  for (const pid_t group : groups_) kill(-group, SIGKILL);
  for (const pid_t leader : groups_) {
    base::Retry([leader] { return waitpid(leader, nullptr, 0); });
  }
  const std::string children = absl::StrCat("/proc/self/task/", getpid(), "/children");
  for (int round = 0; round < 1000; ++round) {  // what dies may leave children of its own
    std::ifstream file(children);
    bool any = false;
    for (pid_t pid; file >> pid;) {
      if (pid == guard_pid_) continue;
      any = true;
      kill(pid, SIGKILL);
      base::Retry([pid] { return waitpid(pid, nullptr, 0); });
    }
    if (!any) break;
  }
  if (guard_pid_ > 0) {
    const pid_t done = 0;
    if (write(guard_pipe_.get(), &done, sizeof(done)) == sizeof(done)) {
      base::Retry([this] { return waitpid(guard_pid_, nullptr, 0); });
    }
  }
}

int RankSet::FailToStart(const absl::Status& status) {
  Write(2, absl::StrCat(status.message(), "\n"));
  EndEverything();
  return absl::IsNotFound(status) ? kExitNotFound : kExitCannotExecute;
}

int RankSet::Run() {
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const sigset_t handled = HandledSignals();
  sigprocmask(SIG_BLOCK, &handled, nullptr);
  signal_fd_ = wire::UniqueFd(signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signal_fd_.valid()) return FailToStart(absl::ErrnoToStatus(errno, "iris-run: signalfd"));
  if (absl::Status status = StartGuard(); !status.ok()) return FailToStart(status);
  if (absl::Status status = StartAll(); !status.ok()) return FailToStart(status);
  timeout_time_ = Now() + options_.timeout;

  absl::Time tick = absl::InfinitePast();
  while (!Finished()) {
    if (PollOutputs(signal_fd_.get(), PollTimeoutMs(tick)) < 0 && errno != EINTR) {
      return FailToStart(absl::ErrnoToStatus(errno, "iris-run: poll"));
    }
    signalfd_siginfo info;
    while (read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      HandleSignal(static_cast<int>(info.ssi_signo));
    }
    if (Now() >= timeout_time_) {
      timeout_time_ = absl::InfiniteFuture();
      Write(2, absl::StrCat("iris-run: not done after ", absl::FormatDuration(options_.timeout),
                            "; ending all ranks\n"));
      if (exit_code_ == 0) exit_code_ = kExitTimeout;
      BeginEnding();
    }
    if (Now() >= end_time_) EndSurvivors();
    if (Now() >= kill_time_) {
      kill_time_ = absl::InfiniteFuture();
      SignalRunning(SIGKILL);
    }
    tick = Tick(Now());
  }
  EndEverything();
  DrainOutputs();
  return exit_code_;
}

}  // namespace iris::ctl
