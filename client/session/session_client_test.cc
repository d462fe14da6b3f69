#include "client/session/session_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>

#include "absl/time/clock.h"
#include "tests/cc/require.h"

namespace iris::internal {
namespace {

using iris::testing::Require;
using ::testing::HasSubstr;
using wire::DescriptorKind;
using wire::FrameType;

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
    wire::WelcomePayload welcome;
    welcome.session_id = 77;
    welcome.daemon_id = 88;
    std::memset(welcome.backend, 'x', sizeof(welcome.backend));  // not even terminated
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kWelcome, welcome).ok());
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
  wire::UniqueFd listener_, peer_;
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

TEST_F(SessionClientTest, HandshakeGivesIds) {
  auto client = Connected();
  EXPECT_EQ(client->session_id(), 77u);
  EXPECT_EQ(client->daemon_id(), 88u);
  EXPECT_EQ(client->backend(), std::string(16, 'x'));
  EXPECT_TRUE(client->status().ok());
}

TEST_F(SessionClientTest, HelloSaysTheVersion) {
  Listen();
  wire::Frame hello;
  auto client = Connect([&] {
    Accept();
    hello = Receive();
    SendWelcome();
  });
  auto payload = Require(hello.As<wire::HelloPayload>());
  EXPECT_EQ(payload.version_min, wire::kVersion);
  EXPECT_EQ(payload.version_max, wire::kVersionRestarts);
  EXPECT_EQ(payload.flags, wire::kCallsByFrames);
  EXPECT_STRNE(payload.client_version, "");
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
  std::thread irisd([&] {
    Accept();
    peer_.Reset();
  });
  const auto client = SessionClient::Connect({{dir_}, absl::ZeroDuration(), nullptr});
  irisd.join();
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionClientTest, HandshakeThatIsEndedForANewerOneIsBegunAgain) {
  Listen();
  auto client = Connect([&] {
    Accept();
    EXPECT_TRUE(
        wire::SendFrame(peer_.get(), FrameType::kError,
                        wire::MakeErrorPayload(absl::UnavailableError("ended for a newer one")))
            .ok());
    Welcome();
  });
  EXPECT_TRUE(client.ok()) << client.status();
}

TEST_F(SessionClientTest, ARestartDuringTheHandshakeBeginsItAgain) {
  Listen();
  auto client = Connect([&] {
    Accept();
    EXPECT_TRUE(
        wire::SendFrame(peer_.get(), FrameType::kRestarted, wire::RestartedPayload{2, "0.3.0"})
            .ok());
    Welcome();
  });
  EXPECT_TRUE(client.ok()) << client.status();
}

TEST_F(SessionClientTest, UnexpectedFrameDuringTheHandshake) {
  Listen();
  auto client = Connect([&] {
    Accept();
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kAck, wire::AckPayload()).ok());
  });
  EXPECT_EQ(client.status().code(), absl::StatusCode::kInternal);
}

TEST_F(SessionClientTest, WelcomeOfAnIrisdThatKnowsNoCallsByFrames) {
  Listen();
  auto client = Connect([&] {
    Accept();
    const int fds[] = {peer_.get()};
    wire::WelcomePayload welcome;
    std::strcpy(welcome.daemon_version, "0.0.9");
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kWelcome, welcome, fds).ok());
  });
  EXPECT_EQ(client.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("irisd 0.0.9 takes calls by gRPC"));
}

TEST_F(SessionClientTest, DescriptorsAreAcknowledgedAndTakenInOrder) {
  auto client = Connected();
  SendDescriptors({Segment(1, 111), Segment(2, 222)});
  const wire::Frame ack = Receive();
  EXPECT_EQ(ack.type, FrameType::kAck);
  EXPECT_EQ(ack.As<wire::AckPayload>()->count, 2u);
  auto fds = Require(client->TakeDescriptors({SegmentKey(2), SegmentKey(1)}, Soon()));
  EXPECT_EQ(SizeOf(fds[0]), 222);
  EXPECT_EQ(SizeOf(fds[1]), 111);
}

