// Calls by frames of the session socket, from a client that is none of ours: what docs/protocol.md
// promises, and what it forbids, byte for byte.
#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/wire/limits.h"
#include "tests/fault/fault_fixture.h"

namespace iris::testing {
namespace {

using wire::CallMethod;
using wire::FrameType;

constexpr absl::Duration kPatience = absl::Seconds(20);

// A session that calls by frames. One thread.
class Caller {
 public:
  static std::unique_ptr<Caller> Open(const std::string& socket, uint32_t flags) {
    auto connected = Connect(socket, SOCK_SEQPACKET);
    if (!connected.ok()) return nullptr;
    auto caller = std::make_unique<Caller>();
    caller->socket_ = *std::move(connected);
    wire::HelloPayload hello;
    hello.flags = flags;
    EXPECT_TRUE(wire::SendFrame(caller->socket(), FrameType::kHello, hello).ok());
    caller->ReceiveUntil([&] { return caller->id_ != 0; });
    return caller;
  }

  int socket() const { return socket_.get(); }
  uint64_t id() const { return id_; }
  const absl::Status& ended() const { return ended_; }

  uint64_t Begin(CallMethod method, const std::string& request) {
    wire::CallPayload call;
    call.call = ++last_call_;
    call.method = static_cast<uint32_t>(method);
    call.bytes = static_cast<uint32_t>(request.size());
    if (request.size() <= wire::kMaxCallFrameBytes) {
      EXPECT_TRUE(wire::SendFrame(socket(), FrameType::kCall, call, request).ok());
      return last_call_;
    }
    const wire::UniqueFd file(memfd_create("request", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(write(file.get(), request.data(), request.size()),
              static_cast<ssize_t>(request.size()));
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK), 0);
    const int fd = file.get();
    EXPECT_TRUE(wire::SendFrame(socket(), FrameType::kCall, call, "", {&fd, 1}).ok());
    return last_call_;
  }

  // The answer of a call that has begun.
  template <typename Reply>
  absl::StatusOr<Reply> End(uint64_t call) {
    ReceiveUntil([&] { return ends_.count(call) != 0; });
    if (!ended_.ok()) return ended_;
    if (!ends_[call].ok()) return ends_[call];
    Reply reply;
    if (!reply.ParseFromString(bytes_[call])) return absl::InternalError("it does not parse");
    return reply;
  }
  template <typename Reply, typename Request>
  absl::StatusOr<Reply> Call(CallMethod method, Request request) {
    request.set_session_id(id_);
    return End<Reply>(Begin(method, request.SerializeAsString()));
  }

  absl::StatusOr<iris::v1::OperationResult> Operate(uint64_t job, uint64_t k,
                                                    iris::v1::OperateRequest request) {
    request.set_job_id(job);
    request.set_k(k);
    request.set_timeout_ms(20'000);
    auto reply = Call<iris::v1::OperateReply>(CallMethod::kOperate, std::move(request));
    if (!reply.ok()) return reply.status();
    if (reply->outcome().code() != 0) return absl::UnknownError(reply->outcome().text());
    return reply->outcome().result();
  }

  // Of a stream: the next message.
  std::string Next(uint64_t call) {
    ReceiveUntil([&] { return !bytes_[call].empty(); });
    EXPECT_TRUE(
        wire::SendFrame(socket(), FrameType::kTaken, wire::CallNumberPayload{.call = call}).ok());
    return std::exchange(bytes_[call], "");
  }

  wire::UniqueFd AskForRpcSocket() {
    EXPECT_TRUE(wire::SendEmptyFrame(socket(), FrameType::kRpcRequest).ok());
    ReceiveUntil([&] { return rpc_.valid(); });
    return std::move(rpc_);
  }

 private:
  void ReceiveUntil(const std::function<bool()>& done) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!done() && ended_.ok()) {
      auto frame = ReceiveFrameBefore(socket(), deadline);
      if (!frame.ok()) {
        ended_ = frame.status();
        return;
      }
      Take(*std::move(frame));
    }
  }

