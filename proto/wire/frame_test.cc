#include "proto/wire/frame.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "device/base/descriptors.h"
#include "tests/cc/require.h"

namespace iris::wire {
namespace {

using iris::testing::Require;

using absl::StatusCode;

class FrameTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    a_.Reset(fds[0]);
    b_.Reset(fds[1]);
    const int on = 1;
    ASSERT_EQ(setsockopt(b_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
  }

  void SendRaw(const void* data, size_t n_bytes, int n_fds = 0) {
    struct iovec part = {const_cast<void*>(data), n_bytes};
    struct msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::vector<char> control(CMSG_SPACE(sizeof(int) * static_cast<size_t>(n_fds)));
    if (n_fds > 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      struct cmsghdr* c = CMSG_FIRSTHDR(&message);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int) * static_cast<size_t>(n_fds));
      for (int i = 0; i < n_fds; ++i) {
        const int fd = a_.get();
        std::memcpy(CMSG_DATA(c) + sizeof(int) * static_cast<size_t>(i), &fd, sizeof(int));
      }
    }
    ASSERT_EQ(sendmsg(a_.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(n_bytes));
  }

  void ExpectRefused(const absl::StatusOr<Frame>& frame, StatusCode code, const std::string& text) {
    ASSERT_FALSE(frame.ok());
    EXPECT_EQ(frame.status().code(), code) << frame.status();
    EXPECT_NE(frame.status().message().find(text), absl::string_view::npos) << frame.status();
  }