TEST_F(SessionClientTest, RankOfASegmentDoesNotMatterButThatOfAControlPageDoes) {
  auto client = Connected();
  wire::DescriptorRecord page = Segment(0, 50, 3);
  page.kind = static_cast<uint32_t>(DescriptorKind::kControlPage);
  SendDescriptors({Segment(1, 111, 9), page});
  auto fds = Require(
      client->TakeDescriptors({SegmentKey(1), {DescriptorKind::kControlPage, 5, 6, 3, 0}}, Soon()));
  EXPECT_EQ(SizeOf(fds[1]), 50);
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

class CallsTest : public SessionClientTest {
 protected:
  using Caller = SessionClient::Caller;
  using CallMethod = wire::CallMethod;

  struct Received {
    wire::CallPayload header;
    std::string request;
  };
  Received ReceiveCall() {
    const wire::Frame frame = Receive();
    EXPECT_EQ(frame.type, FrameType::kCall);
    const auto parts = frame.Split<wire::CallPayload>();
    EXPECT_TRUE(parts.ok());
    Received got{parts->first, std::string(parts->second)};
    if (!frame.fds.empty()) {
      got.request.resize(got.header.bytes);
      EXPECT_EQ(pread(frame.fds[0].get(), got.request.data(), got.header.bytes, 0),
                static_cast<ssize_t>(got.header.bytes));
      EXPECT_EQ(fcntl(frame.fds[0].get(), F_GET_SEALS),
                F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    }
    return got;
  }
  void Answer(uint64_t call, uint32_t flags, const std::string& bytes) {
    wire::AnswerPayload answer;
    answer.call = call;
    answer.flags = flags;
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kAnswer, answer, bytes).ok());
  }
  static constexpr uint32_t kWhole = wire::kAnswerMessage | wire::kAnswerEnds;
};

TEST_F(CallsTest, ACallHasItsAnswer) {
  auto client = Connected();
  std::thread irisd([&] {
    const Received got = ReceiveCall();
    EXPECT_EQ(got.header.call, 1u);
    EXPECT_EQ(got.header.method, static_cast<uint32_t>(CallMethod::kLeave));
    EXPECT_EQ(got.request, "question");
    Answer(1, kWhole, "answer");
  });
  const auto answer = client->Call(CallMethod::kLeave, "question", Soon(), Caller::kLeaver);
  irisd.join();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_TRUE(answer.answered);
  EXPECT_EQ(answer.message, "answer");
}

TEST_F(CallsTest, LongRequestsComeAsMemfdsAndLongAnswersInPieces) {
  auto client = Connected();
  const std::string question(wire::kMaxCallFrameBytes + 1, 'q');
  std::thread irisd([&] {
    EXPECT_EQ(ReceiveCall().request, question);
    Answer(1, wire::kAnswerMessage | wire::kAnswerContinues, std::string(1000, 'a'));
    Answer(1, wire::kAnswerMessage | wire::kAnswerContinues, std::string(1000, 'b'));
    Answer(1, kWhole, "c");
  });
  const auto answer = client->Call(CallMethod::kOperate, question, Soon(), Caller::kMember);
  irisd.join();
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.message, std::string(1000, 'a') + std::string(1000, 'b') + "c");
}

TEST_F(CallsTest, TooLongARequestIsRefusedHere) {
  auto client = Connected();
  const auto answer = client->Call(CallMethod::kOperate, std::string(wire::kMaxRpcBytes + 1, 'q'),
                                   Soon(), Caller::kMember);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(answer.answered);
}