  void Take(wire::Frame frame) {
    switch (frame.type) {
      case FrameType::kWelcome:
        EXPECT_TRUE(frame.fds.empty()) << "nobody wants a gRPC socket";
        id_ = frame.As<wire::WelcomePayload>()->session_id;
        return;
      case FrameType::kError:
        ended_ = wire::StatusFromErrorPayload(*frame.As<wire::ErrorPayload>());
        return;
      case FrameType::kAnswer: {
        const auto [answer, bytes] = *frame.Split<wire::AnswerPayload>();
        bytes_[answer.call].append(bytes);
        if ((answer.flags & wire::kAnswerEnds) != 0) ends_[answer.call] = absl::OkStatus();
        return;
      }
      case FrameType::kFailure: {
        const auto failure = *frame.As<wire::FailurePayload>();
        ends_[failure.call] = wire::StatusFromErrorPayload(failure.error);
        return;
      }
      case FrameType::kRpcSocket:
        rpc_ = std::move(frame.fds.front());
        break;
      default:
        break;
    }
    const wire::AckPayload ack{static_cast<uint32_t>(std::max<size_t>(frame.fds.size(), 1))};
    EXPECT_TRUE(wire::SendFrame(socket(), FrameType::kAck, ack).ok());
  }

  wire::UniqueFd socket_;
  uint64_t id_ = 0;
  uint64_t last_call_ = 0;
  absl::Status ended_;
  std::map<uint64_t, std::string> bytes_;
  std::map<uint64_t, absl::Status> ends_;
  wire::UniqueFd rpc_;
};

class CallsFaultTest : public FaultTest {
 protected:
  std::unique_ptr<Caller> Open(uint32_t flags = wire::kCallsByFrames) {
    return Caller::Open(daemon_->session_socket(), flags);
  }
  static uint64_t BeginJoin(Caller& caller, const std::string& job, int rank, int n_ranks) {
    return caller.Begin(CallMethod::kJoin,
                        JoinRequestOf(caller.id(), job, rank, n_ranks).SerializeAsString());
  }
  static std::string MappedRequest(Caller& caller, const iris::v1::JoinReply& joined) {
    return MappedRequestOf(caller.id(), joined).SerializeAsString();
  }
};

TEST_F(CallsFaultTest, AJobLivesByFramesAlone) {
  const auto a = Open(), b = Open();
  ASSERT_TRUE(a != nullptr && b != nullptr);
  const uint64_t join_a = BeginJoin(*a, "frames", 0, 2), join_b = BeginJoin(*b, "frames", 1, 2);
  const auto joined = Require(a->End<iris::v1::JoinReply>(join_a));
  ASSERT_TRUE(b->End<iris::v1::JoinReply>(join_b).ok());
  const uint64_t mapped_a = a->Begin(CallMethod::kMapped, MappedRequest(*a, joined));
  const uint64_t mapped_b = b->Begin(CallMethod::kMapped, MappedRequest(*b, joined));
  ASSERT_TRUE(a->End<iris::v1::MappedReply>(mapped_a).ok());
  ASSERT_TRUE(b->End<iris::v1::MappedReply>(mapped_b).ok());

  iris::v1::WatchRequest watch;
  watch.set_session_id(a->id());
  watch.set_job_id(joined.job_id());
  const uint64_t stream = a->Begin(CallMethod::kWatch, watch.SerializeAsString());
  iris::v1::WatchEvent event;
  ASSERT_TRUE(event.ParseFromString(a->Next(stream)));
  EXPECT_TRUE(event.has_watching());

  // As long as a value may be: the request is a memfd, and the answers come in many pieces.
  std::string value(wire::kMaxBroadcastBytes, '\0');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 2654435761u >> 11);
  iris::v1::OperateRequest broadcast = OperateRequestOf(b->id(), joined, 0);
  broadcast.mutable_broadcast()->set_root(1);
  broadcast.mutable_broadcast()->set_value(value);
  const uint64_t sent = b->Begin(CallMethod::kOperate, broadcast.SerializeAsString());
  broadcast.mutable_broadcast()->clear_value();
  const auto heard = Require(a->Operate(joined.job_id(), 0, broadcast));
  EXPECT_TRUE(heard.value() == value);
  const auto reply = Require(b->End<iris::v1::OperateReply>(sent));
  EXPECT_TRUE(reply.outcome().result().value() == value);

