// What docs/protocol.md says of calls that go wrong, asked of a real irisd over its sockets.
#include <poll.h>
#include <sys/socket.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "tests/fault/fault_fixture.h"

namespace iris::testing {
namespace {

using absl::StatusCode;

class ProtocolTest : public FaultTest {
 protected:
  // A call of any method with any bytes.
  static absl::Status CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                                    const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool done = false;
    queue.Next(&tag, &done);
    return FromGrpc(status);
  }

  iris::v1::OperateRequest Request(const RawSession& session, const iris::v1::JoinReply& joined,
                                   uint64_t k) {
    iris::v1::OperateRequest request;
    request.set_session_id(session.id());
    request.set_job_id(joined.job_id());
    request.set_k(k);
    return request;
  }
};

TEST_F(ProtocolTest, LeaveCanBeRepeated) {
  Joined alone = JoinAlone("again");
  ASSERT_NE(alone.session, nullptr);
  for (int i = 0; i < 3; ++i) {
    const absl::Status left = alone.session->Leave(alone.reply);
    EXPECT_TRUE(left.ok()) << left;
  }
  // Anything else that it asks of that job says how its membership ended.
  const auto asked = alone.session->Allocate(alone.reply, 0, 1024);
  EXPECT_EQ(asked.status().code(), StatusCode::kFailedPrecondition) << asked.status();
  // Of a job that it never was in, it hears nothing.
  iris::v1::JoinReply other = alone.reply;
  other.set_job_id(alone.reply.job_id() + 1);
  EXPECT_EQ(alone.session->Leave(other).code(), StatusCode::kPermissionDenied);
}

TEST_F(ProtocolTest, AnOperateWithoutAnOperationConsumesNothing) {
  Joined alone = JoinAlone("nothing");
  ASSERT_NE(alone.session, nullptr);
  const auto nothing = alone.session->Operate(Request(*alone.session, alone.reply, 0));
  EXPECT_EQ(nothing.status().code(), StatusCode::kInvalidArgument) << nothing.status();
  EXPECT_TRUE(absl::StrContains(nothing.status().message(), "no operation that irisd knows"))
      << nothing.status();
  // One of a newer irisd: field 1000, a message of no bytes.
  const std::string newer =
      Request(*alone.session, alone.reply, 0).SerializeAsString() + std::string("\xc2\x3e\x00", 3);
  EXPECT_EQ(CallWithBytes(alone.session->channel(), "/iris.v1.HeapService/Operate", newer).code(),
            StatusCode::kInvalidArgument);
  const auto allocated = alone.session->Allocate(alone.reply, 0, 1024);
  EXPECT_TRUE(allocated.ok()) << allocated.status();
}

TEST_F(ProtocolTest, BytesThatAreNoMessageAreSaidToBeNone) {
  auto session = OpenSession();
  ASSERT_NE(session, nullptr);
  const std::map<std::string, std::vector<std::string>> methods = {
      {"HeapService", {"Join", "Mapped", "Operate", "GrowMapped", "Leave", "Resume", "Watch"}},
      {"AdminService",
       {"GetStatus", "ListDevices", "ListJobs", "ListHeaps", "ListAllocations", "ListSessions",
        "Events", "Peek"}}};
  for (const auto& [service, names] : methods) {
    for (const std::string& name : names) {
      const std::string method = "/iris.v1." + service + "/" + name;
      for (const std::string& garbage :
           {std::string(11, '\xff'), std::string("\x0a\x7f", 2), std::string(10'000, '\x07')}) {
        const absl::Status status = CallWithBytes(session->channel(), method, garbage);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << method << ": " << status;
        EXPECT_TRUE(absl::StrContains(status.message(), "is not a message of type iris.v1." + name))
            << method << ": " << status;
      }
    }
  }
}

TEST_F(ProtocolTest, OnlyMembersLearnOfATeam) {
  auto first = OpenSession(), second = OpenSession();
  ASSERT_TRUE(first != nullptr && second != nullptr);
  const auto start = [&](RawSession& session, int rank, auto then) {
    return std::thread([&session, rank, then] {
      auto joined = session.Join(session.JoinRequest("teams", rank, 2));
      ASSERT_TRUE(joined.ok()) << joined.status();
      ASSERT_TRUE(session.Mapped(*joined).ok());
      then(*joined);
    });
  };
  const auto create = [this](RawSession& session, const iris::v1::JoinReply& joined) {
    iris::v1::OperateRequest request = Request(session, joined, 0);
    request.mutable_create_team()->add_ranks(0);
    return session.Operate(request);
  };
  std::thread a = start(*first, 0, [&](const iris::v1::JoinReply& joined) {
    const auto made = create(*first, joined);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->team().team_id(), 1u);
  });
  std::thread b = start(*second, 1, [&](const iris::v1::JoinReply& joined) {
    const auto made = create(*second, joined);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_FALSE(made->has_team()) << "its id is the members' business";
    for (const auto& [team, code] :
         {std::pair(1, StatusCode::kPermissionDenied), std::pair(2, StatusCode::kNotFound)}) {
      iris::v1::OperateRequest request = Request(*second, joined, 0);
      request.set_team_id(team);
      request.mutable_allocate()->set_bytes(1024);
      EXPECT_EQ(second->Operate(request).status().code(), code) << team;
    }
    EXPECT_TRUE(second->Leave(joined).ok());
    EXPECT_TRUE(first->Leave(joined).ok());
  });
  a.join();
  b.join();
}

TEST_F(ProtocolTest, ARefusedClientFindsTheReasonBehindABrokenPipe) {
  StartDaemon({.flags = {"--max-sessions-per-tenant", "1"}});
  auto only = OpenSession();
  for (const bool wait : {true, false}) {
    auto socket = Require(Connect(daemon_->session_socket(), SOCK_SEQPACKET));
    struct pollfd closed = {socket.get(), POLLRDHUP, 0};
    // It may be refused before it has said anything, or when it has.
    if (wait) poll(&closed, 1, 2000);
    wire::SendFrame(socket.get(), wire::FrameType::kHello, wire::HelloPayload()).IgnoreError();
    auto frame = Require(ReceiveFrameBefore(socket.get(), absl::Now() + absl::Seconds(20)));
    ASSERT_EQ(frame.type, wire::FrameType::kError);
    const auto error = Require(frame.As<wire::ErrorPayload>());
    EXPECT_EQ(wire::StatusFromErrorPayload(error).code(), StatusCode::kResourceExhausted);
  }
}

TEST_F(ProtocolTest, ALinkIsOfTheDeviceThatItsRankNames) {
  auto session = OpenSession();
  ASSERT_NE(session, nullptr);
  auto request = session->JoinRequest("link", 0, 1);
  request.set_local_rank(3);
  auto joined = Require(session->Join(request));
  ASSERT_GT(joined.link_bytes(), 0u);
  std::map<wire::DescriptorKind, wire::DescriptorRecord> records;
  while (records.size() < 4) {
    auto received = Require(session->ReceiveDescriptors(1));
    for (const auto& [record, fd] : received) {
      records[static_cast<wire::DescriptorKind>(record.kind)] = record;
    }
    if (records.count(wire::DescriptorKind::kSegment) != 0) break;  // links come with it or after
  }
  const auto link = records.find(wire::DescriptorKind::kLink);
  ASSERT_NE(link, records.end());
  EXPECT_EQ(link->second.rank, joined.peers(0).device_index());
  EXPECT_EQ(link->second.bytes, joined.link_bytes());
  EXPECT_EQ(link->second.segment_id, 0u);
  EXPECT_TRUE(session->Mapped(joined).ok());
  EXPECT_TRUE(session->Leave(joined).ok());
}

}  // namespace
}  // namespace iris::testing