TEST_F(CallsTest, AFailureKeepsCodeAndText) {
  auto client = Connected();
  std::thread irisd([&] {
    wire::FailurePayload failure;
    failure.call = ReceiveCall().header.call;
    failure.error = wire::MakeErrorPayload(absl::NotFoundError("no such job"));
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kFailure, failure).ok());
  });
  const auto answer = client->Call(CallMethod::kJoin, "", Soon(), Caller::kMember);
  irisd.join();
  EXPECT_EQ(answer.status, absl::NotFoundError("no such job"));
  EXPECT_TRUE(answer.answered);
}

TEST_F(CallsTest, CallsOfManyThreadsAreNumberedInTheOrderOfTheirFrames) {
  auto client = Connected();
  constexpr int kThreads = 8, kCalls = 50;
  std::vector<std::thread> callers;
  for (int t = 0; t < kThreads; ++t) {
    callers.emplace_back([&, t] {
      for (int i = 0; i < kCalls; ++i) {
        const std::string question = std::to_string(t * kCalls + i);
        EXPECT_EQ(client->Call(CallMethod::kOperate, question, Soon(), Caller::kMember).message,
                  "re " + question);
      }
    });
  }
  for (uint64_t n = 1; n <= kThreads * kCalls; ++n) {
    const Received got = ReceiveCall();
    EXPECT_EQ(got.header.call, n);
    Answer(n, kWhole, "re " + got.request);
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(CallsTest, TheDeadlineEndsAndCancelsACallAndItsLateAnswerIsIgnored) {
  auto client = Connected();
  const auto answer =
      client->Call(CallMethod::kOperate, "", absl::Now() + absl::Milliseconds(20), Caller::kMember);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(answer.answered);
  EXPECT_EQ(ReceiveCall().header.call, 1u);
  const wire::Frame cancel = Receive();
  EXPECT_EQ(cancel.type, FrameType::kCancelCall);
  EXPECT_EQ(cancel.As<wire::CallNumberPayload>()->call, 1u);
  Answer(1, kWhole, "late");
  std::thread irisd([&] { Answer(ReceiveCall().header.call, kWhole, "second"); });
  EXPECT_EQ(client->Call(CallMethod::kOperate, "", Soon(), Caller::kMember).message, "second");
  irisd.join();
}

TEST_F(CallsTest, TheEndOfTheSessionEndsACall) {
  auto client = Connected();
  std::thread irisd([&] {
    ReceiveCall();
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kError,
                                wire::MakeErrorPayload(absl::AbortedError("enough")))
                    .ok());
  });
  const auto answer = client->Call(CallMethod::kJoin, "", Soon(), Caller::kMember);
  irisd.join();
  EXPECT_FALSE(answer.answered);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("enough"));
  EXPECT_EQ(client->Call(CallMethod::kJoin, "", Soon(), Caller::kMember).status, answer.status);
}

TEST_F(CallsTest, CancelConcernsMembersAlone) {
  auto client = Connected();
  std::thread irisd([&] {
    ReceiveCall();
    client->CancelWaits();
  });
  EXPECT_EQ(client->Call(CallMethod::kOperate, "", Soon(), Caller::kMember).status.code(),
            absl::StatusCode::kCancelled);
  irisd.join();
  EXPECT_EQ(Receive().type, FrameType::kCancelCall);
  irisd = std::thread([&] { Answer(ReceiveCall().header.call, kWhole, ""); });
  EXPECT_TRUE(client->Call(CallMethod::kLeave, "", Soon(), Caller::kLeaver).status.ok());
  irisd.join();
}

TEST_F(CallsTest, AStreamIsReadInOrderAndAcknowledged) {
  auto client = Connected();
  auto stream = Require(client->Open(CallMethod::kWatch, ""));
  EXPECT_EQ(ReceiveCall().header.call, 1u);
  for (const char* event : {"a", "b", "c"}) Answer(1, wire::kAnswerMessage, event);
  Answer(1, wire::kAnswerEnds, "");
  std::string got, all;
  while (client->Read(*stream, &got)) all += got;
  EXPECT_EQ(all, "abc");
  EXPECT_TRUE(client->End(*stream).answered);
  EXPECT_TRUE(client->End(*stream).status.ok());
}

