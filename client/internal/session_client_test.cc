#include "client/internal/session_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "absl/time/clock.h"

namespace iris::internal {
namespace {

using ::testing::HasSubstr;
using wire::DescriptorKind;
using wire::FrameType;

class LeaveService : public v1::HeapService::Service {
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest* request,
                     v1::LeaveReply*) override {
    return request->session_id() == 77
               ? grpc::Status::OK
               : grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "another session's");
  }
};

// An irisd of one session, played by the test's own thread, frame by frame.
class SessionClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/iris-sc-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
  }
  void TearDown() override {
    unlink((dir_ + "/session.sock").c_str());
    rmdir(dir_.c_str());
  }

  void Listen() {
    listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    struct sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (dir_ + "/session.sock").c_str());
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<struct sockaddr*>(&address), sizeof(address)),
              0);
    ASSERT_EQ(listen(listener_.get(), 4), 0);
  }

  // Runs `irisd` on a thread while the client connects.
  absl::StatusOr<std::shared_ptr<SessionClient>> Connect(const std::function<void()>& irisd) {
    std::thread thread(irisd);
    auto client =
        SessionClient::Connect({{dir_}, absl::Seconds(10), [this] { ends_.fetch_add(1); }});
    thread.join();
    return client;
  }

  void Accept() { peer_.Reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

  wire::Frame Receive() {
    for (;;) {
      struct pollfd p = {peer_.get(), POLLIN, 0};
      EXPECT_GE(poll(&p, 1, 30000), 1);
      auto frame = wire::ReceiveFrame(peer_.get());
      if (frame.ok()) return *std::move(frame);
      if (!wire::IsNoFrameYet(frame.status())) {
        ADD_FAILURE() << frame.status();
        return {};
      }
    }
  }

  void SendWelcome() {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    grpc_end_.Reset(ends[0]);
    const wire::UniqueFd theirs(ends[1]);
    wire::WelcomePayload welcome;
    welcome.session_id = 77;
    welcome.daemon_id = 88;
    std::memset(welcome.backend, 'x', sizeof(welcome.backend));  // not even terminated
    const int fds[] = {theirs.get()};
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kWelcome, welcome, fds).ok());
  }

  void Welcome() {
    Accept();
    EXPECT_EQ(Receive().type, FrameType::kHello);
    SendWelcome();
  }

  std::shared_ptr<SessionClient> Connected() {
    Listen();
    auto client = Connect([this] { Welcome(); });
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *client : nullptr;
  }

  void SendDescriptors(std::vector<wire::DescriptorRecord> records) {
    wire::DescriptorsPayload payload;
    std::vector<wire::UniqueFd> files;
    std::vector<int> fds;
    for (const auto& record : records) {
      payload.records[payload.count++] = record;
      files.emplace_back(memfd_create("test", MFD_CLOEXEC));
      EXPECT_EQ(ftruncate(files.back().get(), static_cast<off_t>(record.bytes)), 0);
      fds.push_back(files.back().get());
    }
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kDescriptors, payload, fds).ok());
  }

  std::string dir_;
  wire::UniqueFd listener_, peer_, grpc_end_;
  std::atomic<int> ends_{0};
};

wire::DescriptorRecord Segment(uint64_t id, uint64_t bytes, uint32_t rank = 0) {
  wire::DescriptorRecord record;
  record.job_id = 5;
  record.epoch = 6;
  record.segment_id = id;
  record.bytes = bytes;
  record.rank = rank;
  record.kind = static_cast<uint32_t>(DescriptorKind::kSegment);
  return record;
}

DescriptorKey SegmentKey(uint64_t id) { return {DescriptorKind::kSegment, 5, 6, 0, id}; }

off_t SizeOf(const wire::UniqueFd& fd) {
  struct stat info = {};
  EXPECT_EQ(fstat(fd.get(), &info), 0);
  return info.st_size;
}

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

TEST_F(SessionClientTest, NoSocketSaysHowToStartIrisd) {
  const absl::Status status =
      SessionClient::Connect({{dir_}, absl::ZeroDuration(), nullptr}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "cannot reach irisd at " + dir_ +
                                  "/session.sock: No such file or directory. Start it with `irisd "
                                  "--runtime-dir " +
                                  dir_ + "` (or systemctl start irisd), or set IRIS_RUNTIME_DIR");
}

