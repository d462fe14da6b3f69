#include "server/supervise/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "device/base/posix.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"
#include "server/job/clock.h"
#include "server/supervise/child_program.h"
#include "server/supervise/keeping.h"
#include "server/supervise/notify_socket.h"

namespace iris::server {
namespace {

// Descriptors that this process needs besides those that it keeps: its own, and those of a message.
constexpr uint64_t kReservedDescriptors = 64;
// With their names, this many descriptors fit into one string of the environment.
constexpr uint64_t kMostKept = 10'000;

// Messages that are read before signals and deadlines are checked.
constexpr int kMessagesAtOnce = 1000;
// More than the kernel queues for a socket. Later messages are not from the dead program.
constexpr int kMessagesOfTheDead = 100'000;

constexpr absl::Duration kFirstWait = absl::Milliseconds(100);
constexpr absl::Duration kLongestWait = absl::Seconds(5);
// The supervisor does not wait for a killed program that takes longer to end.
constexpr absl::Duration kKilledEndsWithin = absl::Seconds(10);
// A deadline that is noticed this late passed while nothing ran, perhaps not even the program.
constexpr absl::Duration kLate = absl::Seconds(1);

constexpr int kTaken[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

struct End {
  bool Exited(int code) const { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
  std::string Text() const {
    if (!cannot_start.empty()) return cannot_start;
    if (WIFEXITED(status)) return absl::StrCat("exit code ", WEXITSTATUS(status));
    return absl::StrCat("signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")");
  }

  int status = 0;            // as waitpid returns it
  std::string cannot_start;  // why the program was not executed; empty if it was
};

class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, const Logger& logger)
      : options_(options), logger_(logger), kept_(options.most_kept) {}

  int Run();

 private:
  absl::Status Prepare();
  // The following functions return the exit code of this process, if it must end.
  std::optional<int> Start();
  std::optional<int> WaitOnce();
  void ReadSignals();
  void Forward(int signal);
  void ReadMessages(int most);
  void Take(NotifyDatagram* datagram);
  void Keep(const NotifyMessage& message, std::vector<wire::UniqueFd>* fds);
  std::optional<int> ReapChildren();
  std::optional<int> Ended(const End& end);
  std::optional<int> LookAtDeadline();
  void RestoreSocket();
  void Kill(const char* why);
  // Logs `text` once for each start of the program.
  void WarnOnce(bool* told, const char* text, std::initializer_list<LogField> fields) const;
  bool Runs() const { return child_ > 0; }

  const SupervisorOptions& options_;
  const Logger& logger_;
  KeptDescriptors kept_;
  std::unique_ptr<NotifySocket> socket_;
  std::unique_ptr<ChildProgram> program_;
  wire::UniqueFd signals_;
  NotifyDatagram datagram_;

  bool was_ready_ = false;  // since the supervisor's start
  bool asked_to_end_ = false;
  int n_failures_ = 0;  // starts in a row that did not become ready

  // State of the program that runs, or ran last.
  pid_t child_ = 0;  // 0: none runs
  absl::Time started_;
  bool ready_ = false;
  bool stopping_ = false;
  bool killed_ = false;
  bool reload_when_ready_ = false;
  struct {
    bool full = false, name = false, cut = false, foreign = false;
  } told_;
  // The deadline for the program to report ready, to give a sign of life, or to end; the time of
  // the next start if none runs.
  absl::Time deadline_ = absl::InfiniteFuture();
};

absl::Status Supervisor::Prepare() {
  // Opens these, so that descriptors that are kept lie above them.
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) {
      return wire::ErrnoStatus(errno, "open /dev/null");
    }
  }
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : kTaken) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGCHLD, SIG_DFL);  // if it is ignored, waitid does not return how children end
  // Port processes outlive the irisd that started them, and this process reaps them then.
  (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  signals_.Reset(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return wire::ErrnoStatus(errno, "make a signalfd");
  // Grows the kernel's table of descriptors now. Later, while the thread that writes the log
  // exists, each growth would take milliseconds.
  wire::UniqueFd(fcntl(signals_.get(), F_DUPFD_CLOEXEC, static_cast<int>(kept_.most())));

  absl::StatusOr<std::unique_ptr<NotifySocket>> socket = NotifySocket::Open(options_.runtime_dir);
  if (!socket.ok()) return socket.status();
  socket_ = *std::move(socket);
  ChildProgramOptions program;
  program.path = options_.program;
  program.arguments = options_.arguments;
  program.notify_path = socket_->path();
  program.most_kept = kept_.most();
  program.watchdog = options_.watchdog;
  program_ = std::make_unique<ChildProgram>(std::move(program));
  return absl::OkStatus();
}

int Supervisor::Run() {
  const absl::Status prepared = Prepare();
  if (!prepared.ok()) {
    logger_.Error("irisd cannot be supervised", {{"error", prepared.ToString()}});
    logger_.Plain(absl::StrCat("irisd: ", prepared.message()));
    return 1;
  }
  logger_.Info("irisd is supervised", {{"pid", getpid()},
                                       {"program", options_.program},
                                       {"most_kept", kept_.most()},
                                       {"watchdog", absl::FormatDuration(options_.watchdog)}});
  std::optional<int> code = Start();
  while (!code.has_value()) code = WaitOnce();
  return *code;
}

std::optional<int> Supervisor::Start() {
  RestoreSocket();
  started_ = SteadyNow();
  ready_ = stopping_ = killed_ = reload_when_ready_ = false;
  told_ = {};
  const absl::StatusOr<pid_t> child = program_->Start(kept_.Sorted());
  if (!child.ok()) {
    End end;
    end.cannot_start = std::string(child.status().message());
    return Ended(end);
  }
  child_ = *child;
  deadline_ = started_ + options_.start_within;
  return std::nullopt;
}

std::optional<int> Supervisor::WaitOnce() {
  int timeout_ms = -1;
  if (deadline_ != absl::InfiniteFuture()) {
    const absl::Duration left =
        std::clamp(deadline_ - SteadyNow(), absl::ZeroDuration(), absl::Hours(1));
    timeout_ms =
        static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
  }
  struct pollfd sources[] = {{signals_.get(), POLLIN, 0}, {socket_->fd(), POLLIN, 0}};
  (void)poll(sources, 2, timeout_ms);
  if (sources[0].revents != 0) {
    ReadSignals();
    if (const std::optional<int> code = ReapChildren()) return code;
  }
  ReadMessages(kMessagesAtOnce);
  return LookAtDeadline();
}

void Supervisor::ReadSignals() {
  struct signalfd_siginfo infos[8];
  while (true) {
    const ssize_t n = base::Retry([&] { return read(signals_.get(), infos, sizeof(infos)); });
    if (n <= 0) return;
    for (size_t i = 0; i < static_cast<size_t>(n) / sizeof(infos[0]); ++i) {
      const int signal = static_cast<int>(infos[i].ssi_signo);
      if (signal != SIGCHLD) Forward(signal);
    }
  }
}

void Supervisor::Forward(int signal) {
  if (signal == SIGTERM || signal == SIGINT) {
    if (!asked_to_end_) {
      deadline_ = SteadyNow() + (killed_ ? kKilledEndsWithin : options_.stop_within);
    }
    asked_to_end_ = true;
  }
  if (!Runs()) {
    deadline_ = SteadyNow();  // the wait is over
    return;
  }
  // The default action of SIGHUP would end a program that does not handle it yet.
  if (signal == SIGHUP && !ready_) {
    reload_when_ready_ = true;
    return;
  }
  // For irisd SIGTERM means that another irisd continues: service managers restart it that way.
  (void)kill(child_, signal == SIGTERM ? SIGINT : signal == SIGUSR1 ? SIGTERM : signal);
}

void Supervisor::ReadMessages(int most) {
  for (int i = 0; i < most && socket_->Receive(&datagram_); ++i) {
    Take(&datagram_);
    datagram_.fds.clear();
  }
}

void Supervisor::Take(NotifyDatagram* datagram) {
  if (!Runs() || datagram->sender != child_) {
    WarnOnce(&told_.foreign, "a message for the supervisor is not irisd's, and is ignored",
             {{"sender", datagram->sender}});
    return;
  }
  const NotifyMessage message = ParseNotifyMessage(datagram->text);
  if (!datagram->whole) {
    WarnOnce(&told_.cut, "a message of irisd's does not fit, and is refused",
             {{"name", std::string(message.name.substr(0, 2 * kMaxKeptNameBytes))},
              {"kept", kept_.size()}});
    return;
  }
  if (message.remove || message.store) Keep(message, &datagram->fds);
  if (message.ready) {
    ready_ = was_ready_ = true;
    n_failures_ = 0;
    if (std::exchange(reload_when_ready_, false)) (void)kill(child_, SIGHUP);
  }
  if (asked_to_end_ || killed_) return;  // the deadline is for its end
  if (message.stopping && !stopping_) {
    stopping_ = true;
    deadline_ = SteadyNow() + options_.stop_within;
  }
  if (ready_ && !stopping_ && (message.ready || message.alive)) {
    deadline_ = options_.watchdog > absl::ZeroDuration() ? SteadyNow() + options_.watchdog
                                                         : absl::InfiniteFuture();
  }
}

void Supervisor::Keep(const NotifyMessage& message, std::vector<wire::UniqueFd>* fds) {
  if (!IsKeptName(message.name)) {
    WarnOnce(&told_.name, "irisd's name for descriptors is not one, and these are refused",
             {{"name", std::string(message.name.substr(0, 2 * kMaxKeptNameBytes))}});
    return;
  }
  if (message.remove) kept_.Remove(message.name);
  if (message.store && !kept_.Store(message.name, fds)) {
    WarnOnce(&told_.full, "more descriptors than can be kept for irisd are refused",
             {{"kept", kept_.size()}, {"most_kept", kept_.most()}});
  }
}

std::optional<int> Supervisor::ReapChildren() {
  while (true) {
    siginfo_t info = {};
    // A child is reaped after its messages are read: until then no other process can have its pid.
    if (base::Retry([&] { return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT); }) != 0 ||
        info.si_pid == 0) {
      return std::nullopt;
    }
    const bool is_child = info.si_pid == child_;
    if (is_child) ReadMessages(kMessagesOfTheDead);
    End end;
    (void)base::Retry([&] { return waitpid(info.si_pid, &end.status, WNOHANG); });
    if (!is_child) continue;  // an orphan
    if (const int error = program_->execute_error(); error != 0) {
      end.cannot_start = absl::StrCat("cannot be executed: ", strerror(error));
    }
    if (const std::optional<int> code = Ended(end)) return code;
  }
}