  iris::v1::LeaveRequest leave;
  leave.set_job_id(joined.job_id());
  EXPECT_TRUE(b->Call<iris::v1::LeaveReply>(CallMethod::kLeave, leave).ok());
  ASSERT_TRUE(event.ParseFromString(a->Next(stream)));
  EXPECT_EQ(event.rank_changed().rank(), 1u);
  EXPECT_TRUE(a->Call<iris::v1::LeaveReply>(CallMethod::kLeave, leave).ok());
}

TEST_F(CallsFaultTest, ASessionMayUseBothWays) {
  const auto caller = Open();
  ASSERT_NE(caller, nullptr);
  iris::v1::LeaveRequest leave;
  leave.set_session_id(caller->id());
  const auto by_frame = caller->Call<iris::v1::LeaveReply>(CallMethod::kLeave, leave);
  EXPECT_EQ(by_frame.status().code(), absl::StatusCode::kPermissionDenied);
  wire::UniqueFd rpc = caller->AskForRpcSocket();
  ASSERT_TRUE(rpc.valid()) << caller->ended();
  ASSERT_EQ(fcntl(rpc.get(), F_SETFL, O_NONBLOCK), 0);
  auto stub =
      iris::v1::HeapService::NewStub(grpc::CreateInsecureChannelFromFd("irisd", rpc.Release()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  iris::v1::LeaveReply reply;
  EXPECT_EQ(FromGrpc(stub->Leave(&context, leave, &reply)), by_frame.status());
  EXPECT_EQ(caller->Call<iris::v1::LeaveReply>(CallMethod::kLeave, leave).status(),
            by_frame.status());
}

TEST_F(CallsFaultTest, BytesThatAreNoMessageAreTheCallsErrorAlone) {
  const auto caller = Open();
  ASSERT_NE(caller, nullptr);
  const auto answer =
      caller->End<iris::v1::OperateReply>(caller->Begin(CallMethod::kOperate, "\xff\xff\xff"));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(answer.status().message(), "OperateRequest")) << answer.status();
  EXPECT_TRUE(caller->ended().ok());
}

TEST_F(CallsFaultTest, AnotherSessionsNameIsRefused) {
  const auto a = Open(), b = Open();
  ASSERT_TRUE(a != nullptr && b != nullptr);
  iris::v1::LeaveRequest leave;
  leave.set_session_id(b->id());
  const auto answer =
      a->End<iris::v1::LeaveReply>(a->Begin(CallMethod::kLeave, leave.SerializeAsString()));
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(CallsFaultTest, FlagsThatNobodyKnowsAreRefused) {
  const auto caller = Open(wire::kCallsByFrames | 2);
  ASSERT_NE(caller, nullptr);
  EXPECT_EQ(caller->ended().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(caller->ended().message(), "flags 3")) << caller->ended();
}

TEST_F(CallsFaultTest, ACancelledJoinMakesRoomForTheNext) {
  const auto caller = Open();
  ASSERT_NE(caller, nullptr);
  const uint64_t join = BeginJoin(*caller, "cancelled", 0, 2);
  ASSERT_TRUE(wire::SendFrame(caller->socket(), FrameType::kCancelCall,
                              wire::CallNumberPayload{.call = join})
                  .ok());
  EXPECT_EQ(caller->End<iris::v1::JoinReply>(join).status().code(), absl::StatusCode::kCancelled);
  const auto alone = caller->End<iris::v1::JoinReply>(BeginJoin(*caller, "alone", 0, 1));
  EXPECT_TRUE(alone.ok()) << alone.status();
}

TEST_F(CallsFaultTest, ASessionThatEndsInTheMiddleOfACallIsAnEndLikeAnyOther) {
  const auto peer = Open();
  ASSERT_NE(peer, nullptr);
  const uint64_t waits = BeginJoin(*peer, "halves", 0, 2);
  {
    const auto gone = Open();
    ASSERT_NE(gone, nullptr);
    (void)BeginJoin(*gone, "other", 0, 2);
  }
  const auto second = Open();
  ASSERT_NE(second, nullptr);
  const uint64_t comes = BeginJoin(*second, "halves", 1, 2);
  EXPECT_TRUE(peer->End<iris::v1::JoinReply>(waits).ok());
  EXPECT_TRUE(second->End<iris::v1::JoinReply>(comes).ok());
}

}  // namespace
}  // namespace iris::testing