TEST_F(SessionClientTest, NobodyListening) {
  Listen();
  listener_.Reset();
  const absl::Status status =
      SessionClient::Connect({{dir_}, absl::ZeroDuration(), nullptr}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Connection refused"));
}

TEST_F(SessionClientTest, WaitsForADaemonThatIsJustStarting) {
  auto client = Connect([this] {
    absl::SleepFor(absl::Milliseconds(50));  // the client has failed at least once
    Listen();
    Welcome();
  });
  EXPECT_TRUE(client.ok()) << client.status();
}

TEST_F(SessionClientTest, PathTooLongForASocket) {
  const absl::Status status =
      SessionClient::Connect({{"/" + std::string(200, 'd')}, absl::Seconds(10), nullptr}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("File name too long"));
}

TEST_F(SessionClientTest, SecondDirectoryIsTried) {
  Listen();
  std::thread irisd([this] { Welcome(); });
  auto client = SessionClient::Connect({{"/nonexistent/iris", dir_}, absl::Seconds(10), nullptr});
  irisd.join();
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->runtime_dir(), dir_);
}

TEST_F(SessionClientTest, HandshakeGivesIdsAndAChannel) {
  auto client = Connected();
  EXPECT_EQ(client->session_id(), 77u);
  EXPECT_EQ(client->daemon_id(), 88u);
  EXPECT_EQ(client->backend(), std::string(16, 'x'));
  EXPECT_TRUE(client->status().ok());

  LeaveService service;
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  ASSERT_EQ(fcntl(grpc_end_.get(), F_SETFL, O_NONBLOCK), 0);
  grpc::AddInsecureChannelFromFd(server.get(), grpc_end_.Release());
  grpc::ClientContext context;
  v1::LeaveRequest request;
  request.set_session_id(client->session_id());
  v1::LeaveReply reply;
  auto channel = client->channels().Wait(0, RpcChannels::Waiter::kMember, Soon());
  ASSERT_TRUE(channel.ok()) << channel.status();
  const grpc::Status status = (*channel)->stub->Leave(&context, request, &reply);
  channel->reset();
  EXPECT_TRUE(status.ok()) << status.error_message();
  client.reset();
  server->Shutdown();
}

TEST_F(SessionClientTest, HelloSaysTheVersion) {
  Listen();
  wire::Frame hello;
  auto client = Connect([&] {
    Accept();
    hello = Receive();
    SendWelcome();
  });
  auto payload = hello.As<wire::HelloPayload>();
  ASSERT_TRUE(payload.ok());
  EXPECT_EQ(payload->version_min, wire::kVersion);
  EXPECT_EQ(payload->version_max, wire::kVersion);
  EXPECT_STRNE(payload->client_version, "");
}

TEST_F(SessionClientTest, AnswersAChallenge) {
  Listen();
  wire::NoncePayload nonce;
  std::memset(nonce.nonce, 0xab, sizeof(nonce.nonce));
  auto client = Connect([&] {
    Accept();
    Receive();
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kChallenge, nonce).ok());
    const wire::Frame reply = Receive();
    EXPECT_EQ(reply.type, FrameType::kChallengeReply);
    auto payload = reply.As<wire::NoncePayload>();
    EXPECT_TRUE(payload.ok());
    EXPECT_EQ(std::memcmp(payload->nonce, nonce.nonce, sizeof(nonce.nonce)), 0);
    SendWelcome();
  });
  EXPECT_TRUE(client.ok()) << client.status();
}

TEST_F(SessionClientTest, RefusalAtTheHandshakeIsTheStatus) {
  Listen();
  auto client = Connect([&] {
    Accept();
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kError,
                                wire::MakeErrorPayload(absl::ResourceExhaustedError(
                                    "uid 7 has 100 sessions, the limit")))
                    .ok());
    peer_.Reset();
  });
  EXPECT_EQ(client.status(), absl::ResourceExhaustedError("uid 7 has 100 sessions, the limit"));
}

TEST_F(SessionClientTest, HangUpDuringTheHandshake) {
  Listen();
  auto client = Connect([&] {
    Accept();
    peer_.Reset();
  });
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionClientTest, UnexpectedFrameDuringTheHandshake) {
  Listen();
  auto client = Connect([&] {
    Accept();
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kAck, wire::AckPayload()).ok());
  });
  EXPECT_EQ(client.status().code(), absl::StatusCode::kInternal);
}

TEST_F(SessionClientTest, WelcomeWithoutASocket) {
  Listen();
  auto client = Connect([&] {
    Accept();
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kWelcome, wire::WelcomePayload()).ok());
  });
  EXPECT_EQ(client.status().code(), absl::StatusCode::kInternal);
}

TEST_F(SessionClientTest, DescriptorsAreAcknowledgedAndTakenInOrder) {
  auto client = Connected();
  SendDescriptors({Segment(1, 111), Segment(2, 222)});
  const wire::Frame ack = Receive();
  EXPECT_EQ(ack.type, FrameType::kAck);
  EXPECT_EQ(ack.As<wire::AckPayload>()->count, 2u);
  auto fds = client->TakeDescriptors({SegmentKey(2), SegmentKey(1)}, Soon());
  ASSERT_TRUE(fds.ok()) << fds.status();
  EXPECT_EQ(SizeOf((*fds)[0]), 222);
  EXPECT_EQ(SizeOf((*fds)[1]), 111);
}