std::optional<int> Supervisor::Ended(const End& end) {
  const pid_t pid = std::exchange(child_, 0);
  const std::string how = end.Text();
  const absl::Duration ran = SteadyNow() - started_;
  const int64_t ran_ms = absl::ToInt64Milliseconds(ran);
  if (asked_to_end_) {
    logger_.Info("irisd has ended as asked, and so does its supervisor",
                 {{"pid", pid}, {"end", how}, {"kept", kept_.size()}});
    if (WIFEXITED(end.status)) return !end.cannot_start.empty() ? 1 : WEXITSTATUS(end.status);
    const int signal = WTERMSIG(end.status);
    return signal == SIGTERM || signal == SIGINT ? 0 : 1;
  }
  const bool exited = end.cannot_start.empty() && WIFEXITED(end.status);
  const int code = exited ? WEXITSTATUS(end.status) : 1;
  // A program that a signal ended is started again, even if it was never ready.
  const bool could_not_run = !was_ready_ && (!end.cannot_start.empty() || end.Exited(1));
  if ((exited && (code == 0 || code == 2)) || could_not_run) {
    logger_.Log(code == 0 ? LogLevel::kInfo : LogLevel::kError,
                "irisd has ended and is not started again; what was kept for it is given up",
                {{"pid", pid}, {"end", how}, {"kept", kept_.size()}, {"ran_ms", ran_ms}});
    return code;
  }
  absl::Duration wait = absl::ZeroDuration();
  if (!ready_) {
    wait = std::min(kFirstWait * (1 << std::min(n_failures_, 10)), kLongestWait);
    ++n_failures_;
  }
  const bool hands_over = exited && code == EX_TEMPFAIL;
  logger_.Log(
      hands_over && ready_ ? LogLevel::kInfo : LogLevel::kWarn,
      hands_over ? "irisd hands over to the next irisd" : "irisd has ended, and is started again",
      {{"pid", pid},
       {"end", how},
       {"kept", kept_.size()},
       {"ran_ms", ran_ms},
       {"ready", ready_ ? "yes" : "no"},
       {"wait_ms", absl::ToInt64Milliseconds(wait)}});
  if (wait == absl::ZeroDuration()) return Start();
  deadline_ = SteadyNow() + wait;
  return std::nullopt;
}