TEST_F(CallsTest, AStreamThatIsDroppedIsCancelled) {
  auto client = Connected();
  auto stream = Require(client->Open(CallMethod::kWatch, ""));
  ReceiveCall();
  Answer(1, wire::kAnswerMessage, "a");
  std::string got;
  EXPECT_TRUE(client->Read(*stream, &got));
  EXPECT_EQ(Receive().type, FrameType::kTaken);
  stream.reset();
  EXPECT_EQ(Receive().type, FrameType::kCancelCall);
}

TEST_F(CallsTest, AnAnswerWithoutEndEndsTheSession) {
  auto client = Connected();
  std::thread irisd([&] {
    const uint64_t call = ReceiveCall().header.call;
    const std::string piece(wire::kMaxCallFrameBytes, 'x');
    for (size_t sent = 0; sent <= wire::kMaxRpcBytes; sent += piece.size()) {
      wire::AnswerPayload answer;
      answer.call = call;
      answer.flags = wire::kAnswerMessage | wire::kAnswerContinues;
      while (absl::IsResourceExhausted(
          wire::SendFrame(peer_.get(), FrameType::kAnswer, answer, piece))) {
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
  });
  EXPECT_EQ(client->Call(CallMethod::kJoin, "", Soon(), Caller::kMember).status.code(),
            absl::StatusCode::kInternal);
  irisd.join();
}

// Another irisd takes the session over. The test's thread plays both of them.

class RestartTest : public CallsTest {
 protected:
  using Result = SessionClient::Answer;

  void SendRestarted(uint64_t generation) {
    wire::RestartedPayload restarted;
    restarted.generation = generation;
    EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kRestarted, restarted).ok());
  }
  void ReceiveSeen(uint64_t generation) {
    const wire::Frame frame = Receive();
    ASSERT_EQ(frame.type, FrameType::kRestartSeen);
    const auto seen = Require(frame.As<wire::RestartSeenPayload>());
    EXPECT_EQ(seen.generation, generation);
  }
  uint32_t ReceiveAck() {
    const wire::Frame frame = Receive();
    EXPECT_EQ(frame.type, FrameType::kAck);
    const auto ack = frame.As<wire::AckPayload>();
    return ack.ok() ? ack->count : 0;
  }
  // Returns the numbers of `n_calls` calls by request. Acknowledgements of `n_descriptors`
  // descriptors come before, between or after them.
  std::map<std::string, uint64_t> ReceiveCallsAndAcks(size_t n_calls, uint32_t n_descriptors) {
    std::map<std::string, uint64_t> numbers;
    uint32_t acknowledged = 0;
    while (numbers.size() < n_calls || acknowledged < n_descriptors) {
      const wire::Frame frame = Receive();
      if (frame.type == FrameType::kAck) {
        acknowledged += frame.As<wire::AckPayload>()->count;
        continue;
      }
      if (frame.type != FrameType::kCall) {
        ADD_FAILURE() << "frame type " << static_cast<int>(frame.type);
        return numbers;
      }
      const auto parts = frame.Split<wire::CallPayload>();
      numbers[std::string(parts->second)] = parts->first.call;
    }
    EXPECT_EQ(acknowledged, n_descriptors);
    return numbers;
  }
  // Nothing comes for a while.
  void ExpectSilence() {
    struct pollfd p = {peer_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, 150), 0);
  }
  // A call on a thread of its own.
  std::thread StartCall(SessionClient& client, const std::string& request, Result* result,
                        absl::Time deadline = Soon()) {
    return std::thread([&client, request, result, deadline] {
      *result = client.Call(CallMethod::kOperate, request, deadline, Caller::kMember);
    });
  }
  // Makes calls that nobody waits for, until irisd's queue is full.
  void FillQueue(SessionClient& client) {
    for (;;) {
      const auto got = client.Call(CallMethod::kLeave, "old", absl::Now(), Caller::kMember);
      ASSERT_EQ(got.status.code(), absl::StatusCode::kDeadlineExceeded);
      if (got.status.message() == "irisd does not read this session's calls") return;
    }
  }
  // The frames that the irisd before was to read.
  void DropUntilSeen(uint64_t generation) {
    for (;;) {
      const wire::Frame frame = Receive();
      if (frame.type != FrameType::kRestartSeen) {
        ASSERT_TRUE(frame.type == FrameType::kCall || frame.type == FrameType::kCancelCall ||
                    frame.type == FrameType::kAck)
            << static_cast<int>(frame.type);
        continue;
      }
      const auto seen = Require(frame.As<wire::RestartSeenPayload>());
      EXPECT_EQ(seen.generation, generation);
      return;
    }
  }
};