TEST_F(SessionClientTest, RankOfASegmentDoesNotMatterButThatOfAControlPageDoes) {
  auto client = Connected();
  wire::DescriptorRecord page = Segment(0, 50, 3);
  page.kind = static_cast<uint32_t>(DescriptorKind::kControlPage);
  SendDescriptors({Segment(1, 111, 9), page});
  auto fds =
      client->TakeDescriptors({SegmentKey(1), {DescriptorKind::kControlPage, 5, 6, 3, 0}}, Soon());
  ASSERT_TRUE(fds.ok()) << fds.status();
  EXPECT_EQ(SizeOf((*fds)[1]), 50);
}

TEST_F(SessionClientTest, TakeWaitsForLateDescriptors) {
  auto client = Connected();
  SendDescriptors({Segment(1, 1)});
  std::thread irisd([&] { SendDescriptors({Segment(2, 2)}); });
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(1), SegmentKey(2)}, Soon()).ok());
  irisd.join();
}

TEST_F(SessionClientTest, TakeHasADeadlineAndTakesNothingThen) {
  auto client = Connected();
  SendDescriptors({Segment(1, 1)});
  EXPECT_EQ(
      client->TakeDescriptors({SegmentKey(1), SegmentKey(2)}, absl::Now() + absl::Milliseconds(50))
          .status()
          .code(),
      absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(1)}, Soon()).ok());
}

TEST_F(SessionClientTest, HangUpEndsAWaitingTake) {
  auto client = Connected();
  std::thread irisd([&] { peer_.Reset(); });
  EXPECT_EQ(client->TakeDescriptors({SegmentKey(1)}, Soon()).status().code(),
            absl::StatusCode::kUnavailable);
  irisd.join();
  EXPECT_TRUE(client->WaitForEnd(absl::ZeroDuration()));
}

TEST_F(SessionClientTest, DescriptorsThatCameBeforeTheEndCanBeTaken) {
  auto client = Connected();
  SendDescriptors({Segment(1, 1)});
  Receive();  // the acknowledgement
  peer_.Reset();
  ASSERT_TRUE(client->WaitForEnd(absl::Seconds(30)));
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(1)}, Soon()).ok());
}

TEST_F(SessionClientTest, LastWordsBecomeTheStatus) {
  auto client = Connected();
  EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kError,
                              wire::MakeErrorPayload(absl::PermissionDeniedError("another pid")))
                  .ok());
  ASSERT_TRUE(client->WaitForEnd(absl::Seconds(30)));
  EXPECT_EQ(client->status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(client->status().message()), HasSubstr("another pid"));
  EXPECT_EQ(client->TakeDescriptors({SegmentKey(1)}, Soon()).status(), client->status());
}

TEST_F(SessionClientTest, EndIsToldOnce) {
  auto client = Connected();
  EXPECT_EQ(ends_.load(), 0);
  peer_.Reset();
  ASSERT_TRUE(client->WaitForEnd(absl::Seconds(30)));
  client.reset();
  EXPECT_EQ(ends_.load(), 1);
}

TEST_F(SessionClientTest, OwnDestructorIsNoEnd) {
  auto client = Connected();
  client.reset();
  EXPECT_EQ(ends_.load(), 0);
}

TEST_F(SessionClientTest, DestructorHangsUp) {
  auto client = Connected();
  client.reset();
  struct pollfd p = {peer_.get(), POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, 30000), 1);
  EXPECT_EQ(wire::ReceiveFrame(peer_.get()).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionClientTest, GarbageEndsTheSession) {
  auto client = Connected();
  ASSERT_EQ(send(peer_.get(), "garbage", 7, 0), 7);
  EXPECT_TRUE(client->WaitForEnd(absl::Seconds(30)));
}

TEST_F(SessionClientTest, CountThatDisagreesWithTheDescriptorsEndsTheSession) {
  auto client = Connected();
  wire::DescriptorsPayload payload;
  payload.count = 3;
  ASSERT_TRUE(wire::SendFrame(peer_.get(), FrameType::kDescriptors, payload).ok());
  ASSERT_TRUE(client->WaitForEnd(absl::Seconds(30)));
  EXPECT_THAT(std::string(client->status().message()), HasSubstr("announced 3 descriptors"));
}