std::optional<int> Supervisor::LookAtDeadline() {
  if (SteadyNow() < deadline_) return std::nullopt;
  if (!Runs()) {
    if (!asked_to_end_) return Start();
    logger_.Info("no irisd runs, and its supervisor ends as asked", {{"kept", kept_.size()}});
    return 0;
  }
  if (killed_) {
    if (!asked_to_end_) {
      deadline_ = absl::InfiniteFuture();
      return std::nullopt;
    }
    logger_.Error("irisd does not end although it is killed; its supervisor ends",
                  {{"pid", child_}, {"kept", kept_.size()}});
    return 1;
  }
  if (asked_to_end_ || stopping_) {
    Kill("irisd does not end, and is killed");
    return std::nullopt;
  }
  if (!ready_) {
    Kill("irisd is not ready in time, and is killed");
    return std::nullopt;
  }
  if (SteadyNow() - deadline_ > kLate || !socket_->IsInPlace()) {
    // The program may have sent a message, or had no chance to.
    RestoreSocket();
    deadline_ = SteadyNow() + options_.watchdog;
    return std::nullopt;
  }
  const absl::Time looked_at = deadline_;
  ReadMessages(kMessagesAtOnce);
  if (deadline_ == looked_at) Kill("irisd gives no sign of life, and is killed");
  return std::nullopt;
}

