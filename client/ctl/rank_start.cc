// The part of RankSet that starts the guard and the ranks.
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/cpu_binding.h"
#include "client/ctl/rank_set.h"
#include "device/base/posix.h"

extern char** environ;

namespace iris::ctl {
namespace {

absl::Status Failed(const char* what) {
  return absl::ErrnoToStatus(errno, absl::StrCat("iris-run: ", what));
}

std::string Prefix(int rank, int n_ranks, bool colour) {
  const int width = static_cast<int>(absl::StrCat(n_ranks - 1).size());
  const std::string plain = absl::StrFormat("[%*d]", width, rank);
  if (!colour) return plain + " ";
  constexpr int kColours[] = {36, 32, 33, 35, 34, 31, 96, 92, 93, 95, 94, 91};
  return absl::StrFormat("\033[%dm%s\033[0m ", kColours[rank % std::size(kColours)], plain);
}

// Makes the set of CPUs of one rank before fork: the child must not allocate.
std::vector<cpu_set_t> CpuSet(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  std::vector<cpu_set_t> set(static_cast<size_t>(cpus.back()) / CPU_SETSIZE + 1);
  const size_t bytes = set.size() * sizeof(cpu_set_t);
  CPU_ZERO_S(bytes, set.data());
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set.data());
  return set;
}

absl::Status CannotExecute(const std::string& program, int error) {
  std::string text = absl::StrCat("iris-run: cannot execute ", program);
  if (error == ENOENT && program.find('/') == std::string::npos) {
    absl::StrAppend(&text, ": no folder of PATH has it",
                    access(program.c_str(), F_OK) == 0
                        ? absl::StrCat("; for the one in this folder, write ./", program)
                        : "");
    return absl::NotFoundError(text);
  }
  return absl::ErrnoToStatus(error, text);
}

// Returns iris-run's own environment with the variables of the rank; the last of several wins.
std::vector<std::string> RankEnvironment(const RunOptions& options, int rank) {
  std::vector<std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) variables.emplace_back(*each);
  variables.insert(variables.end(), options.environment.begin(), options.environment.end());
  variables.insert(variables.end(), {absl::StrCat("IRIS_RANK=", rank),
                                     absl::StrCat("IRIS_N_RANKS=", options.n_ranks),
                                     absl::StrCat("IRIS_LOCAL_RANK=", rank - options.first_rank),
                                     absl::StrCat("IRIS_JOB=", options.job)});
  if (!options.runtime_dir.empty()) {
    variables.push_back(absl::StrCat("IRIS_RUNTIME_DIR=", options.runtime_dir));
  }
  std::map<std::string, std::string> by_name;
  for (const std::string& each : variables) by_name[each.substr(0, each.find('='))] = each;
  variables.clear();
  for (auto& [name, variable] : by_name) variables.push_back(std::move(variable));
  return variables;
}

// The message of a child that could not execute its program.
struct StartError {
  bool binding = false;  // it could not be bound to its CPUs
  int error = 0;
};

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

absl::Status MakePipe(wire::UniqueFd* read_end, wire::UniqueFd* write_end) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return Failed("pipe: raise the limit of open files (ulimit -n)");
  *read_end = wire::UniqueFd(fds[0]);
  *write_end = wire::UniqueFd(fds[1]);
  return absl::OkStatus();
}

absl::StatusOr<std::string> BindCores(bool verbose, RunOptions* options) {
  const absl::StatusOr<std::vector<Core>> cores = AllowedCores();
  if (!cores.ok()) {
    return absl::Status(cores.status().code(), absl::StrCat("--bind: ", cores.status().message()));
  }
  options->cpus = SpreadCores(*cores, options->n_local);
  std::string text;
  if (cores->size() < static_cast<size_t>(options->n_local)) {
    absl::StrAppend(&text, "iris-run: --bind cores: ", options->n_local, " ranks share ",
                    cores->size(), " core", cores->size() == 1 ? "" : "s", "\n");
  }
  for (int local = 0; verbose && local < options->n_local; ++local) {
    absl::StrAppend(&text, "iris-run: rank ", options->first_rank + local, " is bound to CPUs ",
                    CpuList(options->cpus[static_cast<size_t>(local)]), "\n");
  }
  return text;
}

