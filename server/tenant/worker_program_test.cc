#include "server/tenant/worker_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "device/base/descriptors.h"
#include "server/sandbox/sanitizers.h"
#include "tests/cc/require.h"

namespace iris::server {
namespace {

using iris::testing::Require;
using ::testing::HasSubstr;

constexpr char kProgram[] = "server/irisd-worker";
constexpr int kPatienceMs = 60000;

WorkerSettings Settings() {
  WorkerSettings settings;
  settings.program = kProgram;
  return settings;
}

bool WaitFor(int fd, short events) {
  struct pollfd ready = {fd, events, 0};
  return poll(&ready, 1, kPatienceMs) == 1;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(WorkerProgramTest, StartsAndReaps) {
  const auto program = Require(WorkerProgram::Open(Settings()));
  EXPECT_GE(program.fd(), 10);
  const WorkerProgram::Started worker = program.Start("uid 7");
  ASSERT_TRUE(worker.ok()) << worker.status();
  const wire::UniqueFd link = (*worker)->TakeLink();
  ASSERT_TRUE(WaitFor(link.get(), POLLIN));  // kReady
  EXPECT_FALSE((*worker)->Reap().has_value());
  (*worker)->Kill();
  ASSERT_TRUE(WaitFor((*worker)->pidfd(), POLLIN));
  EXPECT_EQ((*worker)->Reap().value_or(""), "killed by signal 9 (Killed)");
  EXPECT_FALSE((*worker)->Reap().has_value());
}

TEST(WorkerProgramTest, AWorkerThatIsLetGoEnds) {
  const auto program = Require(WorkerProgram::Open(Settings()));
  pid_t pid = 0;
  {
    const WorkerProgram::Started worker = program.Start("uid 7");
    ASSERT_TRUE(worker.ok()) << worker.status();
    pid = (*worker)->pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(WorkerProgramTest, AWorkerGetsNothingOfItsParents) {
  // Descriptors without close-on-exec, and a variable.
  const int leaks[] = {dup(0), dup(1), dup(2)};
  setenv("IRIS_SECRET", "x", 1);
  const auto program = Require(WorkerProgram::Open(Settings()));
  const WorkerProgram::Started worker = program.Start("uid 7");
  for (const int fd : leaks) close(fd);
  ASSERT_TRUE(worker.ok()) << worker.status();
  const wire::UniqueFd link = (*worker)->TakeLink();
  ASSERT_TRUE(WaitFor(link.get(), POLLIN));
  const std::string folder = absl::StrCat("/proc/", (*worker)->pid());
  int n_links = 0;
  for (int fd = 0; fd < 64; ++fd) {
    char target[256] = {};
    const ssize_t n =
        readlink(absl::StrCat(folder, "/fd/", fd).c_str(), target, sizeof(target) - 1);
    if (n < 0) continue;
    const std::string text(target, static_cast<size_t>(n));
    if (fd < 2) {
      EXPECT_EQ(text, "/dev/null") << fd;
    } else if (fd == 3) {
      EXPECT_THAT(text, HasSubstr("socket:")) << fd;
      ++n_links;
    } else if (fd > 3) {
      EXPECT_THAT(text, HasSubstr("anon_inode:")) << fd;
    }
  }
  EXPECT_EQ(n_links, 1);
  EXPECT_THAT(ReadFile(folder + "/environ"), ::testing::Not(HasSubstr("IRIS_SECRET")));
}

TEST(WorkerProgramTest, ParentKeepsNoDescriptorOfTheWorkers) {
  const auto program = Require(WorkerProgram::Open(Settings()));
  const int before = base::CountDescriptors();
  for (int i = 0; i < 5; ++i) {
    const WorkerProgram::Started worker = program.Start("uid 7");
    ASSERT_TRUE(worker.ok()) << worker.status();
    EXPECT_EQ(base::CountDescriptors(), before + 2);  // the link and the pidfd
  }
  EXPECT_EQ(base::CountDescriptors(), before);
}

TEST(WorkerProgramTest, StartsWhileOtherThreadsAllocateAndOpen) {
  const absl::StatusOr<WorkerProgram> program = WorkerProgram::Open(Settings());
  ASSERT_TRUE(program.ok()) << program.status();
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 4; ++i) {
    busy.emplace_back([&stop] {
      while (!stop) {
        std::vector<std::string> texts(100, std::string(1000, 'x'));
        const wire::UniqueFd fd(dup(0));
      }
    });
  }
  absl::Duration longest;
  for (int i = 0; i < 20; ++i) {
    const absl::Time start = absl::Now();
    const WorkerProgram::Started worker = program->Start("uid 7");
    longest = std::max(longest, absl::Now() - start);
    ASSERT_TRUE(worker.ok()) << worker.status();
    const wire::UniqueFd link = (*worker)->TakeLink();
    ASSERT_TRUE(WaitFor(link.get(), POLLIN));
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  std::cout << "the longest of 20 starts took " << longest << " of its caller" << std::endl;
}

TEST(WorkerProgramTest, AnUpgradeDoesNotMixVersions) {
  // The file that was opened is executed, though another has its name now.
  char folder[] = "/tmp/iris-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string path = absl::StrCat(folder, "/irisd-worker");
  ASSERT_EQ(system(absl::StrCat("cp -L ", kProgram, " ", path).c_str()), 0);
  WorkerSettings settings;
  settings.program = path;
  const auto program = Require(WorkerProgram::Open(settings));
  ASSERT_EQ(system(absl::StrCat("rm ", path, "; cp /bin/false ", path).c_str()), 0);
  const WorkerProgram::Started worker = program.Start("uid 7");
  ASSERT_TRUE(worker.ok()) << worker.status();
  const wire::UniqueFd link = (*worker)->TakeLink();
  ASSERT_TRUE(WaitFor(link.get(), POLLIN));
  char byte = 0;
  EXPECT_EQ(recv(link.get(), &byte, 1, MSG_PEEK), 1);
  EXPECT_EQ(system(absl::StrCat("rm -r ", folder).c_str()), 0);
}

TEST(WorkerProgramTest, SaysWhatIsMissing) {
  WorkerSettings settings = Settings();
  settings.program = "/nowhere/irisd-worker";
  absl::Status status = WorkerProgram::Open(settings).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("/nowhere/irisd-worker (No such file or directory); install it there"));
  if (geteuid() != 0) return;
  settings = Settings();
  settings.user = "no-such-user";
  status = WorkerProgram::Open(settings).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"no-such-user\""));
  settings.user = "root";
  status = WorkerProgram::Open(settings).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("workers.user"));
  settings.user = "";
  const auto stays = Require(WorkerProgram::Open(settings));
  EXPECT_FALSE(stays.ids().has_value());
}

absl::Status Try(const std::string& path, absl::Duration within = absl::Seconds(60)) {
  WorkerSettings settings = Settings();
  settings.program = path;
  const absl::StatusOr<WorkerProgram> program = WorkerProgram::Open(settings);
  return program.ok() ? program->Try(within) : program.status();
}

TEST(WorkerProgramTest, TriesWhatItStarts) {
  const absl::Status tried = Try(kProgram);
  EXPECT_TRUE(tried.ok()) << tried;
}

TEST(WorkerProgramTest, SaysThatAProgramIsForAnotherMachine) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/irisd-worker-broken");
  std::ofstream(path) << "\x7f"
                         "ELF of another machine";
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  const absl::Status tried = Try(path);
  EXPECT_TRUE(absl::IsFailedPrecondition(tried)) << tried;
  EXPECT_THAT(std::string(tried.message()), HasSubstr(path));
  EXPECT_THAT(std::string(tried.message()), HasSubstr("Exec format error"));
  EXPECT_THAT(std::string(tried.message()), HasSubstr("install the irisd-worker"));
}

TEST(WorkerProgramTest, SaysThatAProgramIsNoWorker) {
  const absl::Status tried = Try("/bin/true");
  EXPECT_TRUE(absl::IsFailedPrecondition(tried)) << tried;
  EXPECT_THAT(std::string(tried.message()), HasSubstr("exited with 0 before it was ready"));
}

TEST(WorkerProgramTest, DoesNotWaitLongerThanItIsTold) {
  const absl::Status tried = Try(kProgram, absl::ZeroDuration());
  EXPECT_TRUE(absl::IsDeadlineExceeded(tried)) << tried;
}

TEST(WorkerProgramTest, RefusesToRunByHand) {
  FILE* const output = popen(absl::StrCat(kProgram, " 2>&1 3<&-").c_str(), "r");
  ASSERT_NE(output, nullptr);
  char text[512] = {};
  const size_t n = fread(text, 1, sizeof(text) - 1, output);
  EXPECT_EQ(WEXITSTATUS(pclose(output)), 2);
  EXPECT_THAT(std::string(text, n), HasSubstr("To start Iris, start irisd."));
}

}  // namespace
}  // namespace iris::server