TEST_F(RestartTest, ACallIsRepeatedWithTheSameBytesAndAHigherNumberAndAnsweredOnce) {
  auto client = Connected();
  Result result;
  std::thread caller = StartCall(*client, "question", &result);
  EXPECT_EQ(ReceiveCall().header.call, 1u);
  SendRestarted(3);
  ReceiveSeen(3);
  const Received again = ReceiveCall();
  EXPECT_EQ(again.header.call, 2u);
  EXPECT_EQ(again.header.method, static_cast<uint32_t>(CallMethod::kOperate));
  EXPECT_EQ(again.request, "question");
  Answer(2, kWhole, "answer");
  caller.join();
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_TRUE(result.answered);
  EXPECT_EQ(result.message, "answer");
  EXPECT_EQ(result.generation, 3u);
  ExpectSilence();
  EXPECT_TRUE(client->status().ok());
  EXPECT_EQ(ends_.load(), 0);
}

TEST_F(RestartTest, AnAnswerOfTheOldNumberIsNobodys) {
  auto client = Connected();
  Result result;
  std::thread caller = StartCall(*client, "question", &result);
  ReceiveCall();
  SendRestarted(1);
  ReceiveSeen(1);
  EXPECT_EQ(ReceiveCall().header.call, 2u);
  Answer(1, kWhole, "of the one before");
  Answer(2, kWhole, "answer");
  caller.join();
  EXPECT_EQ(result.message, "answer");
}

TEST_F(RestartTest, ACallThatHasItsAnswerIsNotRepeated) {
  auto client = Connected();
  Result result;
  std::thread caller = StartCall(*client, "question", &result);
  ReceiveCall();
  Answer(1, kWhole, "answer");
  SendRestarted(1);
  caller.join();
  EXPECT_EQ(result.message, "answer");
  EXPECT_EQ(result.generation, 0u);
  ReceiveSeen(1);
  ExpectSilence();
}

TEST_F(RestartTest, HalfAnAnswerIsDropped) {
  auto client = Connected();
  Result result;
  std::thread caller = StartCall(*client, "question", &result);
  ReceiveCall();
  Answer(1, wire::kAnswerMessage | wire::kAnswerContinues, "half of ");
  SendRestarted(1);
  ReceiveSeen(1);
  EXPECT_EQ(ReceiveCall().header.call, 2u);
  Answer(2, wire::kAnswerMessage | wire::kAnswerContinues, "a whole ");
  Answer(2, kWhole, "answer");
  caller.join();
  EXPECT_EQ(result.message, "a whole answer");
}

TEST_F(RestartTest, AMessageWithoutTheEndOfItsCallIsNoAnswer) {
  auto client = Connected();
  Result result;
  std::thread caller = StartCall(*client, "question", &result);
  ReceiveCall();
  Answer(1, wire::kAnswerMessage, "before the end");
  SendRestarted(1);
  ReceiveSeen(1);
  Answer(ReceiveCall().header.call, kWhole, "answer");
  caller.join();
  EXPECT_EQ(result.message, "answer");
}

