// FaultTest: every test has an irisd of its own. After the test it must be up, hold nothing of the
// test, and serve the next client.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/require.h"
#include "tests/integration/daemon_harness.h"

namespace iris::testing {

class FaultTest : public ::testing::Test {
 protected:
  // Flags for irisd; a test overrides them by calling StartDaemon itself before anything else.
  void StartDaemon(const DaemonOptions& options) {
    daemon_ = Require(Daemon::Start(options));
    // One session first, so that whatever irisd keeps open for good is open.
    ServeOneClient();
    ASSERT_TRUE(daemon_->WaitIdle(1 << 20).ok());
    idle_fds_ = daemon_->OpenFds();
  }

  void SetUp() override { StartDaemon({}); }

  void TearDown() override {
    if (daemon_ == nullptr) return;
    ASSERT_TRUE(daemon_->alive()) << daemon_->Log();
    const absl::Status idle = daemon_->WaitIdle(idle_fds_);
    EXPECT_TRUE(idle.ok()) << idle << "\n" << daemon_->Log();
    ServeOneClient();
    daemon_->Disconnect();  // irisd waits a second for a client that does not read
    EXPECT_EQ(Require(daemon_->Stop()), 0) << daemon_->Log();
  }

  // A whole life of a job of one rank.
  void ServeOneClient() {
    auto session = RawSession::Open(daemon_->session_socket());
    ASSERT_TRUE(session.ok()) << session.status() << "\n" << daemon_->Log();
    RawSession& s = **session;
    auto joined = Require(s.Join(s.JoinRequest("next", 0, 1)));
    ASSERT_TRUE(s.ReceiveDescriptors(3).ok());
    Require(s.Mapped(joined));
    Require(s.Allocate(joined, 0, 4096, "next"));
    EXPECT_TRUE(s.Leave(joined).ok());
  }

  std::unique_ptr<RawSession> OpenSession() {
    auto session = RawSession::Open(daemon_->session_socket());
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }

  // A job of one rank, joined and mapped; it leaves at the end, because this process lives on and a
  // rank is let go only when its process is gone or has left.
  struct Joined {
    Joined() = default;
    Joined(Joined&&) = default;
    std::unique_ptr<RawSession> session;
    iris::v1::JoinReply reply;
    ~Joined() {
      if (session != nullptr && reply.job_id() != 0) session->Leave(reply).IgnoreError();
    }
  };
  Joined JoinAlone(const std::string& job) {
    Joined joined;
    joined.session = OpenSession();
    auto reply = joined.session->Join(joined.session->JoinRequest(job, 0, 1));
    EXPECT_TRUE(reply.ok()) << reply.status();
    if (!reply.ok()) return joined;
    joined.reply = *reply;
    EXPECT_TRUE(joined.session->ReceiveDescriptors(3).ok());
    EXPECT_TRUE(joined.session->Mapped(joined.reply).ok());
    return joined;
  }

  std::unique_ptr<Daemon> daemon_;
  int idle_fds_ = 0;
};

}  // namespace iris::testing
