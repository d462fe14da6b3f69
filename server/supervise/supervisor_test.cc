// Tests the supervisor as a process, over a program that the test controls.
#include "server/supervise/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "device/base/descriptors.h"
#include "device/base/posix.h"
#include "proto/wire/unique_fd.h"
#include "server/supervise/child_program.h"
#include "tests/integration/daemon_harness.h"

namespace iris::server {
namespace {

using testing::Eventually;
using testing::TempDir;
using Names = std::multiset<std::string>;  // "NAME=FILE"

constexpr absl::Duration kSoon = absl::Seconds(60);

std::string Program(const char* name) {
  return testing::ProgramPath(absl::StrCat("server/supervise/", name));
}

int64_t MonotonicNs() {
  struct timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000ll + now.tv_nsec;
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// "NAME=FILE" of each file that a store answered.
Names Named(const std::string& name, const std::string& files) {
  Names names;
  for (const absl::string_view file : absl::StrSplit(files, ' ', absl::SkipEmpty())) {
    names.insert(absl::StrCat(name, "=", file));
  }
  return names;
}

Names operator+(Names a, const Names& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// A program that runs under the supervisor.
class Child {
 public:
  explicit Child(wire::UniqueFd fd) : fd_(std::move(fd)) {
    const std::vector<std::string> first = absl::StrSplit(Line(), ' ');
    if (first.size() != 2 || !absl::SimpleAtoi(first[0], &pid_) ||
        !absl::SimpleAtoi(first[1], &started_ns_)) {
      ADD_FAILURE() << "a program says nothing";
    }
    open_numbers_ = Line();
    signals_ = Line();
  }

  pid_t pid() const { return pid_; }
  int64_t started_ns() const { return started_ns_; }
  const std::string& open_numbers() const { return open_numbers_; }
  const std::string& signals() const { return signals_; }

  void Tell(const std::string& line) {
    const std::string text = line + "\n";
    EXPECT_EQ(send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  std::string Ask(const std::string& line) {
    Tell(line);
    return Line();
  }
  void Ready() { EXPECT_EQ(Ask("notify READY=1"), "1"); }
  // Returns the names of the descriptors that the child was passed.
  Names Passed() {
    const std::vector<std::string> words = absl::StrSplit(Ask("passed"), ' ');
    EXPECT_EQ(words[0], absl::StrCat(words.size() - 1));
    return Names(words.begin() + 1, words.end());
  }
  // Kills it from outside.
  void Kill() const { kill(pid_, SIGKILL); }

  // The next line; empty if none comes.
  std::string Line(absl::Duration timeout = kSoon) {
    const absl::Time deadline = absl::Now() + timeout;
    while (true) {
      const size_t end = pending_.find('\n');
      if (end != std::string::npos) {
        std::string line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return line;
      }
      struct pollfd readable = {fd_.get(), POLLIN, 0};
      const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
      if (left_ms <= 0 || poll(&readable, 1, static_cast<int>(left_ms)) <= 0) return "";
      char piece[1 << 16];
      const ssize_t n = read(fd_.get(), piece, sizeof(piece));
      if (n <= 0) return "";
      pending_.append(piece, static_cast<size_t>(n));
    }
  }

 private:
  wire::UniqueFd fd_;
  pid_t pid_ = 0;
  int64_t started_ns_ = 0;
  std::string open_numbers_, signals_, pending_;
};

struct Options {
  int most_kept = 100;
  int watchdog_ms = 0;
  int start_ms = 60'000;
  int stop_ms = 30'000;
  std::string program;  // empty: the one of the test
  std::string runtime_dir;
  std::vector<std::string> arguments;  // after the path of the socket
  int leaked_fd = -1;                  // open in the supervisor from its start
  bool without_stdin = false;
  uint64_t fd_limit = 0;
};

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest()
      : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), run_(dir_.path() + "/run") {
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", dir_.path().c_str());
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)),
              0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
  }
  ~SupervisorTest() override {
    for (const pid_t pid : running_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    if (HasFailure()) fprintf(stderr, "%s", Log().c_str());
  }

  pid_t Start(const Options& options = {}) {
    std::vector<std::string> arguments = {
        Program("supervise_for_test"),
        options.program.empty() ? Program("supervised_for_test") : options.program,
        options.runtime_dir.empty() ? run_ : options.runtime_dir,
        absl::StrCat(options.most_kept),
        absl::StrCat(options.watchdog_ms),
        absl::StrCat(options.start_ms),
        absl::StrCat(options.stop_ms),
        dir_.path() + "/control"};
    arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const std::string log = dir_.path() + "/log";
    const pid_t pid = fork();
    if (pid == 0) {
      const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      dup2(fd, STDERR_FILENO);
      if (options.leaked_fd >= 0) fcntl(options.leaked_fd, F_SETFD, 0);
      if (options.without_stdin) close(STDIN_FILENO);
      if (options.fd_limit != 0) {
        const struct rlimit limit = {options.fd_limit, options.fd_limit};
        setrlimit(RLIMIT_NOFILE, &limit);
      }
      // A program must not inherit these.
      for (const char* name : {"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "NOTIFY_SOCKET",
                               "WATCHDOG_USEC", "WATCHDOG_PID", "FDSTORE"}) {
        setenv(name, "1", 1);
      }
      setenv("IRIS_TEST_OTHER", "stays", 1);
      signal(SIGUSR2, SIG_IGN);
      sigset_t set;
      sigemptyset(&set);
      sigaddset(&set, SIGWINCH);
      sigprocmask(SIG_BLOCK, &set, nullptr);
      execv(pointers[0], pointers.data());
      _exit(127);
    }
    running_.insert(pid);
    return pid;
  }

  // The next program that the supervisor has started. A test without one ends by an exception.
  Child Next() {
    struct pollfd readable = {listener_.get(), POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(absl::ToInt64Milliseconds(kSoon))) != 1) {
      throw std::runtime_error("the supervisor starts no program");
    }
    return Child(wire::UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }

  // The exit code of a supervisor; -1 if it does not end.
  int Wait(pid_t pid, absl::Duration timeout = kSoon) {
    int status = 0;
    if (!Eventually([&] { return waitpid(pid, &status, WNOHANG) == pid; }, timeout)) return -1;
    running_.erase(pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  int End(pid_t pid) {
    kill(pid, SIGTERM);
    return Wait(pid);
  }

  std::string Log() const { return ReadFile(dir_.path() + "/log"); }
  bool Logged(const std::string& text) const {
    return Eventually([&] { return absl::StrContains(Log(), text); });
  }
  std::string NotifyPath() const { return run_ + "/.supervisor/notify"; }

  TempDir dir_;
  wire::UniqueFd listener_;
  const std::string run_;
  std::set<pid_t> running_;
};

TEST_F(SupervisorTest, KeepsDescriptorsOverADeath) {
  const pid_t supervisor = Start();
  Child first = Next();
  EXPECT_EQ(first.Passed(), Names());
  EXPECT_EQ(first.Ask("env LISTEN_FDS"), "none");
  const Names a = Named("a", first.Ask("store a 1"));
  const Names b = Named("b-2", first.Ask("store b-2 7 3"));
  Names c = Named("c_3", first.Ask("store c_3 1"));
  c = c + Named("c_3", first.Ask("store c_3 2"));  // beside the one
  first.Ask("store gone 5 2");
  EXPECT_EQ(first.Ask("notify FDSTOREREMOVE=1|FDNAME=gone"), "1");
  EXPECT_EQ(first.Ask("notify FDSTOREREMOVE=1|FDNAME=never"), "1");
  first.Ready();
  first.Kill();

  Child second = Next();
  EXPECT_NE(second.pid(), first.pid());
  EXPECT_EQ(second.Passed(), a + b + c);
  // Kept descriptors stay, even if a child did nothing.
  second.Kill();
  Child third = Next();
  EXPECT_EQ(third.Passed(), a + b + c);
  EXPECT_EQ(third.Ask("notify FDNAME=b-2|FDSTOREREMOVE=1"), "1");
  const Names d = Named("d", third.Ask("store d 2"));
  third.Kill();
  Child fourth = Next();
  EXPECT_EQ(fourth.Passed(), a + c + d);
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, LosesNothingThatTheDeadSaid) {
  const pid_t supervisor = Start();
  Child first = Next();
  first.Ready();
  first.Ask("store old 3");
  Names kept;
  for (int round = 0; round < 20; ++round) {
    // All is in the socket, and so is the death, when the supervisor looks.
    const std::string name = absl::StrCat("n", round);
    const std::string removed = round == 0 ? "old" : absl::StrCat("n", round - 1);
    const Names files =
        Named(name, first.Ask(absl::StrCat("store_and_die ", name, " 5 ", removed)));
    ASSERT_EQ(files.size(), 5);
    kill(supervisor, SIGSTOP);
    ASSERT_TRUE(Eventually([&] {
      return absl::StrContains(ReadFile(absl::StrCat("/proc/", supervisor, "/stat")), ") T ");
    }));
    first.Tell("go");
    ASSERT_TRUE(Eventually([&] {
      return absl::StrContains(ReadFile(absl::StrCat("/proc/", first.pid(), "/stat")), ") Z ");
    }));
    kill(supervisor, SIGCONT);
    first = Next();
    EXPECT_EQ(first.Passed(), files);
    first.Ready();
  }
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, KeepsThousands) {
  const pid_t supervisor = Start({.most_kept = 5001});
  Child child = Next();
  child.Ready();
  for (const int n : {0, 1000, 5000}) {
    const int have = static_cast<int>(child.Passed().size());
    Names kept = child.Passed();
    const std::string files = child.Ask(absl::StrCat("store f", n, " ", n - have));
    int64_t sent_ns = 0;
    ASSERT_TRUE(absl::SimpleAtoi(child.Ask("sent_ns"), &sent_ns));
    kept = kept + Named(absl::StrCat("f", n), files);
    ASSERT_EQ(kept.size(), n);
    int64_t least_ns = 1ll << 60;
    for (int round = 0; round < 5; ++round) {
      const int64_t killed_ns = MonotonicNs();
      child.Kill();
      child = Next();
      least_ns = std::min(least_ns, child.started_ns() - killed_ns);
      child.Ready();
    }
    ASSERT_EQ(child.Passed(), kept);
    printf("%d kept: %.1f us a store, %.0f us from the kill to main(), best of 5\n", n,
           n == have ? 0.0 : static_cast<double>(sent_ns) / 1e3 / (n - have),
           static_cast<double>(least_ns) / 1e3);
  }
  const absl::Time start = absl::Now();
  EXPECT_EQ(child.Ask("notify FDSTOREREMOVE=1|FDNAME=f5000"), "1");
  EXPECT_TRUE(Eventually([&] { return base::CountDescriptors(supervisor) < 1100; }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, KeepsNoMoreThanItsNumber) {
  const pid_t supervisor = Start({.most_kept = 5});
  Child first = Next();
  EXPECT_EQ(first.Ask("env FDSTORE"), "5");
  first.Ready();
  const Names a = Named("a", first.Ask("store a 3"));
  first.Ask("store b 3 3");  // all of a message, or none
  const Names c = Named("c", first.Ask("store c 2"));
  first.Ask("store d 200");
  first.Ask("store d 253 253");
  first.Kill();
  Child second = Next();
  EXPECT_EQ(second.Passed(), a + c);
  second.Ask("notify FDSTOREREMOVE=1|FDNAME=a");
  const Names e = Named("e", second.Ask("store e 3 3"));
  second.Kill();
  Child third = Next();
  EXPECT_EQ(third.Passed(), c + e);
  EXPECT_EQ(End(supervisor), 0);
  const std::vector<std::string> lines = absl::StrSplit(Log(), '\n');
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) {
                            return absl::StrContains(line, "than can be kept");
                          }),
            1);
}

// As many as its limit of descriptors allows, with none to spare for what a restart needs.
TEST_F(SupervisorTest, KeepsAsManyAsItsLimitAllows) {
  const pid_t supervisor = Start({.most_kept = 0, .fd_limit = 400});
  Child child = Next();
  EXPECT_EQ(child.Ask("env FDSTORE"), "336");
  child.Ready();
  Names kept = Named("a", child.Ask("store a 236 118"));
  child.Ask("store no 253 253");  // the kernel cuts it off
  kept = kept + Named("b", child.Ask("store b 100 100"));
  ASSERT_EQ(kept.size(), 336);
  child.Ask("store no 60 60");
  child.Ask("store no 253 253");
  child.Ask("store no 1");
  child.Kill();
  child = Next();
  EXPECT_EQ(child.Passed(), kept);
  EXPECT_EQ(End(supervisor), 0);
}

TEST(MostKept, LeavesSomeForTheSupervisor) {
  EXPECT_EQ(MostKept(0), 0);
  EXPECT_EQ(MostKept(64), 0);
  EXPECT_EQ(MostKept(1024), 960);
  EXPECT_EQ(MostKept(1 << 20), 10'000);
  // With the longest names they fit into one string of the environment.
  EXPECT_LT(10'000 * 11 + sizeof("LISTEN_FDNAMES="), 128 << 10);
}

TEST_F(SupervisorTest, PassesWhatSystemdPasses) {
  wire::UniqueFd leaked(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 50));
  const pid_t supervisor = Start({.watchdog_ms = 30'000,
                                  .arguments = {"7", "an argument"},
                                  .leaked_fd = leaked.get(),
                                  .without_stdin = true});
  Child child = Next();
  EXPECT_EQ(child.open_numbers(), "0 1 2");
  EXPECT_EQ(child.signals(), "");
  EXPECT_EQ(child.Ask("env NOTIFY_SOCKET"), NotifyPath());
  EXPECT_EQ(child.Ask("env FDSTORE"), "100");
  EXPECT_EQ(child.Ask("env LISTEN_PID"), "none");
  EXPECT_EQ(child.Ask("env LISTEN_FDNAMES"), "none");
  EXPECT_EQ(child.Ask("env IRIS_TEST_OTHER"), "stays");
  EXPECT_EQ(child.Ask("watchdog"), "1 30000000");
  child.Ask("store a 1");
  child.Ask("store b 2");
  child.Kill();
  child = Next();
  EXPECT_EQ(child.open_numbers(), "0 1 2 3 4 5");
  EXPECT_EQ(child.Ask("env LISTEN_PID"), absl::StrCat(child.pid()));
  EXPECT_EQ(child.Ask("env LISTEN_FDS"), "3");
  EXPECT_EQ(child.Ask("watchdog"), "1 30000000");
  EXPECT_EQ(End(supervisor), 7);
}

TEST_F(SupervisorTest, LeaksNothingOverManyRestarts) {
  const pid_t supervisor = Start();
  Child child = Next();
  const int with_five = base::CountDescriptors(supervisor) + 5;
  child.Ask("store a 5");
  child.Ready();
  for (int i = 0; i < 200; ++i) {
    child.Ask("store b 3 3");
    child.Ask("notify_fd FDSTORE=1|FDNAME=a:b");
    child.Ask("notify_fd BARRIER=1");
    child.Ask("notify_fd STATUS=junk");
    child.Ask("notify FDSTOREREMOVE=1|FDNAME=b");
    child.Ready();
    child.Kill();
    child = Next();
    ASSERT_EQ(child.open_numbers(), "0 1 2 3 4 5 6 7");
  }
  EXPECT_TRUE(Eventually([&] { return base::CountDescriptors(supervisor) == with_five; }));
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, HearsNobodyElse) {
  const pid_t supervisor = Start();
  Child child = Next();
  child.Ready();
  const int with_one = base::CountDescriptors(supervisor) + 1;
  const Names kept = Named("a", child.Ask("store a 1"));
  setenv("NOTIFY_SOCKET", NotifyPath().c_str(), 1);
  for (int i = 0; i < 50; ++i) {
    const int fd = memfd_create("foreign", MFD_CLOEXEC);
    EXPECT_GT(sd_pid_notify_with_fds(0, 0, "FDSTORE=1\nFDNAME=x", &fd, 1), 0);
    close(fd);
    EXPECT_GT(sd_notify(0, "FDSTOREREMOVE=1\nFDNAME=a\nSTOPPING=1"), 0);
  }
  unsetenv("NOTIFY_SOCKET");
  EXPECT_TRUE(Logged("is not irisd's, and is ignored"));
  child.Ask("notify WATCHDOG=1");  // behind them
  EXPECT_TRUE(Eventually([&] { return base::CountDescriptors(supervisor) == with_one; }));
  child.Kill();
  child = Next();
  EXPECT_EQ(child.Passed(), kept);
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, SurvivesFloodsAndNonsense) {
  const pid_t supervisor = Start();
  Child child = Next();
  child.Ready();
  const int with_one = base::CountDescriptors(supervisor) + 1;
  const Names kept = Named("a", child.Ask("store a 1"));
  EXPECT_EQ(child.Ask("flood 20000"), "done");
  for (const char* text :
       {"FDSTORE=1", "FDSTORE=1|FDNAME=", "FDSTORE=1|FDNAME=a b", "FDSTORE=1|FDNAME=a:b",
        "FDSTORE=1|FDNAME=01234567890", "FDNAME=a", "FDSTOREREMOVE=1", "|||", "FDSTORE=2|FDNAME=a",
        "FDSTOREREMOVE=1|FDNAME=01234567890"}) {
    EXPECT_EQ(child.Ask(absl::StrCat("notify_fd ", text)), "1");
  }
  EXPECT_EQ(
      child.Ask(absl::StrCat("notify_fd FDSTORE=1|FDNAME=a|STATUS=", std::string(10'000, 'x'))),
      "1");
  EXPECT_EQ(child.Ask("notify WATCHDOG=1"), "1");
  EXPECT_TRUE(Eventually([&] { return base::CountDescriptors(supervisor) == with_one; }));
  child.Kill();
  child = Next();
  EXPECT_EQ(child.Passed(), kept);
  EXPECT_EQ(End(supervisor), 0);
  EXPECT_LT(Log().size(), 4096);
}

TEST_F(SupervisorTest, MakesItsSocketAgain) {
  const pid_t supervisor = Start({.watchdog_ms = 1000});
  Child child = Next();
  child.Ready();
  const Names kept = Named("a", child.Ask("store a 1"));
  ASSERT_EQ(unlink(NotifyPath().c_str()), 0);
  ASSERT_TRUE(Logged("there is a new one"));  // and the silent program lives
  EXPECT_EQ(child.Ask("notify WATCHDOG=1"), "1");
  std::filesystem::remove_all(run_ + "/.supervisor");
  child.Kill();
  child = Next();
  EXPECT_EQ(child.Passed(), kept);
  child.Ready();
  const Names more = Named("b", child.Ask("store b 1"));
  child.Kill();
  child = Next();
  EXPECT_EQ(child.Passed(), kept + more);
  EXPECT_EQ(End(supervisor), 0);
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(SupervisorTest, MakesAndRemovesItsFolder) {
  umask(077);
  const pid_t supervisor = Start();
  Child child = Next();
  struct stat info = {};
  ASSERT_EQ(stat(run_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0755);
  ASSERT_EQ(stat((run_ + "/.supervisor").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700);
  EXPECT_EQ(End(supervisor), 0);
  EXPECT_FALSE(std::filesystem::exists(run_));
  umask(022);

  // One that it did not make stays; what a dead supervisor left is no obstacle.
  ASSERT_EQ(mkdir(run_.c_str(), 0755), 0);
  const pid_t killed = Start();
  child = Next();
  kill(killed, SIGKILL);
  EXPECT_EQ(Wait(killed), 128 + SIGKILL);
  EXPECT_TRUE(std::filesystem::exists(NotifyPath()));
  const pid_t next = Start();
  child = Next();
  EXPECT_EQ(End(next), 0);
  EXPECT_TRUE(std::filesystem::is_empty(run_));
}

TEST_F(SupervisorTest, OneHasADirectory) {
  const pid_t first = Start();
  Child child = Next();
  const Names kept = Named("a", child.Ask("store a 1"));
  EXPECT_EQ(Wait(Start()), 1);
  EXPECT_TRUE(Logged(absl::StrCat("another irisd (pid ", first, ")")));
  child.Ask("store b 1");
  child.Ask("notify FDSTOREREMOVE=1|FDNAME=b");
  child.Kill();
  child = Next();
  EXPECT_EQ(child.Passed(), kept);
  EXPECT_EQ(End(first), 0);
}

TEST_F(SupervisorTest, RefusesAFolderThatIsNotPrivate) {
  ASSERT_EQ(mkdir(run_.c_str(), 0755), 0);
  const std::string folder = run_ + "/.supervisor";
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  EXPECT_EQ(Wait(Start()), 1);
  EXPECT_TRUE(Logged("is not a private directory"));
  ASSERT_EQ(rmdir(folder.c_str()), 0);
  ASSERT_EQ(symlink(dir_.path().c_str(), folder.c_str()), 0);
  EXPECT_EQ(Wait(Start()), 1);
  ASSERT_EQ(unlink(folder.c_str()), 0);
  if (geteuid() == 0) {
    ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
    ASSERT_EQ(chown(folder.c_str(), 12345, 12345), 0);
    EXPECT_EQ(Wait(Start()), 1);
    EXPECT_TRUE(std::filesystem::exists(folder));
  }
}

TEST_F(SupervisorTest, EndsBothWhenAsked) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const pid_t supervisor = Start();
    Child child = Next();
    child.Ready();
    kill(supervisor, signal);
    EXPECT_EQ(Wait(supervisor), 0);
    EXPECT_EQ(kill(child.pid(), 0), -1);
  }
}

TEST_F(SupervisorTest, KillsWhatDoesNotEnd) {
  const pid_t supervisor = Start({.stop_ms = 300, .arguments = {"stubborn"}});
  Child child = Next();
  child.Ready();
  kill(supervisor, SIGTERM);
  EXPECT_EQ(child.Line(), absl::StrCat("signal ", SIGINT));
  // Its messages meanwhile do not block the supervisor.
  child.Ask("store a 50");
  EXPECT_EQ(Wait(supervisor), 1);
  EXPECT_EQ(kill(child.pid(), 0), -1);
  EXPECT_TRUE(Logged("does not end, and is killed"));
}

TEST_F(SupervisorTest, EndsWithCodesThatMeanIt) {
  struct Case {
    bool ready;
    int code;
  };
  for (const Case& each :
       {Case{false, 2}, Case{true, 2}, Case{false, 0}, Case{true, 0}, Case{false, 1}}) {
    const pid_t supervisor = Start();
    Child child = Next();
    child.Ask("store a 2");
    if (each.ready) child.Ready();
    child.Tell(absl::StrCat("exit ", each.code));
    EXPECT_EQ(Wait(supervisor), each.code);
    EXPECT_FALSE(std::filesystem::exists(run_));
  }
  EXPECT_TRUE(Logged("is not started again"));
}

TEST_F(SupervisorTest, OtherCodesAreTriedAgain) {
  const pid_t supervisor = Start();
  Child child = Next();
  child.Tell("exit 3");  // not even ready once
  child = Next();
  child.Ready();
  for (const int code : {1, 3, 1, 134}) {
    child.Tell(absl::StrCat("exit ", code));
    child = Next();
  }
  EXPECT_EQ(End(supervisor), 0);
  EXPECT_FALSE(absl::StrContains(Log(), "hands over"));
}

TEST_F(SupervisorTest, CannotExecuteAtFirst) {
  EXPECT_EQ(Wait(Start({.program = dir_.path() + "/missing"})), 1);
  EXPECT_TRUE(Logged("No such file"));
}

TEST_F(SupervisorTest, ReloadsOnceItIsReady) {
  const pid_t supervisor = Start();
  Child child = Next();
  kill(supervisor, SIGHUP);
  EXPECT_EQ(child.Line(absl::Milliseconds(200)), "");
  child.Tell("notify READY=1");
  std::multiset<std::string> lines = {child.Line(), child.Line()};
  EXPECT_EQ(lines, (std::multiset<std::string>{"1", absl::StrCat("signal ", SIGHUP)}));
  kill(supervisor, SIGHUP);
  EXPECT_EQ(child.Line(), absl::StrCat("signal ", SIGHUP));
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, ReplacesTheProgramOnDisk) {
  const std::string path = dir_.path() + "/program";
  std::filesystem::copy(Program("supervised_for_test"), path);
  const pid_t supervisor = Start({.program = path});
  Child first = Next();
  first.Ready();
  const Names kept = Named("a", first.Ask("store a 3"));
  const std::string old_file = first.Ask("exe");

  std::filesystem::copy(Program("supervised_for_test"), path + ".new");
  std::filesystem::rename(path + ".new", path);
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  kill(supervisor, SIGUSR1);
  Child second = Next();
  EXPECT_NE(second.Ask("exe"), old_file);
  EXPECT_EQ(second.Ask("exe"), absl::StrCat(info.st_ino));
  EXPECT_EQ(second.Passed(), kept);
  EXPECT_TRUE(Logged("hands over"));

  // Without being asked, too.
  second.Ready();
  second.Tell("exit 75");
  Child third = Next();
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, WaitsLongerAndLongerUntilTheProgramIsMended) {
  const std::string path = dir_.path() + "/program";
  const std::string mended = dir_.path() + "/mended";
  const auto write = [&](const std::string& text) {
    std::ofstream(path + ".new") << text;
    std::filesystem::permissions(path + ".new", std::filesystem::perms::owner_all);
    std::filesystem::rename(path + ".new", path);
  };
  std::filesystem::copy(Program("supervised_for_test"), mended);
  std::filesystem::copy(mended, path);
  const pid_t supervisor = Start({.program = path});
  Child child = Next();
  child.Ready();
  const Names kept = Named("a", child.Ask("store a 4"));
  write(absl::StrCat("#!/bin/sh\necho x >>", dir_.path(), "/starts\nexit 3\n"));
  child.Kill();
  ASSERT_TRUE(Logged("wait_ms=800"));
  EXPECT_TRUE(Logged("exit code 3"));
  for (const char* wait : {"wait_ms=0", "wait_ms=100", "wait_ms=200", "wait_ms=400"}) {
    EXPECT_TRUE(absl::StrContains(Log(), wait)) << wait;
  }
  EXPECT_LE(ReadFile(dir_.path() + "/starts").size(), 2 * 6);
  // Also without a program at all.
  std::filesystem::remove(path);
  ASSERT_TRUE(Logged("No such file"));
  ASSERT_TRUE(absl::StrContains(Log(), "kept=4"));
  std::filesystem::rename(mended, path);
  kill(supervisor, SIGUSR1);  // instead of waiting for seconds
  child = Next();
  EXPECT_EQ(child.Passed(), kept);
  // After a success, the next waits are short again.
  child.Ready();
  child.Kill();
  child = Next();
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, EndsWhileItWaits) {
  const std::string path = dir_.path() + "/program";
  std::filesystem::copy(Program("supervised_for_test"), path);
  const pid_t supervisor = Start({.program = path});
  Child child = Next();
  child.Ready();
  std::filesystem::remove(path);
  child.Kill();
  ASSERT_TRUE(Logged("wait_ms=1600"));
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, KillsAProgramThatGivesNoSign) {
  const pid_t supervisor = Start({.watchdog_ms = 400});
  Child child = Next();
  // Not before it is ready, which can take longer.
  absl::SleepFor(absl::Milliseconds(800));
  EXPECT_EQ(Named("a", child.Ask("store a 3")).size(), 3);
  child.Ready();
  for (int i = 0; i < 10; ++i) {
    absl::SleepFor(absl::Milliseconds(100));
    EXPECT_EQ(child.Ask("notify WATCHDOG=1"), "1");
  }
  child.Tell("stop");
  Child second = Next();
  EXPECT_TRUE(Logged("no sign of life"));
  EXPECT_EQ(second.Passed().size(), 3);
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, KillsAProgramThatIsNeverReady) {
  const pid_t supervisor = Start({.start_ms = 300});
  Child child = Next();
  child.Tell("stop");
  child = Next();
  EXPECT_TRUE(Logged("is not ready in time"));
  EXPECT_EQ(End(supervisor), 0);
}

TEST_F(SupervisorTest, KillsAProgramThatStopsAndStays) {
  const pid_t supervisor = Start({.stop_ms = 300});
  Child child = Next();
  child.Ready();
  EXPECT_EQ(child.Ask("notify STOPPING=1"), "1");
  child = Next();
  EXPECT_EQ(End(supervisor), 0);
}

// The program goes on when the supervisor dies.
TEST_F(SupervisorTest, LeavesTheProgramWhenItDies) {
  const pid_t supervisor = Start();
  Child child = Next();
  child.Ready();
  kill(supervisor, SIGKILL);
  EXPECT_EQ(Wait(supervisor), 128 + SIGKILL);
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_EQ(child.Ask("env IRIS_TEST_OTHER"), "stays");
  EXPECT_NE(child.Ask("notify WATCHDOG=1"), "1");
  child.Kill();
}

// A supervisor's own descriptors lie below those that it keeps, so that these always move.
TEST(ChildProgram, PassesADescriptorThatIsInPlace) {
  const pid_t supervisor = fork();
  if (supervisor == 0) {
    const int fd = memfd_create("kept", MFD_CLOEXEC);
    if (fd != 3) dup3(fd, 3, O_CLOEXEC);
    ChildProgram program({.path = "/bin/sh", .arguments = {"-c", "exec 9<&3 && exit 42"}});
    const absl::StatusOr<pid_t> child = program.Start({{3, "a"}});
    int status = 0;
    if (!child.ok() || waitpid(*child, &status, 0) != *child) _exit(1);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(supervisor, &status, 0), supervisor);
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(FindProgram, FindsWhatAShellWould) {
  TempDir dir;
  const std::string path = dir.path() + "/tool";
  std::ofstream(path) << "#!/bin/sh\n";
  EXPECT_FALSE(FindProgram("tool", dir.path()).ok());  // nobody may execute it
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  EXPECT_EQ(FindProgram("tool", absl::StrCat("/nowhere:", dir.path(), ":/bin")).value(), path);
  EXPECT_EQ(FindProgram(path, "").value(), path);
  std::filesystem::create_symlink(path, dir.path() + "/link");
  EXPECT_EQ(FindProgram("link", dir.path()).value(), dir.path() + "/link");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(dir.path());
  EXPECT_EQ(FindProgram("./tool", "").value(), absl::StrCat(dir.path(), "/./tool"));
  std::filesystem::current_path(before);
  EXPECT_FALSE(FindProgram("tool", "/nowhere").ok());
  EXPECT_FALSE(FindProgram("", "/bin").ok());
  EXPECT_FALSE(FindProgram(dir.path(), "").ok());
}

}  // namespace
}  // namespace iris::server