  UniqueFd a_, b_;
};

TEST_F(FrameTest, CarriesAPayload) {
  AckPayload ack;
  ack.count = 7;
  ASSERT_TRUE(SendFrame(a_.get(), FrameType::kAck, ack).ok());
  auto frame = Require(ReceiveFrame(b_.get()));
  EXPECT_EQ(frame.type, FrameType::kAck);
  ASSERT_TRUE(frame.As<AckPayload>().ok());
  EXPECT_EQ(frame.As<AckPayload>()->count, 7u);
  EXPECT_TRUE(frame.fds.empty());
}

TEST_F(FrameTest, CarriesEveryPayloadAtItsFullSize) {
  EXPECT_TRUE(SendFrame(a_.get(), FrameType::kError, ErrorPayload()).ok());
  EXPECT_TRUE(SendFrame(a_.get(), FrameType::kDescriptors, DescriptorsPayload()).ok());
  EXPECT_EQ(ReceiveFrame(b_.get())->payload.size(), sizeof(ErrorPayload));
  EXPECT_EQ(ReceiveFrame(b_.get())->payload.size(), sizeof(DescriptorsPayload));
}

TEST_F(FrameTest, CarriesAStructAndTheBytesBehindIt) {
  const std::string longest(kMaxCallFrameBytes, 'x');
  CallPayload call;
  call.call = 7;
  for (const std::string& bytes : {std::string(), std::string("request"), longest}) {
    ASSERT_TRUE(SendFrame(a_.get(), FrameType::kCall, call, bytes).ok());
    const auto frame = Require(ReceiveFrame(b_.get()));
    const auto parts = Require(frame.Split<CallPayload>());
    EXPECT_EQ(parts.first.call, 7u);
    EXPECT_TRUE(parts.second == bytes);
    EXPECT_FALSE(frame.Split<ErrorPayload>().ok() && bytes.empty()) << "shorter than the struct";
  }
  EXPECT_FALSE(SendFrame(a_.get(), FrameType::kCall, call, longest + "x").ok());
}

TEST_F(FrameTest, CarriesNothingButADescriptor) {
  ASSERT_TRUE(SendEmptyFrame(a_.get(), FrameType::kRpcRequest).ok());
  const int fds[] = {a_.get()};
  ASSERT_TRUE(SendEmptyFrame(a_.get(), FrameType::kRpcSocket, fds).ok());
  auto request = Require(ReceiveFrame(b_.get()));
  EXPECT_EQ(request.type, FrameType::kRpcRequest);
  EXPECT_TRUE(request.payload.empty() && request.fds.empty());
  auto socket = Require(ReceiveFrame(b_.get()));
  EXPECT_EQ(socket.type, FrameType::kRpcSocket);
  EXPECT_TRUE(socket.payload.empty());
  EXPECT_EQ(socket.fds.size(), 1u);
}

TEST_F(FrameTest, TellsTheSender) {
  ASSERT_TRUE(SendFrame(a_.get(), FrameType::kHello, HelloPayload()).ok());
  auto frame = Require(ReceiveFrame(b_.get()));
  EXPECT_EQ(frame.sender.pid, getpid());
  EXPECT_EQ(frame.sender.uid, getuid());
}

TEST_F(FrameTest, TellsThatAForkedChildSent) {
  const pid_t child = fork();
  if (child == 0) _exit(SendFrame(a_.get(), FrameType::kAck, AckPayload()).ok() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  absl::StatusOr<Frame> frame = ReceiveFrame(b_.get());
  ASSERT_TRUE(frame.ok());
  EXPECT_EQ(frame->sender.pid, child);
}

TEST_F(FrameTest, SenderIsZeroWithoutPasscred) {
  ASSERT_TRUE(SendFrame(b_.get(), FrameType::kAck, AckPayload()).ok());
  auto frame = Require(ReceiveFrame(a_.get()));
  EXPECT_EQ(frame.sender.pid, 0);
}

TEST_F(FrameTest, CarriesDescriptorsThatAreCloseOnExec) {
  UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int fds[] = {null.get(), null.get(), a_.get()};
  ASSERT_TRUE(SendFrame(a_.get(), FrameType::kDescriptors, DescriptorsPayload(), fds).ok());
  auto frame = Require(ReceiveFrame(b_.get()));
  ASSERT_EQ(frame.fds.size(), 3u);
  for (const UniqueFd& fd : frame.fds) EXPECT_EQ(fcntl(fd.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(FrameTest, CarriesAFullFrameOfDescriptors) {
  const std::vector<int> fds(kMaxDescriptorsPerCall, a_.get());
  ASSERT_TRUE(SendFrame(a_.get(), FrameType::kDescriptors, DescriptorsPayload(), fds).ok());
  auto frame = Require(ReceiveFrame(b_.get()));
  EXPECT_EQ(frame.fds.size(), kMaxDescriptorsPerCall);
}

TEST_F(FrameTest, RefusesToSendTooManyDescriptors) {
  const std::vector<int> fds(kMaxDescriptorsPerCall + 1, a_.get());
  EXPECT_EQ(SendFrame(a_.get(), FrameType::kDescriptors, DescriptorsPayload(), fds).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(FrameTest, RefusesToSendTooLargeAPayload) {
  const std::vector<uint8_t> payload(kMaxPayloadBytes + 1);
  EXPECT_EQ(SendFrame(a_.get(), FrameType::kHello, absl::MakeConstSpan(payload)).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(FrameTest, ClosesDescriptorsOfADroppedFrame) {
  const int before = base::CountDescriptors();
  const int fds[] = {a_.get(), a_.get()};
  ASSERT_TRUE(SendFrame(a_.get(), FrameType::kAck, AckPayload(), fds).ok());
  { ASSERT_TRUE(ReceiveFrame(b_.get()).ok()); }
  EXPECT_EQ(base::CountDescriptors(), before);
}

TEST_F(FrameTest, ClosesDescriptorsOfARefusedFrame) {
  const int before = base::CountDescriptors();
  SendRaw("garbage that is no frame at all", 31, 5);
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kInvalidArgument, "magic");
  EXPECT_EQ(base::CountDescriptors(), before);
}

TEST_F(FrameTest, RefusesAndClosesMoreDescriptorsThanTheLimit) {
  const int before = base::CountDescriptors();
  FrameHeader header;
  header.type = static_cast<uint16_t>(FrameType::kAck);
  SendRaw(&header, sizeof(header), 200);
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kInvalidArgument, "descriptors");
  EXPECT_EQ(base::CountDescriptors(), before);
}

TEST_F(FrameTest, AnEmptySocketHasNoFrameYet) {
  absl::StatusOr<Frame> frame = ReceiveFrame(b_.get());
  ASSERT_FALSE(frame.ok());
  EXPECT_TRUE(IsNoFrameYet(frame.status()));
}

TEST_F(FrameTest, AnotherVersionIsNotTakenForAnEmptySocket) {
  EXPECT_FALSE(IsNoFrameYet(absl::FailedPreconditionError("session frame of protocol version 9")));
  EXPECT_FALSE(IsNoFrameYet(absl::OkStatus()));
}

TEST_F(FrameTest, AClosedPeerIsUnavailable) {
  a_.Reset();
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kUnavailable, "closed");
  EXPECT_EQ(SendFrame(b_.get(), FrameType::kAck, AckPayload()).code(), StatusCode::kUnavailable);
}

TEST_F(FrameTest, LastWordsOfAPeerThatDidNotListenArrive) {
  ASSERT_TRUE(SendFrame(b_.get(), FrameType::kHello, HelloPayload()).ok());
  ASSERT_TRUE(SendFrame(a_.get(), FrameType::kError, ErrorPayload()).ok());
  a_.Reset();
  const auto frame = Require(ReceiveFrame(b_.get()));
  EXPECT_EQ(frame.type, FrameType::kError);
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kUnavailable, "closed");
}

TEST_F(FrameTest, AnEmptyPacketIsNotTakenForAClosedPeer) {
  SendRaw("", 0);
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kInvalidArgument, "0 bytes");
}

TEST_F(FrameTest, RefusesHalfAHeader) {
  FrameHeader header;
  SendRaw(&header, 7);
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kInvalidArgument, "7 bytes is shorter");
}

TEST_F(FrameTest, RefusesAWrongMagic) {
  FrameHeader header;
  header.magic ^= 1;
  header.type = 1;
  SendRaw(&header, sizeof(header));
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kInvalidArgument, "magic");
}

TEST_F(FrameTest, NamesBothVersions) {
  FrameHeader header;
  header.version = 9;
  header.type = 1;
  SendRaw(&header, sizeof(header));
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kFailedPrecondition, "version 9; this side");
}

TEST_F(FrameTest, RefusesUnknownTypes) {
  for (const uint16_t type : {0, 17, 65535}) {
    FrameHeader header;
    header.type = type;
    SendRaw(&header, sizeof(header));
    ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kInvalidArgument, "unknown type");
  }
}

