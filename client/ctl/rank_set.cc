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
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "device/base/posix.h"

extern char** environ;

namespace iris::ctl {
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

absl::Status Failed(const char* what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("iris-run: ", what));
}

absl::Status MakePipe(wire::UniqueFd* read_end, wire::UniqueFd* write_end) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return Failed("pipe: raise the limit of open files (ulimit -n)");
  *read_end = wire::UniqueFd(fds[0]);
  *write_end = wire::UniqueFd(fds[1]);
  return absl::OkStatus();
}

std::string Prefix(int rank, int n_ranks, bool colour) {
  const int width = static_cast<int>(absl::StrCat(n_ranks - 1).size());
  const std::string plain = absl::StrFormat("[%*d]", width, rank);
  if (!colour) return plain + " ";
  constexpr int kColours[] = {36, 32, 33, 35, 34, 31, 96, 92, 93, 95, 94, 91};
  return absl::StrFormat("\033[%dm%s\033[0m ", kColours[rank % std::size(kColours)], plain);
}

// What one rank sees on top of iris-run's own environment.
std::vector<std::string> RankEnvironment(const RunOptions& options, int rank) {
  std::vector<std::string> ours = {
      absl::StrCat("IRIS_RANK=", rank), absl::StrCat("IRIS_N_RANKS=", options.n_ranks),
      absl::StrCat("IRIS_LOCAL_RANK=", rank), absl::StrCat("IRIS_JOB=", options.job)};
  if (!options.runtime_dir.empty()) {
    ours.push_back(absl::StrCat("IRIS_RUNTIME_DIR=", options.runtime_dir));
  }
  std::vector<std::string> result = ours;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const absl::string_view text = *variable;
    const absl::string_view name = text.substr(0, text.find('=') + 1);
    const bool replaced = std::any_of(ours.begin(), ours.end(), [&](const std::string& own) {
      return absl::string_view(own).substr(0, name.size()) == name;
    });
    if (!replaced) result.emplace_back(text);
  }
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string DescribeWaitStatus(int code, int status) {
  if (code == CLD_EXITED) return absl::StrCat("exited with code ", status);
  const char* text = sigdescr_np(status);
  return absl::StrCat("was ended by ", SignalName(status), text == nullptr ? "" : " (",
                      text == nullptr ? "" : text, text == nullptr ? "" : ")",
                      code == CLD_DUMPED ? ", core dumped" : "");
}

RankSet::RankSet(RunOptions options) : options_(std::move(options)) {}

RankSet::~RankSet() = default;

// Written line by line and whole: a reader that is gone ends the run, as it would for one process.
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

// A process that outlives a killed iris-run for a moment: it ends every rank's process group, then
// itself.
absl::Status RankSet::StartGuard() {
  wire::UniqueFd read_end;
  if (absl::Status status = MakePipe(&read_end, &guard_pipe_); !status.ok()) return status;
  guard_pid_ = fork();
  if (guard_pid_ < 0) return Failed("fork");
  if (guard_pid_ > 0) return absl::OkStatus();
  setsid();
  guard_pipe_.Reset();
  if (dup2(read_end.get(), 0) != 0) _exit(1);
  closefrom(1);
  std::vector<pid_t> groups;
  pid_t group = 0;
  for (;;) {
    const ssize_t n = read(0, &group, sizeof(group));
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof(group)) break;  // iris-run is gone
    if (group == 0) _exit(0);       // iris-run has ended all by itself
    groups.push_back(group);
  }
  for (const pid_t each : groups) kill(-each, SIGKILL);
  _exit(0);
}

absl::Status RankSet::Start(int rank) {
  std::vector<std::string> environment = RankEnvironment(options_, rank);
  std::vector<std::string> command = options_.command;
  const std::vector<char*> argv = Pointers(command);
  std::vector<char*> envp = Pointers(environment);

  wire::UniqueFd error_read, error_write, out_read, out_write, err_read, err_write;
  if (absl::Status status = MakePipe(&error_read, &error_write); !status.ok()) return status;
  if (options_.prefix) {
    if (absl::Status status = MakePipe(&out_read, &out_write); !status.ok()) return status;
    if (absl::Status status = MakePipe(&err_read, &err_write); !status.ok()) return status;
  }

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Failed("fork");
  if (pid == 0) {
    // Until exec only what is safe after fork. The guard hears of the group before the program can
    // start anything.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const pid_t self = getpid();
    if (write(guard_pipe_.get(), &self, sizeof(self)) != sizeof(self)) _exit(1);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) dup2(null, 0);
    if (options_.prefix) {
      dup2(out_write.get(), 1);
      dup2(err_write.get(), 2);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGPIPE, SIG_DFL);
    environ = envp.data();
    execvp(argv[0], argv.data());
    const int error = errno;
    if (write(error_write.get(), &error, sizeof(error)) < 0) _exit(1);
    _exit(kExitNotFound);
  }
  setpgid(pid, pid);  // whoever is first
  processes_.push_back({rank, pid, false});
  error_write.Reset();
  int error = 0;
  const ssize_t n = base::Retry([&] { return read(error_read.get(), &error, sizeof(error)); });
  if (n == sizeof(error)) {
    errno = error;
    return absl::ErrnoToStatus(error, absl::StrCat("iris-run: cannot execute ", command[0]));
  }
  if (options_.prefix) {
    for (const auto& [fd, to] : {std::pair(&out_read, 1), std::pair(&err_read, 2)}) {
      const bool colour = to == 1 ? options_.colour_stdout : options_.colour_stderr;
      fcntl(fd->get(), F_SETFL, O_NONBLOCK);
      outputs_.push_back(std::make_unique<Output>(
          Output{std::move(*fd), to, LinePrefixer(Prefix(rank, options_.n_ranks, colour))}));
    }
  }
  return absl::OkStatus();
}