TEST_F(RestartTest, DescriptorsAndLongRequestsGoAlongAgain) {
  auto client = Connected();
  wire::UniqueFd memory(memfd_create("mine", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(memory.get(), 777), 0);
  std::thread caller([&] {
    const int fds[] = {memory.get()};
    EXPECT_EQ(client->Call(CallMethod::kOperate, "register", Soon(), Caller::kMember, fds).message,
              "registered");
  });
  for (const uint64_t number : {1, 2}) {
    const wire::Frame frame = Receive();
    ASSERT_EQ(frame.type, FrameType::kCall);
    EXPECT_EQ(frame.Split<wire::CallPayload>()->first.call, number);
    EXPECT_EQ(frame.Split<wire::CallPayload>()->second, "register");
    ASSERT_EQ(frame.fds.size(), 1u);
    EXPECT_EQ(SizeOf(frame.fds[0]), 777);
    if (number == 1) SendRestarted(1);
    if (number == 1) ReceiveSeen(1);
  }
  Answer(2, kWhole, "registered");
  caller.join();

  const std::string question(wire::kMaxCallFrameBytes + 1, 'q');
  Result result;
  caller = StartCall(*client, question, &result);
  EXPECT_EQ(ReceiveCall().request, question);
  SendRestarted(2);
  ReceiveSeen(2);
  const Received again = ReceiveCall();
  EXPECT_EQ(again.request, question);
  Answer(again.header.call, kWhole, "long");
  caller.join();
  EXPECT_EQ(result.message, "long");
}

TEST_F(RestartTest, AStreamThatIsReadIsOpenedAgainAndWhatItHadStaysReadable) {
  auto client = Connected();
  auto stream = Require(client->Open(CallMethod::kWatch, "watch"));
  ReceiveCall();
  for (const char* event : {"a", "b", "c"}) Answer(1, wire::kAnswerMessage, event);
  Answer(1, wire::kAnswerMessage | wire::kAnswerContinues, "half");
  std::string got;
  ASSERT_TRUE(client->Read(*stream, &got));
  EXPECT_EQ(Receive().type, FrameType::kTaken);
  SendRestarted(1);
  ReceiveSeen(1);
  // Nobody reads it.
  ExpectSilence();
  std::string all = got;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client->Read(*stream, &got));
    all += got;
  }
  const Received again = ReceiveCall();
  EXPECT_EQ(again.header.call, 2u);
  EXPECT_EQ(again.request, "watch");
  Answer(2, wire::kAnswerMessage, "d");
  ASSERT_TRUE(client->Read(*stream, &got));
  EXPECT_EQ(all + got, "abcd");
  // The irisd that reads does not know "b" and "c".
  const wire::Frame taken = Receive();
  EXPECT_EQ(taken.type, FrameType::kTaken);
  EXPECT_EQ(taken.As<wire::CallNumberPayload>()->call, 2u);
  ExpectSilence();
}

TEST_F(RestartTest, AStreamWhoseReaderWaitsIsOpenedAgain) {
  auto client = Connected();
  auto stream = Require(client->Open(CallMethod::kWatch, "watch"));
  std::string got;
  std::thread reader([&] { EXPECT_TRUE(client->Read(*stream, &got)); });
  ReceiveCall();
  SendRestarted(1);
  ReceiveSeen(1);
  Answer(ReceiveCall().header.call, wire::kAnswerMessage, "event");
  reader.join();
  EXPECT_EQ(got, "event");
}

TEST_F(RestartTest, AStreamThatIsOnlyLookedAtIsOpenedAgainWhenItIs) {
  auto client = Connected();
  auto stream = Require(client->Open(CallMethod::kAwaitBarrier, "barrier"));
  ReceiveCall();
  SendRestarted(1);
  ReceiveSeen(1);
  EXPECT_FALSE(client->End(*stream).answered);
  const Received again = ReceiveCall();
  EXPECT_EQ(again.request, "barrier");
  EXPECT_FALSE(client->End(*stream).answered);
  ExpectSilence();
  Answer(again.header.call, kWhole, "");
  while (!client->End(*stream).answered) absl::SleepFor(absl::Milliseconds(1));
}

