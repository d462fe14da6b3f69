#include "tests/integration/grpc_rank.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <sys/socket.h>

#include <utility>

#include "absl/time/clock.h"
#include "proto/status/status.h"
#include "tests/integration/daemon_harness.h"

namespace iris::testing {

absl::StatusOr<std::unique_ptr<GrpcRank>> GrpcRank::Connect(const std::string& session_socket,
                                                            absl::Duration patience) {
  std::unique_ptr<GrpcRank> rank(new GrpcRank(patience));
  absl::StatusOr<wire::UniqueFd> socket = testing::Connect(session_socket, SOCK_SEQPACKET);
  if (!socket.ok()) return socket.status();
  rank->session_ = *std::move(socket);
  absl::Status status =
      wire::SendFrame(rank->session_.get(), wire::FrameType::kHello, wire::HelloPayload{});
  if (!status.ok()) return status;
  status = rank->Receive([&] { return !rank->waits_for_socket_; });
  if (!status.ok()) return status;
  return rank;
}

GrpcRank::~GrpcRank() = default;

void GrpcRank::UseSocket(wire::UniqueFd socket) {
  (void)fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  {
    absl::MutexLock lock(&mu_);
    duplicate_.Reset(fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
  }
  stub_ =
      iris::v1::HeapService::NewStub(grpc::CreateInsecureChannelFromFd("irisd", socket.Release()));
  waits_for_socket_ = false;
}

void GrpcRank::Cut() {
  absl::MutexLock lock(&mu_);
  if (duplicate_.valid()) shutdown(duplicate_.get(), SHUT_RDWR);
}

absl::Status GrpcRank::Receive(const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + patience_;
  while (!done()) {
    absl::StatusOr<wire::Frame> frame = ReceiveFrameBefore(session_.get(), deadline);
    if (!frame.ok()) return frame.status();
    wire::AckPayload ack;
    switch (frame->type) {
      case wire::FrameType::kChallenge: {
        const auto nonce = frame->As<wire::NoncePayload>();
        if (!nonce.ok()) return nonce.status();
        const absl::Status sent =
            wire::SendFrame(session_.get(), wire::FrameType::kChallengeReply, *nonce);
        if (!sent.ok()) return sent;
        continue;
      }
      case wire::FrameType::kWelcome: {
        const auto welcome = frame->As<wire::WelcomePayload>();
        if (!welcome.ok()) return welcome.status();
        session_id_ = welcome->session_id;
        if (frame->fds.size() != 1) return absl::InternalError("kWelcome without a socket");
        UseSocket(std::move(frame->fds.front()));
        continue;
      }
      case wire::FrameType::kRpcSocket:
        if (frame->fds.size() != 1) return absl::InternalError("kRpcSocket without a socket");
        UseSocket(std::move(frame->fds.front()));
        ++replaced_;
        ack.count = 1;
        break;
      case wire::FrameType::kDescriptors: {
        const auto payload = frame->As<wire::DescriptorsPayload>();
        if (!payload.ok()) return payload.status();
        for (uint32_t i = 0; i < payload->count; ++i) {
          const bool link =
              payload->records[i].kind == static_cast<uint32_t>(wire::DescriptorKind::kLink);
          n_descriptors_ += link ? 0 : 1;
        }
        ack.count = payload->count;
        break;
      }
      case wire::FrameType::kError: {
        const auto error = frame->As<wire::ErrorPayload>();
        return error.ok() ? wire::StatusFromErrorPayload(*error) : error.status();
      }
      default:
        return absl::InternalError("an unexpected frame");
    }
    const absl::Status sent = wire::SendFrame(session_.get(), wire::FrameType::kAck, ack);
    if (!sent.ok()) return sent;
  }
  return absl::OkStatus();
}

absl::Status GrpcRank::Call(const std::function<grpc::Status(Stub&, grpc::ClientContext*)>& call) {
  const absl::Time deadline = absl::Now() + patience_;
  for (;;) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    const grpc::Status status = call(*stub_, &context);
    switch (status.error_code()) {
      case grpc::StatusCode::UNAVAILABLE:
      case grpc::StatusCode::CANCELLED:
      case grpc::StatusCode::UNKNOWN:
      case grpc::StatusCode::INTERNAL:  // what gRPC makes of a lost connection
        break;
      default:
        return proto::FromGrpc(status);
    }
    if (absl::Now() >= deadline) return proto::FromGrpc(status);
    waits_for_socket_ = true;
    absl::Status asked = wire::SendEmptyFrame(session_.get(), wire::FrameType::kRpcRequest);
    if (asked.ok()) asked = Receive([this] { return !waits_for_socket_; });
    if (!asked.ok()) return asked;
  }
}

absl::Status GrpcRank::Join(const std::string& job, int rank, int n_ranks, uint64_t heap_bytes) {
  iris::v1::JoinRequest request = JoinRequestOf(session_id_, job, rank, n_ranks, heap_bytes);
  request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(patience_)));
  request.set_number(1);
  absl::Status status = Call([&](Stub& stub, grpc::ClientContext* context) {
    return stub.Join(context, request, &joined_);
  });
  if (!status.ok()) return status;
  // The status page, a control page and a segment of each rank.
  const size_t wanted = 1 + 2 * static_cast<size_t>(n_ranks);
  status = Receive([&] { return n_descriptors_ >= wanted; });
  if (!status.ok()) return status;
  const iris::v1::MappedRequest mapped = MappedRequestOf(session_id_, joined_);
  return Call([&](Stub& stub, grpc::ClientContext* context) {
    iris::v1::MappedReply reply;
    return stub.Mapped(context, mapped, &reply);
  });
}

absl::StatusOr<iris::v1::OperationResult> GrpcRank::Operate(iris::v1::OperateRequest request) {
  request.set_session_id(session_id_);
  request.set_job_id(joined_.job_id());
  request.set_k(k_);
  request.set_timeout_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(patience_)));
  iris::v1::OperateReply reply;
  const absl::Status status = Call([&](Stub& stub, grpc::ClientContext* context) {
    reply.Clear();
    return stub.Operate(context, request, &reply);
  });
  if (!status.ok()) return status;
  if (reply.outcome().k() != k_) return absl::InternalError("the outcome of another operation");
  ++k_;
  if (reply.outcome().code() != 0) {
    return absl::Status(proto::CodeOf(reply.outcome().code()), reply.outcome().text());
  }
  return reply.outcome().result();
}

absl::Status GrpcRank::Leave() {
  const iris::v1::LeaveRequest request = LeaveRequestOf(session_id_, joined_);
  return Call([&](Stub& stub, grpc::ClientContext* context) {
    iris::v1::LeaveReply reply;
    return stub.Leave(context, request, &reply);
  });
}

}  // namespace iris::testing