TEST_F(SessionClientTest, CancelledTakesEndNowAndLater) {
  auto client = Connected();
  std::thread other([&] { client->CancelWaits(); });
  EXPECT_EQ(client->TakeDescriptors({SegmentKey(1)}, Soon()).status().code(),
            absl::StatusCode::kCancelled);
  other.join();
  EXPECT_EQ(client->TakeDescriptors({SegmentKey(1)}, Soon()).status().code(),
            absl::StatusCode::kCancelled);
}

TEST_F(SessionClientTest, DropClosesWhatNobodyTook) {
  auto client = Connected();
  SendDescriptors({Segment(1, 1)});
  Receive();
  client->DropDescriptors();
  EXPECT_EQ(client->TakeDescriptors({SegmentKey(1)}, absl::Now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

// The gRPC socket.

class RpcSocketTest : public SessionClientTest {
 protected:
  void SendRpcSocket() {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    grpc_end_.Reset(ends[0]);
    const wire::UniqueFd theirs(ends[1]);
    const int fds[] = {theirs.get()};
    EXPECT_TRUE(wire::SendEmptyFrame(peer_.get(), FrameType::kRpcSocket, fds).ok());
  }
  static constexpr auto kMember = RpcChannels::Waiter::kMember;
};

TEST_F(RpcSocketTest, ALostOneIsAskedForReplacedAndAcknowledged) {
  auto client = Connected();
  auto first = client->channels().Wait(0, kMember, Soon());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->number, 1u);
  EXPECT_EQ(client->channels().WaitForLoss(1, absl::ZeroDuration()), RpcChannels::Loss::kNone);
  for (uint64_t number = 2; number < 5; ++number) {
    grpc_end_.Reset();
    const wire::Frame request = Receive();
    EXPECT_EQ(request.type, FrameType::kRpcRequest);
    EXPECT_TRUE(request.payload.empty());
    EXPECT_EQ(client->channels().WaitForLoss(number - 1, absl::Seconds(30)),
              RpcChannels::Loss::kChannel);
    SendRpcSocket();
    const wire::Frame ack = Receive();
    ASSERT_EQ(ack.type, FrameType::kAck);
    EXPECT_EQ(ack.As<wire::AckPayload>()->count, 1u);
    auto next = client->channels().Wait(number - 1, kMember, Soon());
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ((*next)->number, number);
  }
  EXPECT_TRUE(client->status().ok()) << client->status();
  EXPECT_EQ(ends_.load(), 0);
}

TEST_F(RpcSocketTest, IsAskedForOnceAlsoIfItIsLateAndDescriptorsComeMeanwhile) {
  auto client = Connected();
  grpc_end_.Reset();
  EXPECT_EQ(Receive().type, FrameType::kRpcRequest);
  SendDescriptors({Segment(1, 1)});
  EXPECT_EQ(Receive().type, FrameType::kAck);
  EXPECT_EQ(
      client->channels().Wait(1, kMember, absl::Now() + absl::Milliseconds(50)).status().code(),
      absl::StatusCode::kDeadlineExceeded);
  SendRpcSocket();
  EXPECT_TRUE(client->channels().Wait(1, kMember, Soon()).ok());
  EXPECT_EQ(Receive().type, FrameType::kAck);
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(1)}, Soon()).ok());
}

TEST_F(RpcSocketTest, OneThatNobodyAskedForEndsTheSession) {
  auto client = Connected();
  const wire::UniqueFd kept(dup(grpc_end_.get()));
  SendRpcSocket();
  ASSERT_TRUE(client->WaitForEnd(absl::Seconds(30)));
  EXPECT_THAT(std::string(client->status().message()), HasSubstr("nobody asked for"));
}

TEST_F(RpcSocketTest, TheEndOfTheSessionEndsTheWait) {
  auto client = Connected();
  grpc_end_.Reset();
  EXPECT_EQ(Receive().type, FrameType::kRpcRequest);
  std::thread irisd([&] { peer_.Reset(); });
  EXPECT_EQ(client->channels().Wait(1, kMember, Soon()).status().code(),
            absl::StatusCode::kUnavailable);
  irisd.join();
  EXPECT_EQ(client->channels().WaitForLoss(1, absl::Seconds(30)), RpcChannels::Loss::kSession);
}

TEST_F(RpcSocketTest, CancelledWaitsAreTheMembersAlone) {
  auto client = Connected();
  grpc_end_.Reset();
  EXPECT_EQ(Receive().type, FrameType::kRpcRequest);
  client->CancelWaits();
  EXPECT_EQ(client->channels().Wait(1, kMember, Soon()).status().code(),
            absl::StatusCode::kCancelled);
  SendRpcSocket();
  EXPECT_TRUE(client->channels().Wait(1, RpcChannels::Waiter::kLeaver, Soon()).ok());
}

}  // namespace
}  // namespace iris::internal
