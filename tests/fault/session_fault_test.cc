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
  FrameHeader header;
  header.type = 999;
  Send(socket.get(), Packet(header, {}));
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
  FrameHeader header;
  header.type = static_cast<uint16_t>(FrameType::kAck);
  header.payload_bytes = sizeof(wire::AckPayload);
  std::vector<uint8_t> packet = Packet(header, std::vector<uint8_t>(sizeof(wire::AckPayload)));
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
    auto socket = Connect(daemon_->admin_socket(), SOCK_STREAM);
    ASSERT_TRUE(socket.ok()) << socket.status();
    const std::string garbage(64 << 10, static_cast<char>('A' + i));
    (void)!::send(socket->get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  ServeOneClient();
}

TEST_F(SessionFaultTest, SilentConnectionsToTheAdminSocketHarmNobody) {
  std::vector<wire::UniqueFd> silent;
  for (int i = 0; i < 50; ++i) {
    auto socket = Connect(daemon_->admin_socket(), SOCK_STREAM);
    ASSERT_TRUE(socket.ok()) << socket.status();
    silent.push_back(*std::move(socket));
  }
  ServeOneClient();
  EXPECT_TRUE(daemon_->GetStatus().ok());
}

TEST_F(SessionFaultTest, NoClientCanTruncateWhatOthersHaveMapped) {
  auto session = OpenSession();
  auto joined = session->Join(session->JoinRequest("seal", 0, 1));
  ASSERT_TRUE(joined.ok()) << joined.status();
  auto descriptors = session->ReceiveDescriptors(3);
  ASSERT_TRUE(descriptors.ok()) << descriptors.status();
  for (const auto& [record, fd] : *descriptors) {
    EXPECT_NE(::ftruncate(fd.get(), 0), 0) << "kind " << record.kind;
    EXPECT_NE(::ftruncate(fd.get(), 1 << 30), 0) << "kind " << record.kind;
    const int seals = ::fcntl(fd.get(), F_GET_SEALS);
    EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
        << "kind " << record.kind;
    struct stat info = {};
    ASSERT_EQ(::fstat(fd.get(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u) << "kind " << record.kind;
  }
}

TEST_F(SessionFaultTest, PagesThatARankMayNotWriteComeReadOnly) {
  auto session = OpenSession();
  auto joined = session->Join(session->JoinRequest("pages", 0, 1));
  ASSERT_TRUE(joined.ok()) << joined.status();
  auto descriptors = session->ReceiveDescriptors(3);
  ASSERT_TRUE(descriptors.ok()) << descriptors.status();
  for (const auto& [record, fd] : *descriptors) {
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
  auto joined = session->Join(request);
  ASSERT_TRUE(joined.ok()) << joined.status();
  auto descriptors = session->ReceiveDescriptors(3);
  ASSERT_TRUE(descriptors.ok()) << descriptors.status();
  for (const auto& [record, fd] : *descriptors) {
    if (record.kind != static_cast<uint32_t>(wire::DescriptorKind::kSegment)) continue;
    struct stat info = {};
    ASSERT_EQ(::fstat(fd.get(), &info), 0);
    EXPECT_EQ(info.st_size, 8 << 20);
    EXPECT_GE(info.st_blocks * 512, 8 << 20);
  }
}

}  // namespace
}  // namespace iris::testing
