#include "server/supervise/child_program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/wire/frame.h"

extern char** environ;

namespace iris::server {
namespace {

constexpr int kFirstKept = 3;  // where sd_listen_fds(3) expects them
constexpr size_t kPidDigits = 10;

// These variables name the manager of this process. The child's manager is this process.
constexpr absl::string_view kOurOwn[] = {
    "LISTEN_PID=",    "LISTEN_FDS=",    "LISTEN_FDNAMES=", "LISTEN_PIDFDID=",
    "NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID=",   "FDSTORE="};

// The parent makes the plan before the fork, during which another thread may be allocating.
struct Plan {
  const char* path;
  char* const* arguments;
  char* const* environment;
  // The child's pid is written here, as digits, unless the pointers are null.
  char* listen_pid;
  char* watchdog_pid;
  const KeptDescriptors::Entry* kept;
  int n_kept;
};

void WriteNumber(pid_t number, char* text) {
  char digits[kPidDigits];
  size_t n = 0;
  for (; number > 0 && n < kPidDigits; number /= 10) {
    digits[n++] = static_cast<char>('0' + number % 10);
  }
  while (n > 0) *text++ = digits[--n];
  *text = '\0';
}

// Runs in the child; makes system calls only. Returns errno if the program could not be executed.
int Execute(const Plan& plan) {
  const pid_t pid = getpid();
  if (plan.listen_pid != nullptr) WriteNumber(pid, plan.listen_pid);
  if (plan.watchdog_pid != nullptr) WriteNumber(pid, plan.watchdog_pid);
  // In ascending order each descriptor moves down, or stays, so none takes the number of a
  // descriptor that has yet to be moved.
  for (int i = 0; i < plan.n_kept; ++i) {
    const int from = plan.kept[i].fd, to = kFirstKept + i;
    if (from == to ? fcntl(from, F_SETFD, 0) != 0 : dup2(from, to) < 0) return errno;
  }
  if (syscall(SYS_close_range, kFirstKept + plan.n_kept, ~0u, 0) != 0) return errno;
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) (void)sigaction(signal, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  (void)sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(plan.path, plan.arguments, plan.environment);
  return errno;
}

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool IsExecutable(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0;
}

}  // namespace

ChildProgram::ChildProgram(ChildProgramOptions options) : options_(std::move(options)) {
  void* const shared =
      mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::bad_alloc();
  execute_error_ = new (shared) volatile int(0);
}

ChildProgram::~ChildProgram() { munmap(const_cast<int*>(execute_error_), sizeof(int)); }

absl::StatusOr<pid_t> ChildProgram::Start(const std::vector<KeptDescriptors::Entry>& kept) {
  std::vector<std::string> arguments = options_.arguments;
  arguments.insert(arguments.begin(), options_.path);

  std::vector<std::string> environment;
  for (char** each = environ; *each != nullptr; ++each) {
    const absl::string_view text = *each;
    if (std::none_of(std::begin(kOurOwn), std::end(kOurOwn),
                     [&](absl::string_view name) { return absl::StartsWith(text, name); })) {
      environment.emplace_back(text);
    }
  }
  environment.push_back(absl::StrCat("NOTIFY_SOCKET=", options_.notify_path));
  environment.push_back(absl::StrCat("FDSTORE=", options_.most_kept));
  constexpr absl::string_view kListenPid = "LISTEN_PID=", kWatchdogPid = "WATCHDOG_PID=";
  size_t listen_pid = 0, watchdog_pid = 0;  // their places; 0: none
  if (!kept.empty()) {
    environment.push_back(absl::StrCat("LISTEN_FDS=", kept.size()));
    std::string names = "LISTEN_FDNAMES=";
    for (const KeptDescriptors::Entry& entry : kept) {
      if (&entry != &kept.front()) names += ':';
      names += entry.name;
    }
    environment.push_back(std::move(names));
    listen_pid = environment.size();
    environment.push_back(absl::StrCat(kListenPid, std::string(kPidDigits, ' ')));
  }
  if (options_.watchdog > absl::ZeroDuration()) {
    environment.push_back(
        absl::StrCat("WATCHDOG_USEC=", absl::ToInt64Microseconds(options_.watchdog)));
    watchdog_pid = environment.size();
    environment.push_back(absl::StrCat(kWatchdogPid, std::string(kPidDigits, ' ')));
  }
  const std::vector<char*> argument_pointers = Pointers(&arguments);
  const std::vector<char*> environment_pointers = Pointers(&environment);

  Plan plan = {};
  plan.path = options_.path.c_str();
  plan.arguments = argument_pointers.data();
  plan.environment = environment_pointers.data();
  if (listen_pid != 0) plan.listen_pid = environment_pointers[listen_pid] + kListenPid.size();
  if (watchdog_pid != 0) {
    plan.watchdog_pid = environment_pointers[watchdog_pid] + kWatchdogPid.size();
  }
  plan.kept = kept.data();
  plan.n_kept = static_cast<int>(kept.size());

  *execute_error_ = 0;
  const pid_t pid = fork();
  if (pid == 0) {
    *execute_error_ = Execute(plan);
    _exit(127);
  }
  if (pid < 0) return wire::ErrnoStatus(errno, "fork");
  return pid;
}

absl::StatusOr<std::string> FindProgram(const std::string& argv0, absl::string_view path) {
  std::vector<std::string> candidates;
  if (absl::StrContains(argv0, '/')) {
    candidates.push_back(argv0);
  } else if (!argv0.empty()) {
    for (const absl::string_view folder : absl::StrSplit(path, ':')) {
      candidates.push_back(absl::StrCat(folder.empty() ? "." : folder, "/", argv0));
    }
  }
  for (const std::string& candidate : candidates) {
    if (!IsExecutable(candidate)) continue;
    std::error_code error;
    const std::string absolute = std::filesystem::absolute(candidate, error).string();
    if (!error) return absolute;
  }
  return absl::NotFoundError(
      absl::StrCat("no program is found under the name by which this one was started (\"", argv0,
                   "\"): start it by its path"));
}

}  // namespace iris::server
