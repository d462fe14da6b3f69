#include "client/internal/rpc_channels.h"

#include <errno.h>
#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>

#include <utility>

#include "client/internal/clock.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"

namespace iris::internal {

absl::StatusOr<std::shared_ptr<RpcChannel>> RpcChannels::Wait(uint64_t after, Waiter waiter,
                                                              absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return present_ != nullptr && present_->number > after;
  };
  const auto over = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !ended_.ok() || (cancelled_ && waiter == Waiter::kMember);
  };
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return there() || over(); };
  mu_.AwaitWithTimeout(absl::Condition(&done), deadline - Now());
  if (!ended_.ok()) return ended_;
  if (there()) return present_;
  if (over()) return absl::CancelledError("this context has left the job");
  return absl::DeadlineExceededError(
      "the gRPC socket of the session broke, and irisd gave no other one in time");
}

RpcChannels::Loss RpcChannels::WaitForLoss(uint64_t number, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  const auto lost = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return !ended_.ok() || present_ == nullptr || present_->number != number;
  };
  if (!mu_.AwaitWithTimeout(absl::Condition(&lost), timeout)) return Loss::kNone;
  return ended_.ok() ? Loss::kChannel : Loss::kSession;
}

void RpcChannels::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
}

absl::Status RpcChannels::Use(wire::UniqueFd socket) {
  const int flags = fcntl(socket.get(), F_GETFL);
  if (flags < 0 || fcntl(socket.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
    return wire::ErrnoStatus(errno, "set up the gRPC socket of the session");
  }
  socket_.Reset(fcntl(socket.get(), F_DUPFD_CLOEXEC, 3));
  if (!socket_.valid()) return wire::ErrnoStatus(errno, "watch the gRPC socket of the session");
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(wire::kMaxRpcBytes));
  auto channel = std::make_shared<RpcChannel>();
  channel->stub = iris::v1::HeapService::NewStub(
      grpc::CreateCustomInsecureChannelFromFd("irisd", socket.Release(), arguments));
  absl::MutexLock lock(&mu_);
  channel->number = ++last_number_;
  present_ = std::move(channel);
  return absl::OkStatus();
}

void RpcChannels::Lose() {
  socket_.Reset();
  std::shared_ptr<RpcChannel> lost;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  lost.swap(present_);
}

void RpcChannels::End(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  ended_ = status;
}

}  // namespace iris::internal
