#include "server/tenant/worker_program.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/base/posix.h"
#include "device/base/process.h"
#include "proto/wire/frame.h"
#include "proto/wire/version.h"
#include "server/link/link.h"

namespace iris::server {
namespace {

constexpr char kProgramName[] = "irisd-worker";
constexpr char kPortProgramName[] = "irisd-port";
// Descriptors that a child needs have numbers above those that it assigns.
constexpr int kFirstFreeFd = 10;
// The destructor does not wait for a killed worker that takes longer to end.
constexpr int kEndsWithinMs = 1000;

// Workers get these variables of irisd's environment.
constexpr const char* kKeptVariables[] = {
    "LD_LIBRARY_PATH", "GRPC_VERBOSITY", "GRPC_TRACE", "ASAN_OPTIONS", "UBSAN_OPTIONS",
    "TSAN_OPTIONS", "LSAN_OPTIONS", "TZ",
    // server/port/ucx.cc
    "UCX_LOG_LEVEL", "UCX_TCP_USER_TIMEOUT", "UCX_KEEPALIVE_INTERVAL"};

absl::StatusOr<wire::UniqueFd> OutOfTheWay(wire::UniqueFd fd) {
  wire::UniqueFd moved(fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirstFreeFd));
  if (!moved.valid()) return wire::ErrnoStatus(errno, "duplicate a descriptor for a worker");
  return moved;
}

absl::StatusOr<std::string> FolderOfThisProgram() {
  std::string folder = base::ProgramFolder();
  if (!folder.empty()) return folder;
  return absl::UnavailableError(
      "/proc/self/exe does not say where irisd lies, and so its worker's program: mount /proc");
}

// Opens the first of `paths` that exists, and sets *path to it.
absl::StatusOr<wire::UniqueFd> OpenFirst(const std::vector<std::string>& paths, std::string* path,
                                         absl::string_view starts) {
  std::string tried;
  for (const std::string& each : paths) {
    // Neither the execution of a file nor O_PATH needs the right to read it.
    wire::UniqueFd fd(open(each.c_str(), O_PATH | O_CLOEXEC));
    if (fd.valid() && faccessat(AT_FDCWD, each.c_str(), X_OK, AT_EACCESS) == 0) {
      *path = each;
      return OutOfTheWay(std::move(fd));
    }
    absl::StrAppend(&tried, tried.empty() ? "" : ", ", each, " (", strerror(errno), ")");
  }
  return absl::NotFoundError(absl::StrCat("irisd starts ", starts,
                                          " and cannot execute it: ", tried, "; install it there"));
}

bool HasCapability(int capability) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[capability / 32].effective & (1u << (capability % 32))) != 0;
}

// Returns true if this process's user namespace has `id`: a container may have few users.
bool IsMapped(const char* map_path, uint64_t id) {
  std::ifstream map(map_path);
  if (!map) return true;  // no namespaces, or no /proc: the kernel decides
  uint64_t first = 0, outside = 0, n = 0;
  while (map >> first >> outside >> n) {
    if (id >= first && id - first < n) return true;
  }
  return map.bad();  // if it cannot be read, the kernel decides
}

absl::StatusOr<std::optional<WorkerIds>> FindUser(const std::string& name) {
  if (name.empty() || geteuid() != 0) return std::nullopt;
  constexpr char kStay[] = "set workers.user = \"\" to let workers stay root";
  char buffer[4096];
  struct passwd entry;
  struct passwd* found = nullptr;
  (void)getpwnam_r(name.c_str(), &entry, buffer, sizeof(buffer), &found);
  if (found == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("workers are to run as user \"", name,
                     "\", and this system has none: create it, or name another in workers.user"));
  }
  if (found->pw_uid == 0 || found->pw_gid == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "workers are to run as user \"", name,
        "\", who is root or in root's group: name another in workers.user, or ", kStay));
  }
  if (!HasCapability(CAP_SETUID) || !HasCapability(CAP_SETGID) || !HasCapability(CAP_KILL)) {
    return absl::FailedPreconditionError(
        absl::StrCat("irisd is root and lacks one of CAP_SETUID, CAP_SETGID and CAP_KILL, so it "
                     "cannot make workers run as user \"",
                     name, "\" or end them: start it with these capabilities, or ", kStay));
  }
  if (!IsMapped("/proc/self/uid_map", found->pw_uid) ||
      !IsMapped("/proc/self/gid_map", found->pw_gid)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "irisd's user namespace does not have user \"", name, "\" (", found->pw_uid, ", group ",
        found->pw_gid, "): map these, name another in workers.user, or ", kStay));
  }
  return WorkerIds{found->pw_uid, found->pw_gid};
}

// The parent makes the plan before it starts the child, which may not allocate.
struct ChildPlan {
  int program;
  int null;
  int link;
  char* const* arguments;
  char* const* environment;
};

