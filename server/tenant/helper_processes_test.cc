#include "server/tenant/helper_processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/session/deferred_close.h"
#include "server/session/testing/slow_socket.h"
#include "server/tenant/worker_program.h"

namespace iris::server {
namespace {

constexpr int kHangsForSeconds = 600;

class HelperProcessesTest : public ::testing::Test {
 protected:
  HelperProcessesTest() {
    WorkerSettings settings;
    settings.program = "server/irisd-worker";
    program_ = std::make_unique<WorkerProgram>(*WorkerProgram::Open(settings));
    poller_ = *Poller::Create();
    HelperProcesses::Setup setup;
    setup.start = [this]() -> WorkerProgram::Started {
      if (!start_fails_.ok()) return start_fails_;
      WorkerProgram::Started started = program_->StartClosing();
      if (started.ok()) pids_.push_back((*started)->pid());
      return started;
    };
    setup.trouble = [this](uint64_t times, const absl::Status& why) {
      EXPECT_EQ(times, troubles_.size() + 1);
      troubles_.push_back(why);
    };
    closing_ =
        std::make_unique<HelperProcesses>(poller_.get(), std::move(setup), "closes connections");
    closer_.SetHandOver([this](int socket) { return closing_->HandOver(socket); });
  }
  ~HelperProcessesTest() override { closer_.SetHandOver(nullptr); }

  // A connection whose client has sent `fd`; the client's end.
  wire::UniqueFd CloseOneWith(int fd) {
    int pair[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    wire::UniqueFd theirs(pair[1]);
    testing::SendFd(theirs.get(), fd);
    closer_.CloseConnection(Party{1000}, wire::UniqueFd(pair[0]));
    return theirs;
  }
  // Returns true if the descriptor that a client has sent, the other end of `peer`, is closed
  // everywhere.
  static bool IsClosed(int peer) {
    char byte;
    for (const absl::Time end = absl::Now() + absl::Seconds(60); absl::Now() < end;) {
      if (recv(peer, &byte, 1, MSG_DONTWAIT) == 0) return true;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }
  bool UntilProcesses(size_t n) {
    for (const absl::Time end = absl::Now() + absl::Seconds(60); absl::Now() < end;) {
      if (closing_->n_processes() == n) return true;
      poller_->Wait(absl::Milliseconds(20));
    }
    return false;
  }

  std::unique_ptr<WorkerProgram> program_;
  std::unique_ptr<Poller> poller_;
  absl::Status start_fails_;
  std::vector<pid_t> pids_;
  std::vector<absl::Status> troubles_;
  std::unique_ptr<HelperProcesses> closing_;
  // No thread closes anything here.
  DeferredClose closer_{{}, [](const std::function<void()>&) { return false; }};
};

TEST_F(HelperProcessesTest, ClosesWhatAClientHasSent) {
  for (int i = 0; i < 20; ++i) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const wire::UniqueFd peer(pair[1]);
    wire::UniqueFd sent(pair[0]);
    const wire::UniqueFd client = CloseOneWith(sent.get());
    sent.Reset();
    EXPECT_TRUE(IsClosed(peer.get())) << i;
  }
  EXPECT_EQ(pids_.size(), 1u);
  EXPECT_EQ(closer_.n_waiting(), 0u);
  EXPECT_TRUE(troubles_.empty());
}

// However many come: none stays irisd's, and those that hang end with the process that they hang.
TEST_F(HelperProcessesTest, ItHangsInPlaceOfIrisdAndAnotherFollows) {
  std::vector<wire::UniqueFd> clients;
  testing::SlowSocket slow(kHangsForSeconds);
  const absl::Time start = absl::Now();
  clients.push_back(CloseOneWith(slow.socket.get()));
  slow.socket.Reset();
  for (int i = 0; i < 2000 && pids_.size() < 2; ++i) {
    clients.push_back(CloseOneWith(STDERR_FILENO));
  }
  ASSERT_GE(pids_.size(), 2u) << "it never hung";
  ASSERT_FALSE(troubles_.empty());
  EXPECT_EQ(troubles_.front().code(), absl::StatusCode::kDeadlineExceeded) << troubles_.front();
  EXPECT_EQ(closer_.n_waiting(), 0u) << "irisd has kept connections";
  EXPECT_TRUE(UntilProcesses(1)) << "a killed process does not end";
  EXPECT_EQ(kill(pids_.front(), 0), -1);
  EXPECT_LT(absl::Now() - start, absl::Seconds(kHangsForSeconds / 2));
}

TEST_F(HelperProcessesTest, OneThatHangsDoesNotHoldUpTheEnd) {
  testing::SlowSocket slow(kHangsForSeconds);
  const wire::UniqueFd client = CloseOneWith(slow.socket.get());
  slow.socket.Reset();
  const absl::Time start = absl::Now();
  closer_.SetHandOver(nullptr);
  closing_.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(kHangsForSeconds / 2));
  ASSERT_EQ(pids_.size(), 1u);
  EXPECT_EQ(kill(pids_.front(), 0), -1);
}

TEST_F(HelperProcessesTest, OneThatHasEndedIsFollowedByAnother) {
  int pair[2];
  for (size_t i = 1; i <= 3; ++i) {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const wire::UniqueFd peer(pair[1]);
    wire::UniqueFd sent(pair[0]);
    const wire::UniqueFd client = CloseOneWith(sent.get());
    sent.Reset();
    EXPECT_TRUE(IsClosed(peer.get()));
    ASSERT_EQ(pids_.size(), i);
    ASSERT_EQ(kill(pids_.back(), SIGKILL), 0);
    EXPECT_TRUE(UntilProcesses(0));
  }
  EXPECT_TRUE(troubles_.empty()) << troubles_.front();
}

TEST_F(HelperProcessesTest, WhereNoneCanBeStartedItSaysSo) {
  start_fails_ = absl::ResourceExhaustedError("no process is left");
  const wire::UniqueFd client = CloseOneWith(STDERR_FILENO);
  ASSERT_EQ(troubles_.size(), 1u);
  EXPECT_EQ(troubles_.front(), start_fails_);
  EXPECT_EQ(closer_.n_waiting(), 1u) << "it waits for a thread";
}

}  // namespace
}  // namespace iris::server
