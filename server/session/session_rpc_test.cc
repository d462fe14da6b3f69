#include "server/session/session_rpc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"

namespace iris::server {
namespace {

using ::testing::HasSubstr;
using Flushed = Outbox::Flushed;

constexpr absl::Duration kInterval = absl::Milliseconds(wire::kRpcSocketIntervalMs);

// Serves nothing, but records its arguments.
class FakeHost : public RpcHost {
 public:
  absl::StatusOr<uint64_t> Connect(wire::UniqueFd* socket, const RpcPeer& peer,
                                   std::function<void()> closed) override {
    EXPECT_EQ(closed, nullptr) << "the end of a session's connection ends nothing";
    sockets.push_back(std::move(*socket));
    peers.push_back(peer);
    return sockets.size();
  }
  void Disconnect(uint64_t connection) override { sockets[connection - 1].Reset(); }
  uint64_t Look(int, const Party&, std::function<void(const absl::Status&)>) override {
    ADD_FAILURE() << "this host looks at nothing";
    return 0;
  }
  void Forget(uint64_t) override {}
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  void RunDeadlines(absl::Time) override {}
  void Stop(absl::Duration) override {}

  std::vector<wire::UniqueFd> sockets;
  std::vector<RpcPeer> peers;
};

class SessionRpcTest : public ::testing::Test {
 protected:
  SessionRpcTest() {
    RpcPeer peer;
    peer.session = SessionId{7};
    peer.caller = CallerInfo{.pid = 5, .party = {6}};
    rpc_.emplace(&host_, peer);
  }

  static wire::Frame Request() {
    wire::Frame frame;
    frame.type = wire::FrameType::kRpcRequest;
    return frame;
  }
  absl::StatusOr<Flushed> Flush() {
    return rpc_->Flush(now_, outbox_, [this](int fd) {
      if (sent_.ok()) got_.emplace_back(dup(fd));
      return sent_;
    });
  }
  // Asked for and given at once.
  void Renew() {
    ASSERT_TRUE(rpc_->Ask(Request()).ok());
    EXPECT_EQ(Flush().value(), Flushed::kIdle);
  }
  // Returns true if the other end of `fd` is closed.
  static bool HungUp(const wire::UniqueFd& fd) {
    char byte;
    return recv(fd.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

  FakeHost host_;
  std::vector<wire::UniqueFd> got_;  // what the client would
  InFlight in_flight_{AdmissionLimits()};
  Outbox outbox_{InFlight::Hold(&in_flight_, Applicant())};
  absl::Status sent_;
  absl::Time now_ = absl::UnixEpoch();
  std::optional<SessionRpc> rpc_;
};

TEST_F(SessionRpcTest, BothEndsAreConnectedAndCallsAreTheSessions) {
  const absl::StatusOr<wire::UniqueFd> theirs = rpc_->Make();
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  ASSERT_EQ(host_.sockets.size(), 1u);
  ASSERT_EQ(write(theirs->get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(host_.sockets[0].get(), &byte, 1), 1);
  EXPECT_EQ(host_.peers[0].session, SessionId{7});
  EXPECT_EQ(host_.peers[0].caller.pid, 5);
}

TEST_F(SessionRpcTest, ItsHangUpGivesNoOtherOneBeforeItIsAskedFor) {
  auto theirs = rpc_->Make();
  ASSERT_TRUE(theirs.ok());
  theirs->Reset();
  EXPECT_EQ(Flush().value(), Flushed::kIdle) << "nobody asked for another one yet";
  EXPECT_TRUE(got_.empty());
  Renew();
  EXPECT_EQ(got_.size(), 1u);
  EXPECT_EQ(host_.peers.size(), 2u);
  EXPECT_FALSE(host_.sockets[0].valid());
  EXPECT_TRUE(host_.sockets[1].valid());
  EXPECT_EQ(outbox_.n_in_flight(), 1u) << "the client has to acknowledge it";
}

TEST_F(SessionRpcTest, AskingClosesTheOneBeforeAtOnce) {
  const auto first = rpc_->Make();
  ASSERT_TRUE(rpc_->Ask(Request()).ok());
  EXPECT_TRUE(HungUp(*first));
}

TEST_F(SessionRpcTest, AskingAgainBeforeTheAnswerIsAgainstTheRules) {
  ASSERT_TRUE(rpc_->Ask(Request()).ok());
  const absl::Status again = rpc_->Ask(Request());
  EXPECT_TRUE(absl::IsInvalidArgument(again));
  EXPECT_THAT(std::string(again.message()), HasSubstr("wait for kRpcSocket"));
}

TEST_F(SessionRpcTest, ARequestHasNoPayload) {
  wire::Frame frame = Request();
  frame.payload.push_back(0);
  EXPECT_TRUE(absl::IsInvalidArgument(rpc_->Ask(frame)));
}

TEST_F(SessionRpcTest, BeyondTheBurstTheAnswerWaitsUntilItIsDue) {
  for (uint32_t i = 0; i < wire::kRpcSocketBurst; ++i) Renew();
  ASSERT_TRUE(rpc_->Ask(Request()).ok());
  EXPECT_EQ(Flush().value(), Flushed::kBlocked);
  now_ += kInterval - absl::Nanoseconds(1);
  EXPECT_EQ(Flush().value(), Flushed::kBlocked);
  now_ += absl::Nanoseconds(1);
  EXPECT_EQ(Flush().value(), Flushed::kIdle);
  EXPECT_EQ(got_.size(), wire::kRpcSocketBurst + 1);
}

TEST_F(SessionRpcTest, WaitsForRoomInTheWindow) {
  for (uint32_t i = 0; i < wire::kDescriptorWindow; ++i) outbox_.CountSent();
  ASSERT_TRUE(rpc_->Ask(Request()).ok());
  EXPECT_EQ(Flush().value(), Flushed::kBlocked);
  EXPECT_TRUE(host_.sockets.empty()) << "nothing is made before it can be sent";
  ASSERT_TRUE(outbox_.Acknowledge(1).ok());
  EXPECT_EQ(Flush().value(), Flushed::kBlocked) << "it is said to be received, and is not";
  outbox_.Look({nullptr, [] { return true; }});
  EXPECT_EQ(Flush().value(), Flushed::kIdle);
  EXPECT_EQ(got_.size(), 1u);
}

TEST_F(SessionRpcTest, WhatCannotBeSentNowIsTriedAgain) {
  ASSERT_TRUE(rpc_->Ask(Request()).ok());
  sent_ = absl::ResourceExhaustedError("full");
  EXPECT_EQ(Flush().value(), Flushed::kBlocked);
  sent_ = absl::OkStatus();
  EXPECT_EQ(Flush().value(), Flushed::kIdle);
  EXPECT_EQ(got_.size(), 1u);
}

TEST_F(SessionRpcTest, AClientThatIsGoneIsNoError) {
  ASSERT_TRUE(rpc_->Ask(Request()).ok());
  sent_ = absl::UnavailableError("gone");
  EXPECT_EQ(Flush().value(), Flushed::kIdle);
}

TEST_F(SessionRpcTest, ItsEndClosesTheSocketForGrpcToo) {
  const auto theirs = rpc_->Make();
  rpc_.reset();
  EXPECT_TRUE(HungUp(*theirs));
}

}  // namespace
}  // namespace iris::server