TEST_F(RestartTest, AStreamThatWasNotOpenedAgainIsNotCancelled) {
  auto client = Connected();
  auto stream = Require(client->Open(CallMethod::kWatch, "watch"));
  ReceiveCall();
  SendRestarted(1);
  ReceiveSeen(1);
  stream.reset();
  ExpectSilence();
}

TEST_F(RestartTest, AFullQueueKeepsNobodyFromReceivingAndNothingGoesBeforeTheAnswer) {
  auto client = Connected();
  Result result;
  std::thread caller = StartCall(*client, "question", &result);
  EXPECT_EQ(ReceiveCall().header.call, 1u);
  FillQueue(*client);
  // Neither this acknowledgement nor the answer to the restart has room.
  SendDescriptors({Segment(1, 111), Segment(2, 222)});
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(1), SegmentKey(2)}, Soon()).ok());
  SendRestarted(5);
  SendDescriptors({Segment(3, 333)});
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(3)}, Soon()).ok());
  Result later;
  std::thread later_caller = StartCall(*client, "later", &later);
  absl::SleepFor(absl::Milliseconds(100));
  DropUntilSeen(5);
  std::map<std::string, uint64_t> numbers = ReceiveCallsAndAcks(2, 1);
  for (const auto& [request, number] : numbers) Answer(number, kWhole, "re " + request);
  caller.join();
  later_caller.join();
  EXPECT_EQ(result.message, "re question");
  EXPECT_EQ(later.message, "re later");
  EXPECT_GT(numbers["question"], 1u);
  ExpectSilence();
}

TEST_F(RestartTest, AStreamThatFindsTheQueueFullIsOpenedLater) {
  auto client = Connected();
  FillQueue(*client);
  auto stream = Require(client->Open(CallMethod::kAwaitBarrier, "barrier"));
  EXPECT_TRUE(client->End(*stream).status.ok());
  SendRestarted(1);
  DropUntilSeen(1);
  EXPECT_FALSE(client->End(*stream).answered);
  EXPECT_EQ(ReceiveCall().request, "barrier");
}

TEST_F(RestartTest, ACallWhoseTimeIsUpBeforeItIsRepeatedIsForgotten) {
  auto client = Connected();
  Result result;
  const absl::Time deadline = absl::Now() + absl::Milliseconds(300);
  std::thread caller = StartCall(*client, "question", &result, deadline);
  ReceiveCall();
  FillQueue(*client);
  SendRestarted(1);
  caller.join();
  EXPECT_GE(absl::Now(), deadline - absl::Milliseconds(50));
  EXPECT_EQ(result.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(result.answered);
  DropUntilSeen(1);
  ExpectSilence();
}

TEST_F(RestartTest, RestartsInARow) {
  auto client = Connected();
  Result result;
  std::thread caller = StartCall(*client, "question", &result);
  ReceiveCall();
  for (const uint64_t generation : {1, 2, 9}) {
    SendRestarted(generation);
    ReceiveSeen(generation);
    EXPECT_EQ(ReceiveCall().request, "question");
  }
  Answer(4, kWhole, "answer");
  caller.join();
  EXPECT_EQ(result.message, "answer");
  EXPECT_EQ(result.generation, 9u);
}

TEST_F(RestartTest, OfTwoRestartsThatHadNoAnswerTheLastHasOne) {
  auto client = Connected();
  Result result;
  std::thread caller = StartCall(*client, "question", &result);
  ReceiveCall();
  FillQueue(*client);
  SendRestarted(1);
  SendDescriptors({Segment(1, 1)});  // the next irisd counts anew
  SendRestarted(2);
  SendDescriptors({Segment(2, 2), Segment(3, 3)});
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(3)}, Soon()).ok());
  DropUntilSeen(2);
  Answer(ReceiveCallsAndAcks(1, 2)["question"], kWhole, "answer");
  caller.join();
  EXPECT_EQ(result.message, "answer");
  ExpectSilence();
}