// The guard outlives a killed iris-run for a moment: it ends all ranks' process groups, then exits.
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

absl::Status RankSet::StartAll() {
  for (int i = 0; i < options_.n_local; ++i) {
    if (absl::Status status = Start(options_.first_rank + i); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<pid_t> RankSet::Spawn(const Child& child) {
  std::vector<std::string> environment = child.environment;
  std::vector<std::string> command = child.command;
  const std::vector<char*> argv = Pointers(command);
  std::vector<char*> envp = Pointers(environment);
  const std::vector<cpu_set_t> cpus = CpuSet(child.cpus);
  wire::UniqueFd error_read, error_write;
  if (absl::Status status = MakePipe(&error_read, &error_write); !status.ok()) return status;

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return Failed("fork");
  if (pid == 0) {
    // Until exec the child does only what is safe after fork. The guard learns the group before the
    // program can start anything.
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const pid_t self = getpid();
    if (write(guard_pipe_.get(), &self, sizeof(self)) != sizeof(self)) _exit(1);
    const int input = child.input >= 0 ? child.input : open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (input >= 0) dup2(input, 0);
    if (child.output >= 0) dup2(child.output, 1);
    if (child.error >= 0) dup2(child.error, 2);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGPIPE, SIG_DFL);
    if (!environment.empty()) environ = envp.data();
    StartError failed = {/*binding=*/true, 0};
    if (cpus.empty() || sched_setaffinity(0, cpus.size() * sizeof(cpu_set_t), cpus.data()) == 0) {
      failed.binding = false;
      execvp(argv[0], argv.data());
    }
    failed.error = errno;
    if (write(error_write.get(), &failed, sizeof(failed)) < 0) _exit(1);
    _exit(kExitNotFound);
  }
  setpgid(pid, pid);  // the child does so, too
  groups_.push_back(pid);
  error_write.Reset();
  StartError failed = {};
  const ssize_t n = base::Retry([&] { return read(error_read.get(), &failed, sizeof(failed)); });
  if (n != sizeof(failed)) return pid;
  if (!failed.binding) return CannotExecute(command[0], failed.error);
  errno = failed.error;
  return Failed("--bind: a CPU of this rank may no longer be used (sched_setaffinity)");
}

absl::Status RankSet::Start(int rank) {
  Child child = {.command = options_.command, .environment = RankEnvironment(options_, rank)};
  if (!options_.cpus.empty()) {
    child.cpus = options_.cpus[static_cast<size_t>(rank - options_.first_rank)];
  }
  wire::UniqueFd out_read, out_write, err_read, err_write;
  if (options_.capture) {
    if (absl::Status status = MakePipe(&out_read, &out_write); !status.ok()) return status;
    if (absl::Status status = MakePipe(&err_read, &err_write); !status.ok()) return status;
    child.output = out_write.get();
    child.error = err_write.get();
  }
  const absl::StatusOr<pid_t> pid = Spawn(child);
  if (!pid.ok()) return pid.status();
  processes_.push_back({rank, *pid, false, ""});
  if (!options_.capture) return absl::OkStatus();
  for (const auto& [fd, to] : {std::pair(&out_read, 1), std::pair(&err_read, 2)}) {
    const bool colour = to == 1 ? options_.colour_stdout : options_.colour_stderr;
    fcntl(fd->get(), F_SETFL, O_NONBLOCK);
    outputs_.push_back(std::make_unique<Output>(Output{std::move(*fd), to, {}}));
    if (options_.prefix) {
      outputs_.back()->prefixer.emplace(Prefix(rank, options_.n_ranks, colour));
    }
  }
  return absl::OkStatus();
}

}  // namespace iris::ctl