// Runs in the child of a vfork, which shares the parent's memory while the calling thread waits for
// its exec. Makes system calls only. Returns errno if it could not execute the program.
int ExecuteAsChild(const ChildPlan& plan) {
  if (dup3(plan.null, STDIN_FILENO, 0) < 0 || dup3(plan.null, STDOUT_FILENO, 0) < 0 ||
      dup3(plan.link, kLinkFd, 0) < 0) {
    return errno;
  }
  // All other descriptors are closed at the exec.
  if (syscall(SYS_close_range, kLinkFd + 1, ~0u, CLOSE_RANGE_CLOEXEC) != 0) return errno;
  // The handlers belong to the parent's program. The worker inherits the mask, which is empty.
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) (void)sigaction(signal, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  (void)sigprocmask(SIG_SETMASK, &none, nullptr);
  syscall(SYS_execveat, plan.program, "", plan.arguments, plan.environment, AT_EMPTY_PATH);
  return errno;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

void WaitForEnd(int pidfd) {
  struct pollfd ends = {pidfd, POLLIN, 0};
  (void)base::Retry([&ends] { return poll(&ends, 1, kEndsWithinMs); });
}

// The process of a worker. The pidfd is -1 if it cannot be opened.
class WorkerProcess : public RunningWorker {
 public:
  WorkerProcess(pid_t pid, wire::UniqueFd link)
      : pid_(pid),
        pidfd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))),
        link_(std::move(link)) {}
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess() override {
    if (pid_ < 0) return;
    Kill();
    if (pidfd_.valid()) WaitForEnd(pidfd_.get());
    const int flags = pidfd_.valid() ? WNOHANG : 0;  // no pidfd: the child executed nothing
    (void)base::Retry([this, flags] { return waitpid(pid_, nullptr, flags); });
  }

  pid_t pid() const override { return pid_; }
  int pidfd() const override { return pidfd_.get(); }
  wire::UniqueFd TakeLink() override { return std::move(link_); }
  void Kill() override {
    if (pid_ > 0) (void)kill(pid_, SIGKILL);
  }
  std::optional<std::string> Reap() override {
    if (pid_ < 0) return std::nullopt;
    int status = 0;
    const pid_t reaped = base::Retry([&] { return waitpid(pid_, &status, WNOHANG); });
    if (reaped == 0) return std::nullopt;
    pid_ = -1;
    if (reaped < 0) return std::string("gone");
    if (WIFEXITED(status) && WEXITSTATUS(status) == kOutOfMemoryExit) {
      return std::string("used up its memory (workers.memory)");
    }
    if (WIFEXITED(status)) return absl::StrCat("exited with ", WEXITSTATUS(status));
    const int signal = WTERMSIG(status);
    return absl::StrCat("killed by signal ", signal, " (", strsignal(signal), ")");
  }

 private:
  pid_t pid_;  // -1 once it is reaped
  const wire::UniqueFd pidfd_;
  wire::UniqueFd link_;
};

class AdoptedProcess : public RunningWorker {
 public:
  explicit AdoptedProcess(wire::UniqueFd pidfd) : pidfd_(std::move(pidfd)) {}
  AdoptedProcess(const AdoptedProcess&) = delete;
  AdoptedProcess& operator=(const AdoptedProcess&) = delete;
  ~AdoptedProcess() override {
    Kill();
    WaitForEnd(pidfd_.get());
  }

  pid_t pid() const override { return -1; }
  int pidfd() const override { return pidfd_.get(); }
  wire::UniqueFd TakeLink() override { return {}; }
  void Kill() override { (void)syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0); }
  std::optional<std::string> Reap() override {
    struct pollfd ends = {pidfd_.get(), POLLIN, 0};
    if (poll(&ends, 1, 0) == 1) return "gone";
    return std::nullopt;
  }

 private:
  const wire::UniqueFd pidfd_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RunningWorker>> AdoptWorker(wire::UniqueFd pidfd) {
  if (syscall(SYS_pidfd_send_signal, pidfd.get(), 0, nullptr, 0) != 0 && errno == EBADF) {
    return absl::InvalidArgumentError("a descriptor that was kept as a pidfd is none");
  }
  return std::make_unique<AdoptedProcess>(std::move(pidfd));
}

absl::StatusOr<WorkerProgram> WorkerProgram::Open(const WorkerSettings& settings) {
  WorkerProgram made;
  const absl::StatusOr<std::string> folder = FolderOfThisProgram();
  if (!folder.ok()) return folder.status();
  absl::StatusOr<wire::UniqueFd> program =
      OpenFirst(settings.program.empty()
                    ? std::vector<std::string>{*folder + kProgramName,
                                               *folder + "../libexec/iris/" + kProgramName}
                    : std::vector<std::string>{settings.program},
                &made.path_, absl::StrCat(kProgramName, " for its users"));
  if (!program.ok()) return program.status();
  made.program_ = *std::move(program);
  std::string port_path;
  absl::StatusOr<wire::UniqueFd> port =
      OpenFirst({*folder + kPortProgramName, *folder + "../libexec/iris/" + kPortProgramName},
                &port_path, absl::StrCat(kPortProgramName, " for jobs that span several nodes"));
  made.no_port_ = port.status();
  if (port.ok()) made.port_program_ = *std::move(port);
  wire::UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return wire::ErrnoStatus(errno, "open /dev/null for workers");
  absl::StatusOr<wire::UniqueFd> moved = OutOfTheWay(std::move(null));
  if (!moved.ok()) return moved.status();
  made.null_ = *std::move(moved);
  absl::StatusOr<std::optional<WorkerIds>> ids = FindUser(settings.user);
  if (!ids.ok()) return ids.status();
  made.options_.ids = *ids;
  made.options_.memory_bytes = settings.memory_bytes;
  made.options_.seccomp = settings.seccomp;
  made.options_.json_log = settings.json_log;
  for (const char* name : kKeptVariables) {
    const char* const value = getenv(name);
    if (value != nullptr) made.environment_.push_back(absl::StrCat(name, "=", value));
  }
  return made;
}