TEST_F(RestartTest, AGenerationThatDoesNotGrowEndsTheSession) {
  for (const uint64_t second : {4, 3}) {
    auto client = Connected();
    SendRestarted(4);
    ReceiveSeen(4);
    SendRestarted(second);
    ASSERT_TRUE(client->WaitForEnd(absl::Seconds(30)));
    EXPECT_EQ(client->status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(client->status().message()),
                HasSubstr("generation " + std::to_string(second)));
    EXPECT_THAT(std::string(client->status().message()), HasSubstr("generation 4"));
    TearDown();
    SetUp();
  }
}

TEST_F(RestartTest, ARestartOfTheWrongLengthEndsTheSession) {
  auto client = Connected();
  EXPECT_TRUE(wire::SendFrame(peer_.get(), FrameType::kRestarted, wire::AckPayload()).ok());
  EXPECT_TRUE(client->WaitForEnd(absl::Seconds(30)));
}

TEST_F(RestartTest, OnlyDescriptorsThatCameAfterItAreAcknowledged) {
  auto client = Connected();
  SendDescriptors({Segment(1, 1), Segment(2, 2)});
  EXPECT_EQ(ReceiveAck(), 2u);
  SendDescriptors({Segment(3, 3)});
  EXPECT_EQ(ReceiveAck(), 1u);
  SendRestarted(1);
  SendDescriptors({Segment(3, 333), Segment(4, 4)});
  ReceiveSeen(1);
  EXPECT_EQ(ReceiveAck(), 2u);
  ExpectSilence();
  // One that came again has taken the place of the first.
  auto fds = Require(client->TakeDescriptors({SegmentKey(3)}, Soon()));
  EXPECT_EQ(SizeOf(fds[0]), 333);
}

TEST_F(RestartTest, WhatAnIrisdWasToSendIsNotWaitedForOnceAnotherHasCome) {
  auto client = Connected();
  SendDescriptors({Segment(1, 1)});
  ReceiveAck();
  std::thread irisd([&] { SendRestarted(1); });
  const absl::Status status =
      client->TakeDescriptors({SegmentKey(1), SegmentKey(2)}, Soon(), 0).status();
  irisd.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("restarted before it had sent all of 2"));
  EXPECT_TRUE(client->status().ok());
  // Descriptors that have arrived can still be taken.
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(1)}, Soon(), 0).ok());
  ReceiveSeen(1);
  SendDescriptors({Segment(5, 5)});
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(5)}, Soon(), 1).ok());
}

TEST_F(RestartTest, TheNamedDescriptorsAreDroppedAlone) {
  auto client = Connected();
  SendDescriptors({Segment(1, 1), Segment(2, 2)});
  ReceiveAck();
  client->DropDescriptors({SegmentKey(1), SegmentKey(7)});
  EXPECT_FALSE(client->TakeDescriptors({SegmentKey(1)}, absl::Now()).ok());
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(2)}, Soon()).ok());
}

TEST_F(RestartTest, TheEndOfTheSessionEndsACallThatWaitsToBeRepeated) {
  auto client = Connected();
  Result result;
  std::thread caller = StartCall(*client, "question", &result);
  ReceiveCall();
  FillQueue(*client);
  SendRestarted(1);
  SendDescriptors({Segment(1, 1)});
  EXPECT_TRUE(client->TakeDescriptors({SegmentKey(1)}, Soon()).ok());
  peer_.Reset();
  caller.join();
  EXPECT_EQ(result.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(result.answered);
}

}  // namespace
}  // namespace iris::internal