TEST_F(FrameTest, RefusesAPayloadShorterThanAnnounced) {
  FrameHeader header;
  header.type = 1;
  header.payload_bytes = 40;
  SendRaw(&header, sizeof(header));
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kInvalidArgument, "announces 40 bytes");
}

TEST_F(FrameTest, RefusesAPayloadLongerThanAnnounced) {
  uint8_t bytes[sizeof(FrameHeader) + 8] = {};
  FrameHeader header;
  header.type = 7;
  header.payload_bytes = 4;
  std::memcpy(bytes, &header, sizeof(header));
  SendRaw(bytes, sizeof(bytes));
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kInvalidArgument, "has 8");
}

TEST_F(FrameTest, RefusesAnOversizedPacket) {
  std::vector<uint8_t> bytes(64 << 10, 0xff);
  FrameHeader header;
  header.type = 1;
  header.payload_bytes = (64 << 10) - sizeof(FrameHeader);
  std::memcpy(bytes.data(), &header, sizeof(header));
  SendRaw(bytes.data(), bytes.size());
  ExpectRefused(ReceiveFrame(b_.get()), StatusCode::kInvalidArgument, "longer than the limit");
}

TEST_F(FrameTest, RefusesAPayloadOfAnotherTypesLength) {
  ASSERT_TRUE(SendFrame(a_.get(), FrameType::kHello, AckPayload()).ok());
  auto frame = Require(ReceiveFrame(b_.get()));
  EXPECT_EQ(frame.As<HelloPayload>().status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FrameTest, AFullQueueDoesNotBlock) {
  absl::Status status;
  int sent = 0;
  while (status.ok() && sent < 100000) {
    status = SendFrame(a_.get(), FrameType::kDescriptors, DescriptorsPayload());
    if (status.ok()) ++sent;
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  // Nothing of the refused frame was sent; accepted ones arrive whole.
  for (int i = 0; i < sent; ++i) ASSERT_TRUE(ReceiveFrame(b_.get()).ok());
  EXPECT_TRUE(IsNoFrameYet(ReceiveFrame(b_.get()).status()));
}

TEST(ErrorPayloadTest, RoundTrips) {
  const absl::Status status = absl::AbortedError("rank 3 (pid 7) died");
  EXPECT_EQ(StatusFromErrorPayload(MakeErrorPayload(status)), status);
}

TEST(ErrorPayloadTest, CutsLongTexts) {
  const absl::Status status = absl::InternalError(std::string(5000, 'x'));
  const absl::Status got = StatusFromErrorPayload(MakeErrorPayload(status));
  EXPECT_EQ(got.code(), StatusCode::kInternal);
  EXPECT_EQ(got.message().size(), kMaxErrorTextBytes);
}

TEST(ErrorPayloadTest, BoundsHostileLengthsAndCodes) {
  ErrorPayload payload;
  payload.text_bytes = 0xffffffff;
  payload.code = 12345;
  const absl::Status got = StatusFromErrorPayload(payload);
  EXPECT_EQ(got.code(), StatusCode::kUnknown);
  EXPECT_EQ(got.message().size(), kMaxErrorTextBytes);
  payload.code = 0;  // an error frame is never success
  EXPECT_FALSE(StatusFromErrorPayload(payload).ok());
}

TEST(ErrnoStatusTest, FitsCodesToNumbers) {
  EXPECT_EQ(ErrnoStatus(EMFILE, "x").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(ENOSPC, "x").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoStatus(EACCES, "x").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(EROFS, "x").code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoStatus(ENOENT, "x").code(), StatusCode::kNotFound);
  EXPECT_EQ(ErrnoStatus(ECONNREFUSED, "x").code(), StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoStatus(EPIPE, "x").code(), StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoStatus(EINVAL, "x").code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(ErrnoStatus(0, "x").ok());
}

TEST(ErrnoStatusTest, SaysWhatWasAttempted) {
  EXPECT_EQ(ErrnoStatus(ENOENT, "open /run/iris/lock").message(),
            "open /run/iris/lock: No such file or directory");
}

}  // namespace
}  // namespace iris::wire