void RankSet::SignalRunning(int signal) {
  for (const Process& process : processes_) {
    if (!process.ended) kill(-process.pid, signal);
  }
}

void RankSet::BeginEnding() {
  if (ending_) return;
  ending_ = true;
  kill_time_ = absl::Now() + options_.grace;
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

// Looks which ranks have ended, without letting go of their pids.
void RankSet::ReapEnded() {
  for (Process& process : processes_) {
    if (process.ended) continue;
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0) {
      continue;
    }
    process.ended = true;
    const bool failed = info.si_code != CLD_EXITED || info.si_status != 0;
    if (!failed || exit_code_ != 0) continue;  // what follows the first failure is its consequence
    exit_code_ = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
    const auto others = std::count_if(processes_.begin(), processes_.end(),
                                      [](const Process& each) { return !each.ended; });
    Write(2,
          absl::StrCat("iris-run: rank ", process.rank, " of ", options_.n_ranks, " (pid ",
                       process.pid, ") ", DescribeWaitStatus(info.si_code, info.si_status),
                       others > 0 && !stopping_ ? absl::StrCat("; ending the other ", others) : "",
                       "\n"));
    if (!stopping_) {
      BeginEnding();
    } else if (!ending_) {  // the others have been asked already
      ending_ = true;
      kill_time_ = absl::Now() + options_.grace;
    }
  }
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
    output.prefixer.Append(absl::string_view(buffer, static_cast<size_t>(n)), &lines);
  } else {
    output.prefixer.Finish(&lines);
    output.fd.Reset();
  }
  Write(output.to, lines);
}

// All processes are gone: takes what is still in the pipes.
void RankSet::DrainOutputs() {
  const absl::Time end = absl::Now() + kDrainTime;
  while (absl::Now() < end) {
    std::vector<pollfd> polled;
    std::vector<Output*> open;
    for (auto& output : outputs_) {
      if (!output->fd.valid()) continue;
      polled.push_back({output->fd.get(), POLLIN, 0});
      open.push_back(output.get());
    }
    if (open.empty() || poll(polled.data(), polled.size(), 50) < 0) break;
    for (size_t i = 0; i < open.size(); ++i) {
      if (polled[i].revents != 0) ReadOutput(*open[i]);
    }
  }
  for (auto& output : outputs_) {
    std::string lines;
    output->prefixer.Finish(&lines);
    Write(output->to, lines);
  }
}

int RankSet::PollTimeoutMs() const {
  const absl::Time next = std::min(kill_time_, timeout_time_);
  if (next == absl::InfiniteFuture()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(next - absl::Now()) + 1;
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 1000000));
}

// What ranks left behind in their groups, and what left the groups, ends here.
void RankSet::EndEverything() {
  for (const Process& process : processes_) kill(-process.pid, SIGKILL);
  for (const Process& process : processes_) {
    base::Retry([&process] { return waitpid(process.pid, nullptr, 0); });
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
  if (!signal_fd_.valid()) return FailToStart(Failed("signalfd"));
  if (absl::Status status = StartGuard(); !status.ok()) return FailToStart(status);
  for (int rank = 0; rank < options_.n_ranks; ++rank) {
    if (absl::Status status = Start(rank); !status.ok()) return FailToStart(status);
  }
  timeout_time_ = absl::Now() + options_.timeout;

  while (!AllEnded()) {
    std::vector<pollfd> polled = {{signal_fd_.get(), POLLIN, 0}};
    std::vector<Output*> open;
    for (auto& output : outputs_) {
      if (!output->fd.valid()) continue;
      polled.push_back({output->fd.get(), POLLIN, 0});
      open.push_back(output.get());
    }
    if (poll(polled.data(), polled.size(), PollTimeoutMs()) < 0 && errno != EINTR) {
      return FailToStart(Failed("poll"));
    }
    for (size_t i = 0; i < open.size(); ++i) {
      if (polled[i + 1].revents != 0) ReadOutput(*open[i]);
    }
    signalfd_siginfo info;
    while (read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)) {
      HandleSignal(static_cast<int>(info.ssi_signo));
    }
    if (absl::Now() >= timeout_time_) {
      timeout_time_ = absl::InfiniteFuture();
      Write(2, absl::StrCat("iris-run: not done after ", absl::FormatDuration(options_.timeout),
                            "; ending all ranks\n"));
      if (exit_code_ == 0) exit_code_ = kExitTimeout;
      BeginEnding();
    }
    if (absl::Now() >= kill_time_) {
      kill_time_ = absl::InfiniteFuture();
      SignalRunning(SIGKILL);
    }
  }
  EndEverything();
  DrainOutputs();
  return exit_code_;
}

}  // namespace iris::ctl
