// Hostile and broken clients on the session socket: each gets one clear error, irisd stays up,
// leaks nothing, and serves the next client. What is sent is what a wrong program could send, byte
// for byte.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "grpcpp/create_channel_posix.h"
#include "proto/wire/limits.h"
#include "tests/fault/fault_fixture.h"

namespace iris::testing {
namespace {

using wire::Frame;
using wire::FrameHeader;
using wire::FrameType;

constexpr absl::Duration kPatience = absl::Seconds(20);

std::vector<uint8_t> Packet(FrameHeader header, absl::Span<const uint8_t> payload) {
  std::vector<uint8_t> packet(sizeof(header) + payload.size());
  std::memcpy(packet.data(), &header, sizeof(header));
  if (!payload.empty()) std::memcpy(packet.data() + sizeof(header), payload.data(), payload.size());
  return packet;
}

class SessionFaultTest : public FaultTest {
 protected:
  wire::UniqueFd ConnectSession() {
    auto socket = Connect(daemon_->session_socket(), SOCK_SEQPACKET);
    EXPECT_TRUE(socket.ok()) << socket.status();
    return socket.ok() ? *std::move(socket) : wire::UniqueFd();
  }

  void Send(int socket, absl::Span<const uint8_t> bytes) {
    EXPECT_EQ(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()))
        << std::strerror(errno);
  }

  // The error that irisd sends before it closes.
  absl::Status ErrorThenClosed(int socket) {
    const absl::Time deadline = absl::Now() + kPatience;
    absl::Status error = absl::UnknownError("irisd closed without a word");
    while (true) {
      auto frame = ReceiveFrameBefore(socket, deadline);
      if (!frame.ok()) {
        if (absl::IsUnavailable(frame.status())) return error;
        return frame.status();
      }
      if (frame->type == FrameType::kError) {
        auto payload = frame->As<wire::ErrorPayload>();
        error = payload.ok() ? wire::StatusFromErrorPayload(*payload) : payload.status();
      }
    }
  }
};

TEST_F(SessionFaultTest, HelloForAnUnknownVersionIsToldWhichOnesThereAre) {
  wire::UniqueFd socket = ConnectSession();
  wire::HelloPayload hello;
  hello.version_min = 7;
  hello.version_max = 9;
  ASSERT_TRUE(wire::SendFrame(socket.get(), FrameType::kHello, hello).ok());
  const absl::Status error = ErrorThenClosed(socket.get());
  EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition) << error;
  EXPECT_TRUE(absl::StrContains(error.message(), "7")) << error;
  EXPECT_TRUE(absl::StrContains(error.message(), "1")) << error;
}

TEST_F(SessionFaultTest, HeaderOfAnUnknownVersionIsRefused) {
  wire::UniqueFd socket = ConnectSession();
  FrameHeader header;
  header.version = 9;
  header.type = static_cast<uint16_t>(FrameType::kHello);
  header.payload_bytes = sizeof(wire::HelloPayload);
  const std::vector<uint8_t> payload(sizeof(wire::HelloPayload));
  Send(socket.get(), Packet(header, payload));
  const absl::Status error = ErrorThenClosed(socket.get());
  EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition) << error;
}