void Supervisor::RestoreSocket() {
  if (socket_->IsInPlace()) return;
  ReadMessages(kMessagesOfTheDead);
  const absl::Status opened = socket_->OpenAgain();
  if (opened.ok()) {
    logger_.Warn(
        "somebody removed the socket by which irisd speaks to its supervisor; there is a "
        "new one",
        {{"socket", socket_->path()}});
  } else {
    logger_.Error("irisd cannot speak to its supervisor, because somebody removed the socket",
                  {{"socket", socket_->path()}, {"error", opened.ToString()}});
  }
}

void Supervisor::Kill(const char* why) {
  logger_.Error(why, {{"pid", child_},
                      {"kept", kept_.size()},
                      {"ran_ms", absl::ToInt64Milliseconds(SteadyNow() - started_)}});
  (void)kill(child_, SIGKILL);
  killed_ = true;
  deadline_ = SteadyNow() + kKilledEndsWithin;
}

void Supervisor::WarnOnce(bool* told, const char* text,
                          std::initializer_list<LogField> fields) const {
  if (!std::exchange(*told, true)) logger_.Warn(text, fields);
}

}  // namespace

size_t MostKept(uint64_t fd_limit) {
  if (fd_limit <= kReservedDescriptors) return 0;
  return static_cast<size_t>(std::min(fd_limit - kReservedDescriptors, kMostKept));
}

int Supervise(const SupervisorOptions& options, const Logger& logger) {
  return Supervisor(options, logger).Run();
}

}  // namespace iris::server
