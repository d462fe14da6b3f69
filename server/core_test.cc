// irisd's core and its workers, as processes: what the core links, and what the death of a worker
// costs. Each test has an irisd of its own.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/cc/require.h"
#include "tests/integration/daemon_harness.h"

namespace iris::testing {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code ignored;
  for (const auto& thread :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", parent, "/task"), ignored)) {
    for (const auto text : absl::StrSplit(ReadAll(thread.path().string() + "/children"), ' ')) {
      int child = 0;
      if (absl::SimpleAtoi(text, &child)) children.push_back(child);
    }
  }
  return children;
}

class CoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Start({}); }
  void Start(const DaemonOptions& options) { daemon_ = Require(Daemon::Start(options)); }

  std::unique_ptr<Daemon> daemon_;
};

TEST_F(CoreTest, LinksNoGrpc) {
  ASSERT_TRUE(daemon_->GetStatus().ok());
  const std::string exe = absl::StrCat("/proc/", daemon_->pid(), "/exe");
  // The names of the libraries that it needs, and what the loader has mapped.
  EXPECT_FALSE(absl::StrContains(ReadAll(exe), "libgrpc"));
  EXPECT_FALSE(absl::StrContains(ReadAll(absl::StrCat("/proc/", daemon_->pid(), "/maps")), "grpc"));
  // The worker, which has just answered, shows that it would have been seen.
  const std::vector<pid_t> workers = ChildrenOf(daemon_->pid());
  ASSERT_EQ(workers.size(), 1u);
  EXPECT_TRUE(absl::StrContains(ReadAll(absl::StrCat("/proc/", workers[0], "/exe")), "grpc"));
}

TEST_F(CoreTest, AWorkersDeathEndsNoSessionAndNoJob) {
  auto session = Require(RawSession::Open(daemon_->session_socket()));
  auto joined = Require(session->Join(session->JoinRequest("lives", 0, 1)));
  ASSERT_TRUE(session->ReceiveDescriptors(3).ok());
  ASSERT_TRUE(session->Mapped(joined).ok());
  const std::vector<pid_t> workers = ChildrenOf(daemon_->pid());
  ASSERT_EQ(workers.size(), 1u);
  ASSERT_EQ(kill(workers[0], SIGKILL), 0);
  // Its connections are gone with it.
  EXPECT_EQ(session->Allocate(joined, 0, 4096).status().code(), absl::StatusCode::kUnavailable);
  // Another worker answers others, and tells that the session and the job live on.
  ASSERT_TRUE(Eventually([this] { return daemon_->GetStatus().ok(); }));
  EXPECT_NE(ChildrenOf(daemon_->pid()), workers);
  const auto sessions = Require(daemon_->ListSessions());
  ASSERT_EQ(sessions.sessions_size(), 1);
  EXPECT_EQ(sessions.sessions(0).state(), "open");
  const auto jobs = Require(daemon_->ListJobs());
  ASSERT_EQ(jobs.jobs_size(), 1);
  EXPECT_EQ(jobs.jobs(0).state(), v1::JOB_STATE_READY);
  EXPECT_TRUE(absl::StrContains(daemon_->Log(), "signal 9")) << daemon_->Log();
}

TEST_F(CoreTest, AWorkersDeathCancelsItsCalls) {
  auto session = Require(RawSession::Open(daemon_->session_socket()));
  auto join = std::async(std::launch::async, [&] {
    return session->Join(session->JoinRequest("waits", 0, 2)).status();
  });
  ASSERT_TRUE(Eventually([this] { return daemon_->GetStatus()->n_jobs() == 1; }));
  for (const pid_t worker : ChildrenOf(daemon_->pid())) kill(worker, SIGKILL);
  // The call was the rank's only hold on the job, which nobody else has joined.
  EXPECT_EQ(join.get().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Eventually([this] {
    const auto status = daemon_->GetStatus();
    return status.ok() && status->n_jobs() == 0;
  }));
  EXPECT_EQ(daemon_->ListSessions()->sessions_size(), 1);
}

TEST_F(CoreTest, AnIdleWorkerEnds) {
  Start({.flags = {"--worker-idle-timeout", "100ms"}});
  {
    auto session = Require(RawSession::Open(daemon_->session_socket()));
    EXPECT_EQ(session->Leave({}).code(), absl::StatusCode::kPermissionDenied);
  }
  daemon_->Disconnect();
  EXPECT_TRUE(Eventually([this] { return ChildrenOf(daemon_->pid()).empty(); }));
  // And is started again for the next.
  EXPECT_TRUE(daemon_->GetStatus().ok());
}

TEST_F(CoreTest, WorkersEndWithTheCore) {
  const std::vector<pid_t> workers = ChildrenOf(daemon_->pid());
  ASSERT_EQ(workers.size(), 1u);
  daemon_->Kill();
  EXPECT_TRUE(Eventually([&] { return kill(workers[0], 0) != 0; }));
}

}  // namespace
}  // namespace iris::testing
