// Checks, in /proc, the confinement of a running irisd and its worker that docs/security.md
// describes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/sandbox/sanitizers.h"
#include "tests/integration/daemon_harness.h"

namespace iris::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// "Name: value" lines of /proc/PID/status, by name.
std::map<std::string, std::string> ReadStatus(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::map<std::string, std::string> found;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    found[line.substr(0, colon)] = value == std::string::npos ? "" : line.substr(value);
  }
  return found;
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    if (ReadStatus(pid)["PPid"] == absl::StrCat(parent)) children.push_back(pid);
  }
  return children;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class ConfinementTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& flags) {
    DaemonOptions options;
    options.flags = flags;
    auto daemon = Daemon::Start(options);
    ASSERT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    session_ = *RawSession::Open(daemon_->session_socket());
    ASSERT_TRUE(daemon_->GetStatus().ok());  // so its worker serves
    const std::vector<pid_t> children = ChildrenOf(daemon_->pid());
    ASSERT_EQ(children.size(), 1u);
    worker_ = children[0];
  }

  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<RawSession> session_;
  pid_t worker_ = 0;
};

TEST_F(ConfinementTest, TheCoreCannotParseHttp2) {
  Start({});
  const std::string core = ReadFile(absl::StrCat("/proc/", daemon_->pid(), "/maps"));
  EXPECT_THAT(core, HasSubstr("irisd"));
  for (const char* library : {"libgrpc", "libgpr", "libssl", "libcrypto", "libcares"}) {
    EXPECT_THAT(core, Not(HasSubstr(library)));
  }
}

TEST_F(ConfinementTest, TheCoreGivesUpSystemCallsAndNewPrivileges) {
  if (iris::server::kSanitized) GTEST_SKIP() << "there are no filters in this build";
  Start({});
  std::map<std::string, std::string> core = ReadStatus(daemon_->pid());
  EXPECT_EQ(core["NoNewPrivs"], "1");
  EXPECT_EQ(core["Seccomp"], "2");
  std::error_code error;
  for (const auto& thread : std::filesystem::directory_iterator(
           absl::StrCat("/proc/", daemon_->pid(), "/task"), error)) {
    const std::string status = ReadFile(thread.path().string() + "/status");
    if (status.empty()) continue;  // it has ended meanwhile
    EXPECT_THAT(status, HasSubstr("Seccomp:\t2"));
  }
}

TEST_F(ConfinementTest, AWorkerHoldsSocketsOfItsTenantAndNothingElse) {
  Start({});
  std::map<std::string, std::string> worker = ReadStatus(worker_);
  EXPECT_EQ(worker["Name"], "irisd-worker");
  EXPECT_EQ(worker["NoNewPrivs"], "1");
  EXPECT_EQ(worker["Seccomp"], iris::server::kSanitized ? "0" : "2");
  EXPECT_EQ(worker["CapEff"], "0000000000000000");
  if (geteuid() == 0) {
    EXPECT_EQ(worker["Uid"], "65534\t65534\t65534\t65534");
  }
  int n_sockets = 0;
  std::error_code error;
  for (const auto& fd :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", worker_, "/fd"), error)) {
    const std::string number = fd.path().filename().string();
    const std::string target = std::filesystem::read_symlink(fd.path(), error).string();
    if (number == "2") continue;  // irisd's own standard error
    EXPECT_TRUE(target == "/dev/null" || absl::StartsWith(target, "anon_inode:[event") ||
                absl::StartsWith(target, "socket:"))
        << number << " is " << target;
    n_sockets += absl::StartsWith(target, "socket:") ? 1 : 0;
  }
  // The link, and of each connection gRPC's and the one that notices its end.
  EXPECT_EQ(n_sockets, 1 + 2 * 2);
}

TEST_F(ConfinementTest, FiltersCanBeLeftOut) {
  Start({"--seccomp", "off"});
  EXPECT_EQ(ReadStatus(daemon_->pid())["Seccomp"], "0");
  EXPECT_EQ(ReadStatus(worker_)["Seccomp"], "0");
  EXPECT_EQ(ReadStatus(worker_)["NoNewPrivs"], "1");
}

TEST_F(ConfinementTest, AWorkerEndsWithItsCore) {
  Start({});
  daemon_->Kill();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (ReadStatus(worker_)["Name"] == "irisd-worker" && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_NE(ReadStatus(worker_)["Name"], "irisd-worker");
}

}  // namespace
}  // namespace iris::testing