absl::Status WorkerProgram::Try(absl::Duration within) const {
  const auto fails = [this](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("irisd's workers cannot run: ", path_, " ", why,
                     ": install the irisd-worker of this irisd (", wire::kIrisVersion, ") there"));
  };
  const Started started = Start("nobody: irisd tries it");
  if (!started.ok()) {
    return fails(absl::StrCat("does not start (", started.status().message(), ")"));
  }
  RunningWorker& worker = **started;
  const wire::UniqueFd link = worker.TakeLink();
  LinkReader reader(LinkSender::kWorker);
  const absl::Time end = absl::Now() + within;
  while (true) {
    const absl::StatusOr<std::optional<LinkMessage>> message = reader.Next();
    if (!message.ok())
      return fails(absl::StrCat("says nonsense (", message.status().message(), ")"));
    if (message->has_value()) {
      if ((*message)->type() != LinkType::kReady) return fails("does not say that it is ready");
      if ((*message)->payload == wire::kIrisVersion) return absl::OkStatus();
      return fails("is of another version");
    }
    const int64_t left_ms = absl::ToInt64Milliseconds(end - absl::Now());
    struct pollfd speaks = {link.get(), POLLIN, 0};
    if (left_ms <= 0 || poll(&speaks, 1, static_cast<int>(left_ms)) == 0) {
      return absl::DeadlineExceededError(absl::StrCat(
          "irisd's worker ", path_, " was not ready within ", absl::FormatDuration(within)));
    }
    if (reader.Receive(link.get()).ok()) continue;
    WaitForEnd(worker.pidfd());
    return fails(absl::StrCat(worker.Reap().value_or("closed its link"), " before it was ready"));
  }
}

WorkerProgram::Started WorkerProgram::Start(absl::string_view tenant) const {
  WorkerOptions options = options_;
  options.tenant = std::string(tenant);
  return StartWith(program_, options);
}

WorkerProgram::Started WorkerProgram::StartClosing() const {
  WorkerOptions options = options_;
  options.tenant = "all";
  options.closing = true;
  return StartWith(program_, options);
}

WorkerProgram::Started WorkerProgram::StartLooking(const LookingLimits& limits) const {
  WorkerOptions options = options_;
  options.tenant = "all";
  options.looking = limits;
  return StartWith(program_, options);
}

WorkerProgram::Started WorkerProgram::StartPort(absl::string_view job,
                                                const CallerInfo& user) const {
  if (!no_port_.ok()) return no_port_;
  WorkerOptions options = options_;
  options.tenant = std::string(job);
  options.port = true;
  options.ids.reset();
  const uid_t uid = user.party.uid;
  if (geteuid() == 0 && uid != 0) options.ids = WorkerIds{uid, user.gid == 0 ? uid : user.gid};
  return StartWith(port_program_, options);
}

WorkerProgram::Started WorkerProgram::StartWith(const wire::UniqueFd& program,
                                                const WorkerOptions& options) const {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return wire::ErrnoStatus(errno, "make the link to a worker");
  }
  wire::UniqueFd link(pair[0]);
  const absl::StatusOr<wire::UniqueFd> theirs = OutOfTheWay(wire::UniqueFd(pair[1]));
  if (!theirs.ok()) return theirs.status();

  std::vector<std::string> arguments = ToArguments(options);
  arguments.insert(arguments.begin(), &program == &program_ ? kProgramName : kPortProgramName);
  const std::vector<char*> argument_pointers = Pointers(arguments);
  const std::vector<char*> environment_pointers = Pointers(environment_);
  const ChildPlan plan = {program.get(), null_.get(), theirs->get(), argument_pointers.data(),
                          environment_pointers.data()};

  // No signal handler may run in the child, which shares the parent's memory.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  volatile int error = 0;
  const pid_t pid = vfork();
  if (pid == 0) {
    error = ExecuteAsChild(plan);
    _exit(127);
  }
  const int fork_error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return wire::ErrnoStatus(fork_error, "start a worker");
  // Only this process reaps the worker, so the pid is the worker's until then.
  auto made = std::make_unique<WorkerProcess>(pid, std::move(link));
  if (error != 0) return wire::ErrnoStatus(error, absl::StrCat("start a worker: execute ", path_));
  if (made->pidfd() < 0) return wire::ErrnoStatus(errno, "open the pidfd of a worker");
  return made;
}

}  // namespace iris::server