TEST_F(SessionFaultTest, WrongMagicIsRefused) {
  wire::UniqueFd socket = ConnectSession();
  FrameHeader header;
  header.magic = 0x50545448;  // "HTTP"
  Send(socket.get(), Packet(header, {}));
  EXPECT_EQ(ErrorThenClosed(socket.get()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionFaultTest, UnknownTypeIsRefused) {
  wire::UniqueFd socket = ConnectSession();
  Send(socket.get(), Packet({.type = 999}, {}));
  EXPECT_EQ(ErrorThenClosed(socket.get()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionFaultTest, HalfAHeaderIsRefused) {
  wire::UniqueFd socket = ConnectSession();
  Send(socket.get(), {0x49, 0x52, 0x49});
  EXPECT_EQ(ErrorThenClosed(socket.get()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionFaultTest, AFrameShorterThanItSaysIsRefused) {
  wire::UniqueFd socket = ConnectSession();
  FrameHeader header;
  header.type = static_cast<uint16_t>(FrameType::kHello);
  header.payload_bytes = sizeof(wire::HelloPayload);
  const std::vector<uint8_t> half(sizeof(wire::HelloPayload) / 2);
  Send(socket.get(), Packet(header, half));
  EXPECT_EQ(ErrorThenClosed(socket.get()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionFaultTest, AFrameLongerThanAnyIsRefused) {
  wire::UniqueFd socket = ConnectSession();
  FrameHeader header;
  header.type = static_cast<uint16_t>(FrameType::kHello);
  header.payload_bytes = 60'000;
  const std::vector<uint8_t> big(60'000);
  Send(socket.get(), Packet(header, big));
  EXPECT_EQ(ErrorThenClosed(socket.get()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionFaultTest, HelloTwiceEndsTheSession) {
  auto session = OpenSession();
  ASSERT_TRUE(wire::SendFrame(session->socket(), FrameType::kHello, wire::HelloPayload{}).ok());
  EXPECT_EQ(ErrorThenClosed(session->socket()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionFaultTest, AcknowledgingWhatWasNeverSentEndsTheSession) {
  auto session = OpenSession();
  ASSERT_TRUE(
      wire::SendFrame(session->socket(), FrameType::kAck, wire::AckPayload{1'000'000}).ok());
  EXPECT_EQ(ErrorThenClosed(session->socket()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionFaultTest, AClientThatConnectsAndSaysNothingIsClosedInTime) {
  wire::UniqueFd silent = ConnectSession();
  wire::UniqueFd second = ConnectSession();
  // Meanwhile others are served.
  ServeOneClient();
  EXPECT_EQ(ErrorThenClosed(silent.get()).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorThenClosed(second.get()).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SessionFaultTest, DescriptorsNobodyAskedForAreClosedAndEndTheSession) {
  auto session = OpenSession();
  std::vector<int> fds;
  std::vector<wire::UniqueFd> owned;
  for (int i = 0; i < 200; ++i) {
    owned.emplace_back(::memfd_create("unasked", MFD_CLOEXEC));
    fds.push_back(owned.back().get());
  }
  std::vector<uint8_t> packet = Packet(
      {.type = static_cast<uint16_t>(FrameType::kAck), .payload_bytes = sizeof(wire::AckPayload)},
      std::vector<uint8_t>(sizeof(wire::AckPayload)));
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  struct iovec data = {packet.data(), packet.size()};
  struct msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  struct cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  ASSERT_GT(::sendmsg(session->socket(), &message, MSG_NOSIGNAL), 0) << std::strerror(errno);
  EXPECT_EQ(ErrorThenClosed(session->socket()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionFaultTest, DescriptorsInTheHelloAreClosedToo) {
  wire::UniqueFd socket = ConnectSession();
  wire::UniqueFd gift(::memfd_create("unasked", MFD_CLOEXEC));
  const wire::HelloPayload hello;
  const int fds[] = {gift.get()};
  ASSERT_TRUE(wire::SendFrame(
                  socket.get(), FrameType::kHello,
                  absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(&hello), sizeof(hello)), fds)
                  .ok());
  EXPECT_EQ(ErrorThenClosed(socket.get()).code(), absl::StatusCode::kInvalidArgument);
}

// The gRPC socket of a session, and those that come after it.

class RpcSocketFaultTest : public SessionFaultTest {
 protected:
  static absl::Status AskForSocket(RawSession& session) {
    return wire::SendEmptyFrame(session.socket(), FrameType::kRpcRequest);
  }
  // The heap service on the socket that irisd sends next, which is acknowledged.
  std::unique_ptr<iris::v1::HeapService::Stub> NextSocket(RawSession& session) {
    auto frame = ReceiveFrameBefore(session.socket(), absl::Now() + kPatience);
    EXPECT_TRUE(frame.ok()) << frame.status();
    if (!frame.ok() || frame->type != FrameType::kRpcSocket || frame->fds.size() != 1 ||
        !frame->payload.empty()) {
      ADD_FAILURE() << "no kRpcSocket with one descriptor";
      return nullptr;
    }
    EXPECT_TRUE(wire::SendFrame(session.socket(), FrameType::kAck, wire::AckPayload{1}).ok());
    const int fd = frame->fds[0].Release();
    EXPECT_EQ(::fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return iris::v1::HeapService::NewStub(grpc::CreateInsecureChannelFromFd("irisd", fd));
  }
  static grpc::Status Allocate(iris::v1::HeapService::Stub& heap, const Joined& joined,
                               uint64_t k) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const iris::v1::OperateRequest request =
        AllocateRequestOf(joined.session->id(), joined.reply, k, 4096, "");
    iris::v1::OperateReply reply;
    const grpc::Status status = heap.Operate(&context, request, &reply);
    EXPECT_EQ(reply.outcome().code(), 0u) << reply.outcome().text();
    return status;
  }
};

TEST_F(RpcSocketFaultTest, ALostOneIsReplacedAndTheRankIsStillThere) {
  Joined joined = JoinAlone("lost");
  for (uint64_t k = 0; k < 3; ++k) {
    ASSERT_TRUE(AskForSocket(*joined.session).ok());
    const auto heap = NextSocket(*joined.session);
    ASSERT_NE(heap, nullptr);
    const grpc::Status status = Allocate(*heap, joined, k);
    EXPECT_TRUE(status.ok()) << status.error_message();
    // The one before is closed.
    EXPECT_EQ(Allocate(joined.session->heap(), joined, k + 1).error_code(),
              grpc::StatusCode::UNAVAILABLE);
    if (k < 2) continue;
    grpc::ClientContext context;
    iris::v1::LeaveReply left;
    EXPECT_TRUE(
        heap->Leave(&context, LeaveRequestOf(joined.session->id(), joined.reply), &left).ok());
  }
  joined.reply.clear_job_id();  // it has left
  EXPECT_FALSE(absl::StrContains(daemon_->Log(), "rank_hung_up")) << daemon_->Log();
}

TEST_F(RpcSocketFaultTest, BeyondTheBurstTheyComeSlowly) {
  auto session = OpenSession();
  const absl::Time start = absl::Now();
  for (uint32_t i = 0; i < wire::kRpcSocketBurst + 2; ++i) {
    ASSERT_TRUE(AskForSocket(*session).ok());
    ASSERT_NE(NextSocket(*session), nullptr);
  }
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(2 * wire::kRpcSocketIntervalMs - 10));
}

TEST_F(RpcSocketFaultTest, WhoAsksAgainBeforeTheAnswerIsHungUpOn) {
  auto session = OpenSession();
  for (uint32_t i = 0; i < wire::kRpcSocketBurst + 2; ++i) {
    // The last of them ask while one waits for its time.
    if (!AskForSocket(*session).ok()) break;
  }
  const absl::Status error = ErrorThenClosed(session->socket());
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument) << error;
  EXPECT_TRUE(absl::StrContains(error.message(), "wait for kRpcSocket")) << error;
}

TEST_F(RpcSocketFaultTest, ARequestWithAPayloadEndsTheSession) {
  auto session = OpenSession();
  ASSERT_TRUE(wire::SendFrame(session->socket(), FrameType::kRpcRequest, wire::AckPayload{1}).ok());
  EXPECT_EQ(ErrorThenClosed(session->socket()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RpcSocketFaultTest, OnesThatNobodyReadsAreBounded) {
  auto session = OpenSession();
  const int fds = daemon_->OpenFds();
  for (uint32_t i = 0; i < wire::kRpcSocketBurst; ++i) ASSERT_TRUE(AskForSocket(*session).ok());
  // Each closes the one before, so irisd holds no more than before.
  ASSERT_TRUE(NextSocket(*session) != nullptr);
  const absl::Time deadline = absl::Now() + kPatience;
  while (daemon_->OpenFds() > fds + 1 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_LE(daemon_->OpenFds(), fds + 1);
}

TEST_F(SessionFaultTest, AFloodOfFramesCostsOnlyTheFlooder) {
  auto session = OpenSession();
  // Legal frames without a meaning, as fast as they go.
  for (int i = 0; i < 100'000; ++i) {
    const absl::Status sent =
        wire::SendFrame(session->socket(), FrameType::kAck, wire::AckPayload{0});
    if (absl::IsUnavailable(sent)) break;  // irisd had enough of it
  }
  ServeOneClient();
}

TEST_F(SessionFaultTest, AFloodOfConnectionsThatSayNothingLetsOthersIn) {
  std::vector<wire::UniqueFd> silent;
  for (int i = 0; i < 500; ++i) {
    auto socket = Connect(daemon_->session_socket(), SOCK_SEQPACKET);
    if (socket.ok()) silent.push_back(*std::move(socket));
  }
  // The silent ones hold no more places than they may, and for no longer than the handshake's
  // deadline.
  const absl::Time deadline = absl::Now() + kPatience;
  absl::Status last;
  while (absl::Now() < deadline) {
    auto session = RawSession::Open(daemon_->session_socket());
    last = session.status();
    if (last.ok()) break;
  }
  EXPECT_TRUE(last.ok()) << last;
}

TEST_F(SessionFaultTest, AForkedChildsMessageEndsTheSession) {
  const RunResult result =
      RunProgram({ProgramPath("tests/fault/misbehaving_client"), daemon_->session_socket(), "j",
                  "0", "1", "welcome", "child_sends"},
                 absl::Seconds(60));
  EXPECT_EQ(result.exit_code, 0) << result.output << daemon_->Log();
}

TEST_F(SessionFaultTest, AProcessThatForksAndDiesIsGoneAlthoughItsSocketIsOpen) {
  // The child keeps every descriptor of the dead parent until irisd closes the session.
  const RunResult result =
      RunProgram({ProgramPath("tests/fault/misbehaving_client"), daemon_->session_socket(), "j",
                  "0", "1", "allocated", "fork"},
                 absl::Seconds(60));
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.output;
  EXPECT_TRUE(daemon_->WaitIdle(idle_fds_).ok());
}

TEST_F(SessionFaultTest, GarbageOnTheAdminSocketHarmsNobody) {
  for (int i = 0; i < 20; ++i) {
    auto socket = Require(Connect(daemon_->admin_socket(), SOCK_STREAM));
    const std::string garbage(64 << 10, static_cast<char>('A' + i));
    (void)!::send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ServeOneClient();
}

TEST_F(SessionFaultTest, SilentConnectionsToTheAdminSocketHarmNobody) {
  std::vector<wire::UniqueFd> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(Require(Connect(daemon_->admin_socket(), SOCK_STREAM)));
  }
  ServeOneClient();
  EXPECT_TRUE(daemon_->GetStatus().ok());
}

TEST_F(SessionFaultTest, NoClientCanTruncateWhatOthersHaveMapped) {
  auto session = OpenSession();
  Require(session->Join(session->JoinRequest("seal", 0, 1)));
  auto descriptors = Require(session->ReceiveDescriptors(3));
  for (const auto& [record, fd] : descriptors) {
    EXPECT_NE(::ftruncate(fd.get(), 0), 0) << "kind " << record.kind;
    EXPECT_NE(::ftruncate(fd.get(), 1 << 30), 0) << "kind " << record.kind;
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
        << "kind " << record.kind;
    struct stat info = {};
    ASSERT_EQ(::fstat(fd.get(), &info), 0);
    const bool is_status = record.kind == static_cast<uint32_t>(wire::DescriptorKind::kStatusPage);
    EXPECT_EQ(info.st_mode & 0777, is_status ? 0400u : 0600u) << "kind " << record.kind;
  }
}

TEST_F(SessionFaultTest, PagesThatARankMayNotWriteComeReadOnly) {
  auto session = OpenSession();
  Require(session->Join(session->JoinRequest("pages", 0, 1)));
  auto descriptors = Require(session->ReceiveDescriptors(3));
  for (const auto& [record, fd] : descriptors) {
    const int access = ::fcntl(fd.get(), F_GETFL) & O_ACCMODE;
    const bool read_only =
        record.kind == static_cast<uint32_t>(wire::DescriptorKind::kStatusPage) ||
        record.kind == static_cast<uint32_t>(wire::DescriptorKind::kLink);
    EXPECT_EQ(access, read_only ? O_RDONLY : O_RDWR) << "kind " << record.kind;
  }
}

TEST_F(SessionFaultTest, PreallocReservesThePages) {
  auto session = OpenSession();
  iris::v1::JoinRequest request = session->JoinRequest("prealloc", 0, 1, 8 << 20);
  request.set_prealloc(true);
  Require(session->Join(request));
  auto descriptors = Require(session->ReceiveDescriptors(3));
  for (const auto& [record, fd] : descriptors) {
    if (record.kind != static_cast<uint32_t>(wire::DescriptorKind::kSegment)) continue;
    struct stat info = {};
    ASSERT_EQ(::fstat(fd.get(), &info), 0);
    EXPECT_EQ(info.st_size, 8 << 20);
    EXPECT_GE(info.st_blocks * 512, 8 << 20);
  }
}

}  // namespace
}  // namespace iris::testing
