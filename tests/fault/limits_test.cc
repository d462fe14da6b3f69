// Running out: 10,000 connections against an irisd with few descriptors, and the limits per tenant.
// What does not fit is refused with a reason; once there is room again, service is as before.
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "server/session/testing/slow_socket.h"
#include "tests/fault/fault_fixture.h"

namespace iris::testing {
namespace {

constexpr int kConnections = 10'000;

class LimitsTest : public FaultTest {
 protected:
  void SetUp() override {}  // each test starts its own irisd

  // Serves again, at the latest when the handshakes of silent connections have timed out.
  void ExpectServiceReturns() {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    absl::Status last;
    while (absl::Now() < deadline) {
      auto session = RawSession::Open(daemon_->session_socket());
      last = session.status();
      if (last.ok()) return;
      absl::SleepFor(absl::Milliseconds(20));
    }
    FAIL() << last;
  }
};

TEST_F(LimitsTest, TenThousandSilentConnectionsAndThenNormalService) {
  StartDaemon({.max_open_files = 256});
  std::vector<wire::UniqueFd> held;
  int connected = 0;
  for (int i = 0; i < kConnections; ++i) {
    auto socket = Connect(daemon_->session_socket(), SOCK_SEQPACKET);
    if (!socket.ok()) continue;
    ++connected;
    // Hold as many as this process may; the rest come and go.
    if (held.size() < 400) held.push_back(*std::move(socket));
  }
  EXPECT_GT(connected, 0);
  EXPECT_TRUE(daemon_->alive()) << daemon_->Log();
  held.clear();
  ExpectServiceReturns();
}

TEST_F(LimitsTest, TenThousandSessionsUntilDescriptorsRunOutAndThenNormalService) {
  StartDaemon({.max_open_files = 256});
  std::vector<std::unique_ptr<RawSession>> held;
  int opened = 0, refused = 0;
  absl::Status refusal;
  for (int i = 0; i < kConnections; ++i) {
    // A refusal is quick; after a few hundred of them in a row nothing new is learnt from the slow
    // ones.
    auto session = RawSession::Open(daemon_->session_socket());
    if (session.ok()) {
      ++opened;
      held.push_back(*std::move(session));
    } else {
      ++refused;
      refusal = session.status();
    }
  }
  EXPECT_GT(opened, 8);
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(refusal) || absl::IsUnavailable(refusal)) << refusal;
  EXPECT_TRUE(daemon_->alive()) << daemon_->Log();
  held.clear();
  ExpectServiceReturns();
}

TEST_F(LimitsTest, TheAdminSocketRecoversToo) {
  StartDaemon({.max_open_files = 256});
  std::vector<wire::UniqueFd> held;
  for (int i = 0; i < 600; ++i) {
    auto socket = Connect(daemon_->admin_socket(), SOCK_STREAM);
    if (socket.ok()) held.push_back(*std::move(socket));
  }
  held.clear();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  absl::Status last;
  while (absl::Now() < deadline) {
    last = daemon_->GetStatus().status();
    if (last.ok()) break;
  }
  EXPECT_TRUE(last.ok()) << last;
}

TEST_F(LimitsTest, TheLimitOfSessionsPerUidIsSaidAndLifted) {
  StartDaemon({.flags = {"--max-sessions-per-tenant", "4"}});
  std::vector<std::unique_ptr<RawSession>> held;
  for (int i = 0; i < 4; ++i) held.push_back(OpenSession());
  auto fifth = RawSession::Open(daemon_->session_socket());
  EXPECT_EQ(fifth.status().code(), absl::StatusCode::kResourceExhausted) << fifth.status();
  EXPECT_TRUE(absl::StrContains(fifth.status().message(), "4")) << fifth.status();
  held.pop_back();
  ExpectServiceReturns();
}

// Sessions that end over what they send, which does not close: none of that becomes irisd's.
TEST_F(LimitsTest, SessionsThatSendWhatDoesNotCloseCostIrisdNothing) {
  constexpr int kMostClosing = 8;
  StartDaemon({.flags = {"--max-closing-per-tenant", std::to_string(kMostClosing)}});
  auto before = OpenSession();
  const int fds = daemon_->OpenFds();
  std::vector<SlowSocket> slow;
  for (int i = 0; i < 24; ++i) {
    auto session = OpenSession();
    const int fd = slow.emplace_back(600).socket.get();
    ASSERT_TRUE(
        wire::SendFrame(session->socket(), wire::FrameType::kAck, wire::AckPayload{}, {&fd, 1})
            .ok());
    slow.back().socket.Reset();
    const auto told =
        Require(ReceiveFrameBefore(session->socket(), absl::Now() + absl::Seconds(60)));
    ASSERT_EQ(told.type, wire::FrameType::kError);
    const absl::Status why = wire::StatusFromErrorPayload(*told.As<wire::ErrorPayload>());
    // A busy machine may not have seen the end of the earlier ones, which is the other reason.
    EXPECT_TRUE(absl::StrContains(why.message(), "its close may wait for others") ||
                (i >= kMostClosing && absl::IsResourceExhausted(why) &&
                 absl::StrContains(why.message(), "too many that it was sent do not close")))
        << why;
  }
  EXPECT_LE(daemon_->OpenFds(), fds + 12);  // the links of two processes, and the last sessions
  const auto joined = before->Join(before->JoinRequest("before", 0, 1));
  EXPECT_TRUE(joined.ok()) << joined.status();
  slow.clear();
  ExpectServiceReturns();
}

// Connections that irisd refuses, and that bring what does not close: none of them stays irisd's,
// however many there are.
TEST_F(LimitsTest, RefusedConnectionsThatDoNotCloseCostIrisdNothing) {
  StartDaemon({.max_open_files = 256});
  const int before = daemon_->OpenFds();
  std::vector<SlowSocket> slow;
  constexpr int kRounds = 4, kAtOnce = 200;
  for (int round = 0; round < kRounds; ++round) {
    // They have said what they say before irisd looks.
    ASSERT_TRUE(daemon_->Suspend().ok());
    std::vector<wire::UniqueFd> clients;
    for (int i = 0; i < kAtOnce; ++i) {
      auto socket = Require(Connect(daemon_->session_socket(), SOCK_SEQPACKET));
      if (i == 0) slow.emplace_back(600);
      SendFd(socket.get(), i == 0 ? slow.back().socket.get() : STDERR_FILENO);
      if (i == 0) slow.back().socket.Reset();
      clients.push_back(std::move(socket));
    }
    ASSERT_TRUE(daemon_->Resume().ok());
    for (const wire::UniqueFd& client : clients) {
      const auto frame = Require(ReceiveFrameBefore(client.get(), absl::Now() + absl::Seconds(60)));
      EXPECT_EQ(frame.type, wire::FrameType::kError);
    }
    EXPECT_LE(daemon_->OpenFds(), before + 64);
  }
  auto status = Require(daemon_->GetStatus());
  EXPECT_GE(status.closing_troubles_total(), 1u);
  EXPECT_TRUE(absl::StrContains(daemon_->Log(), "connections of clients are slow to close"))
      << daemon_->Log();
  // It ends, whatever hangs.
  const absl::Time start = absl::Now();
  EXPECT_EQ(Require(daemon_->Stop(absl::Seconds(60))), 0);
  EXPECT_LT(absl::Now() - start, absl::Seconds(300));
  daemon_.reset();
}

TEST_F(LimitsTest, AHeapBeyondTheDeviceSaysWhoHoldsTheRest) {
  StartDaemon({.n_devices = 1, .device_memory = "64MiB"});
  auto holder = OpenSession();
  Require(holder->Join(holder->JoinRequest("holder", 0, 1, 48 << 20)));
  auto second = OpenSession();
  auto refused = second->Join(second->JoinRequest("second", 0, 1, 32 << 20));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_TRUE(absl::StrContains(refused.status().message(), "holder")) << refused.status();
  EXPECT_TRUE(second->Join(second->JoinRequest("second", 0, 1, 16 << 20)).ok());
}

TEST_F(LimitsTest, NonceAttestationServesAsWell) {
  StartDaemon({.flags = {"--attestation", "nonce"}});
  auto status = Require(daemon_->GetStatus());
  EXPECT_EQ(status.attestation(), "nonce");
}

}  // namespace
}  // namespace iris::testing
