#include "tests/integration/rank_processes.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

extern char** environ;

namespace iris::testing {

std::optional<int> RunScenario(int argc, char** argv,
                               const std::map<std::string, Scenario>& scenarios) {
  if (argc < 3 || std::strcmp(argv[1], "--scenario") != 0) return std::nullopt;
  const auto it = scenarios.find(argv[2]);
  if (it == scenarios.end()) {
    std::fprintf(stderr, "no scenario %s\n", argv[2]);
    return 2;
  }
  // A rank never outlives its test.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  return it->second(std::vector<std::string>(argv + 3, argv + argc));
}

int TestMain(int argc, char** argv, const std::map<std::string, Scenario>& scenarios) {
  if (const auto code = RunScenario(argc, argv, scenarios)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

RankProcesses::RankProcesses(const std::string& scenario, int n_ranks, const Options& options) {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) abort();
  for (int r = 0; r < n_ranks; ++r) {
    std::map<std::string, std::string> environment;
    for (char** e = environ; *e != nullptr; ++e) {
      const char* equals = std::strchr(*e, '=');
      if (equals == nullptr) continue;
      environment[std::string(*e, static_cast<size_t>(equals - *e))] = equals + 1;
    }
    environment["IRIS_RUNTIME_DIR"] = options.runtime_dir;
    environment["IRIS_JOB"] = options.job;
    environment["IRIS_RANK"] = absl::StrCat(r);
    environment["IRIS_N_RANKS"] = absl::StrCat(n_ranks);
    for (const auto& [name, value] : options.environment) environment[name] = value;
    std::vector<std::string> texts;
    for (const auto& [name, value] : environment) {
      if (!value.empty()) texts.push_back(absl::StrCat(name, "=", value));
    }
    std::vector<char*> envp;
    for (std::string& text : texts) envp.push_back(text.data());
    envp.push_back(nullptr);
    std::vector<std::string> words = {self, "--scenario", scenario};
    words.insert(words.end(), options.args.begin(), options.args.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    int in[2], out[2];
    // A socket, not a pipe: a rank that has ended is an error of send, not a SIGPIPE.
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0) abort();
    if (pipe2(out, O_CLOEXEC) != 0) abort();
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      dup2(out[1], 2);
      execve(self, argv.data(), envp.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    RankProcess rank;
    rank.pid = pid;
    rank.in = in[1];
    rank.out = out[0];
    ranks_.push_back(std::move(rank));
  }
}

RankProcesses::~RankProcesses() {
  for (RankProcess& rank : ranks_) {
    if (!rank.exit_code.has_value()) {
      kill(rank.pid, SIGKILL);
      waitpid(rank.pid, nullptr, 0);
    }
    close(rank.in);
    close(rank.out);
  }
}

bool RankProcesses::ReadMore(RankProcess& rank, absl::Duration timeout) {
  struct pollfd p = {rank.out, POLLIN, 0};
  const int ms = static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 0, 1000));
  if (poll(&p, 1, ms) <= 0) return true;
  char buffer[4096];
  const ssize_t n = read(rank.out, buffer, sizeof(buffer));
  if (n > 0) rank.output.append(buffer, static_cast<size_t>(n));
  return n > 0 || (n < 0 && errno == EINTR);
}

std::string RankProcesses::WaitLine(int rank_number, const std::string& text,
                                    absl::Duration timeout) {
  RankProcess& rank = ranks_[static_cast<size_t>(rank_number)];
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    for (size_t end = rank.output.find('\n', rank.scanned); end != std::string::npos;
         end = rank.output.find('\n', rank.scanned)) {
      const std::string line = rank.output.substr(rank.scanned, end - rank.scanned);
      rank.scanned = end + 1;
      if (line.find(text) != std::string::npos) return line;
    }
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration() || !ReadMore(rank, left)) {
      ADD_FAILURE() << "rank " << rank_number << " did not print \"" << text << "\"; it printed:\n"
                    << rank.output;
      return "";
    }
  }
}

void RankProcesses::Tell(int rank, const std::string& line) {
  const std::string text = line + "\n";
  EXPECT_EQ(send(ranks_[static_cast<size_t>(rank)].in, text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()))
      << "rank " << rank << " cannot be told \"" << line << "\": " << std::strerror(errno);
}

void RankProcesses::TellAll(const std::string& line) {
  for (int r = 0; r < n_ranks(); ++r) Tell(r, line);
}

void RankProcesses::Signal(int rank, int signal) { ASSERT_EQ(kill(pid(rank), signal), 0); }

int RankProcesses::Wait(int rank_number, absl::Duration timeout) {
  RankProcess& rank = ranks_[static_cast<size_t>(rank_number)];
  const absl::Time deadline = absl::Now() + timeout;
  bool open = true;
  while (!rank.exit_code.has_value()) {
    // Its output is read on the way, so that a full pipe does not stop it.
    if (open) {
      open = ReadMore(rank, absl::Milliseconds(20));
    } else {
      absl::SleepFor(absl::Milliseconds(5));
    }
    int status = 0;
    if (waitpid(rank.pid, &status, WNOHANG) == rank.pid) {
      rank.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (absl::Now() > deadline) {
      ADD_FAILURE() << "rank " << rank_number << " does not end; it printed:\n" << rank.output;
      return -1;
    }
  }
  while (open && rank.output.size() < (64u << 20)) {
    const size_t before = rank.output.size();
    open = ReadMore(rank, absl::ZeroDuration());
    if (rank.output.size() == before) break;
  }
  return *rank.exit_code;
}

void RankProcesses::ExpectAllSucceed(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (int r = 0; r < n_ranks(); ++r) {
    EXPECT_EQ(Wait(r, std::max(deadline - absl::Now(), absl::Seconds(1))), 0)
        << "rank " << r << " printed:\n"
        << Output(r);
  }
}

}  // namespace iris::testing
