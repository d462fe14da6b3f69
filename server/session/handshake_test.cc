#include "server/session/handshake.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "proto/wire/version.h"

namespace iris::server {
namespace {

constexpr int64_t kPid = 4711;

template <typename P>
wire::Frame MakeFrame(wire::FrameType type, const P& payload, int64_t pid = kPid) {
  wire::Frame frame;
  frame.type = type;
  frame.payload.resize(sizeof(payload));
  std::memcpy(frame.payload.data(), &payload, sizeof(payload));
  frame.sender.pid = static_cast<pid_t>(pid);
  return frame;
}

wire::Frame Hello(uint16_t version_min = wire::kVersion, uint16_t version_max = wire::kVersion) {
  wire::HelloPayload hello;
  hello.version_min = version_min;
  hello.version_max = version_max;
  return MakeFrame(wire::FrameType::kHello, hello);
}

wire::NoncePayload Nonce() {
  wire::NoncePayload nonce;
  for (size_t i = 0; i < sizeof(nonce.nonce); ++i) nonce.nonce[i] = static_cast<uint8_t>(3 * i);
  return nonce;
}

Handshake Make(bool attested) {
  Handshake::Start start;
  start.pid = kPid;
  start.attested = attested;
  start.nonce = Nonce();
  start.now = absl::UnixEpoch();
  start.timeout = absl::Seconds(5);
  return Handshake(start);
}

using Step = absl::StatusOr<Handshake::Step>;

void ExpectOpen(const Step& step) {
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, Handshake::Step::kOpen);
}

void ExpectRefused(const Step& step, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(step.status().code(), code) << step.status();
  EXPECT_TRUE(absl::StrContains(step.status().message(), text)) << step.status();
}

TEST(HandshakeTest, AHelloOpensIfTheKernelGaveThePidfd) { ExpectOpen(Make(true).OnFrame(Hello())); }

TEST(HandshakeTest, AnyRangeWithTheVersionWillDo) {
  ExpectOpen(Make(true).OnFrame(Hello(0, 9)));
  ExpectOpen(Make(true).OnFrame(Hello(wire::kVersion, 9)));
  ExpectOpen(Make(true).OnFrame(Hello(0, wire::kVersion)));
}

TEST(HandshakeTest, ARangeWithoutTheVersionIsRefusedAndToldWhichThereIs) {
  ExpectRefused(Make(true).OnFrame(Hello(7, 9)), absl::StatusCode::kFailedPrecondition,
                "versions 7 to 9, irisd");
  ExpectRefused(Make(true).OnFrame(Hello(0, 0)), absl::StatusCode::kFailedPrecondition,
                "speaks version 1");
  // The wrong way round.
  ExpectRefused(Make(true).OnFrame(Hello(2, 1)), absl::StatusCode::kFailedPrecondition,
                "versions 2 to 1");
  // The version is looked at before the client has to prove anything.
  ExpectRefused(Make(false).OnFrame(Hello(7, 9)), absl::StatusCode::kFailedPrecondition, "7 to 9");
}

TEST(HandshakeTest, WithoutAPidfdTheNonceMustComeBack) {
  Handshake handshake = Make(false);
  const Step step = handshake.OnFrame(Hello());
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(*step, Handshake::Step::kChallenge);
  const wire::NoncePayload nonce = handshake.nonce();
  EXPECT_EQ(std::memcmp(nonce.nonce, Nonce().nonce, sizeof(nonce.nonce)), 0);
  ExpectOpen(handshake.OnFrame(MakeFrame(wire::FrameType::kChallengeReply, nonce)));
}

TEST(HandshakeTest, ANonceThatDiffersInOneBitIsRefused) {
  for (const size_t at : {size_t{0}, sizeof(wire::NoncePayload) - 1}) {
    Handshake handshake = Make(false);
    (void)handshake.OnFrame(Hello());
    wire::NoncePayload changed = Nonce();
    changed.nonce[at] ^= 1;
    ExpectRefused(handshake.OnFrame(MakeFrame(wire::FrameType::kChallengeReply, changed)),
                  absl::StatusCode::kPermissionDenied, "came back changed");
  }
}

TEST(HandshakeTest, AForeignSenderIsRefusedInEveryState) {
  wire::Frame hello = Hello();
  hello.sender.pid = kPid + 1;
  ExpectRefused(Make(true).OnFrame(hello), absl::StatusCode::kPermissionDenied,
                "a message of process 4712 on the session of process 4711");
  Handshake handshake = Make(false);
  (void)handshake.OnFrame(Hello());
  // The nonce is right: the sender still is not the process that connected.
  ExpectRefused(handshake.OnFrame(MakeFrame(wire::FrameType::kChallengeReply, Nonce(), kPid + 1)),
                absl::StatusCode::kPermissionDenied, "process 4712");
  // Where the kernel says nothing, nobody is the right one.
  wire::Frame unknown = Hello();
  unknown.sender.pid = 0;
  ExpectRefused(Make(true).OnFrame(unknown), absl::StatusCode::kPermissionDenied, "process 0");
}

TEST(HandshakeTest, DescriptorsAreRefused) {
  wire::Frame hello = Hello();
  hello.fds.emplace_back();
  ExpectRefused(Make(true).OnFrame(hello), absl::StatusCode::kInvalidArgument,
                "descriptors came that nobody asked for");
}

TEST(HandshakeTest, AWrongFrameIsRefusedInEveryState) {
  ExpectRefused(Make(true).OnFrame(MakeFrame(wire::FrameType::kAck, wire::AckPayload{1})),
                absl::StatusCode::kInvalidArgument, "type 7 where only type 1");
  ExpectRefused(Make(false).OnFrame(MakeFrame(wire::FrameType::kChallengeReply, Nonce())),
                absl::StatusCode::kInvalidArgument, "type 3 where only type 1");
  Handshake handshake = Make(false);
  (void)handshake.OnFrame(Hello());
  ExpectRefused(handshake.OnFrame(Hello()), absl::StatusCode::kInvalidArgument,
                "type 1 where only type 3");
}

TEST(HandshakeTest, AFrameOfTheWrongLengthIsRefusedInEveryState) {
  wire::Frame hello = Hello();
  hello.payload.pop_back();
  ExpectRefused(Make(true).OnFrame(hello), absl::StatusCode::kInvalidArgument, "wrong length");
  Handshake handshake = Make(false);
  (void)handshake.OnFrame(Hello());
  wire::Frame reply = MakeFrame(wire::FrameType::kChallengeReply, Nonce());
  reply.payload.push_back(0);
  ExpectRefused(handshake.OnFrame(reply), absl::StatusCode::kInvalidArgument, "wrong length");
}

TEST(HandshakeTest, TheTimeOfAHandshakeIsBounded) {
  const Handshake handshake = Make(true);
  EXPECT_EQ(handshake.deadline(), absl::UnixEpoch() + absl::Seconds(5));
  ExpectRefused(handshake.OnDeadline(), absl::StatusCode::kDeadlineExceeded, "within 5s");
}

TEST(HandshakeTest, AChallengeDoesNotRenewTheTime) {
  Handshake handshake = Make(false);
  (void)handshake.OnFrame(Hello());
  EXPECT_EQ(handshake.deadline(), absl::UnixEpoch() + absl::Seconds(5));
}

TEST(WelcomeTest, SaysWhoIrisdIs) {
  const wire::WelcomePayload welcome = MakeWelcome(11, 22, "emu");
  EXPECT_EQ(welcome.session_id, 11u);
  EXPECT_EQ(welcome.daemon_id, 22u);
  EXPECT_STREQ(welcome.daemon_version, wire::kIrisVersion);
  EXPECT_STREQ(welcome.backend, "emu");
}

TEST(WelcomeTest, CutsWhatIsTooLong) {
  EXPECT_EQ(std::string(MakeWelcome(1, 2, std::string(100, 'x')).backend), std::string(15, 'x'));
}

}  // namespace
}  // namespace iris::server
