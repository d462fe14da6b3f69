#include "server/worker/relayed_calls.h"

#include <utility>

#include "grpcpp/support/slice.h"
#include "proto/status/status.h"
#include "proto/wire/limits.h"

namespace iris::server {
namespace {

grpc::ByteBuffer ToBytes(std::string_view payload) {
  const grpc::Slice slice(payload.data(), payload.size());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::Status ToGrpc(const absl::Status& status) {
  return proto::ToGrpc(status, wire::kMaxErrorTextBytes);
}

absl::Status Cancelled() { return absl::CancelledError("the caller is gone"); }

}  // namespace

// Unary.

grpc::ServerUnaryReactor* UnaryCall::Start(Relay* relay, Method method,
                                           grpc::CallbackServerContext* context,
                                           const grpc::ByteBuffer* request,
                                           grpc::ByteBuffer* reply) {
  const std::string peer = context->peer();
  std::shared_ptr<UnaryCall> call(new UnaryCall(relay, relay->ConnectionOf(peer), reply));
  call->self_ = call;
  const absl::StatusOr<uint64_t> number = relay->Open(peer, method, *request, call);
  if (!number.ok()) {
    call->End(number.status());
    return call.get();
  }
  // gRPC calls the reactor back only once it has it.
  call->number_ = *number;
  return call.get();
}

void UnaryCall::OnMessage(std::string_view payload) {
  absl::MutexLock lock(&mu_);
  if (!ended_) answer_ = ToBytes(payload);
}

void UnaryCall::OnFinish(const absl::Status& status) {
  absl::Status told = status;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    if (told.ok() && !answer_.Valid()) told = absl::InternalError("irisd has given no answer");
    if (told.ok()) {
      absl::StatusOr<Relay::Unread> unread = relay_->HoldUnread(connection_, answer_.Length());
      if (unread.ok()) unread_ = *std::move(unread);
      told = unread.status();
    }
  }
  End(told);
}

void UnaryCall::End(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(ended_, true)) return;
    if (status.ok()) *reply_ = std::move(answer_);
    answer_.Clear();
  }
  Finish(ToGrpc(status));
}

void UnaryCall::OnCancel() {
  relay_->Cancel(number_);
  End(Cancelled());
}

void UnaryCall::OnDone() {
  const std::shared_ptr<UnaryCall> self = std::move(self_);  // may be destroyed as this returns
}

// Streams.

grpc::ServerWriteReactor<grpc::ByteBuffer>* StreamCall::Start(Relay* relay, Method method,
                                                              grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request) {
  std::shared_ptr<StreamCall> call(new StreamCall(relay));
  call->self_ = call;
  const absl::StatusOr<uint64_t> number = relay->Open(context->peer(), method, *request, call);
  if (!number.ok()) {
    call->OnFinish(number.status());
    return call.get();
  }
  // gRPC calls the reactor back only once it has it. Messages may have come already.
  call->number_ = *number;
  return call.get();
}

void StreamCall::OnMessage(std::string_view payload) {
  {
    absl::MutexLock lock(&mu_);
    if (ending_) return;
    queue_.push_back(ToBytes(payload));
  }
  Advance();
}

void StreamCall::OnFinish(const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(ending_, true)) return;
    status_ = status;
  }
  Advance();
}

void StreamCall::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (ok) {
      queue_.pop_front();
    } else {  // the reader is gone: OnCancel tells the core
      queue_.clear();
      if (!std::exchange(ending_, true)) status_ = Cancelled();
    }
  }
  if (ok) relay_->Sent(number_);
  Advance();
}

void StreamCall::OnCancel() {
  relay_->Cancel(number_);
  {
    absl::MutexLock lock(&mu_);
    if (queue_.size() > 1) queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
    if (!writing_) queue_.clear();
    if (!std::exchange(ending_, true)) status_ = Cancelled();
  }
  Advance();
}

void StreamCall::OnDone() {
  const std::shared_ptr<StreamCall> self = std::move(self_);  // may be destroyed as this returns
}

void StreamCall::Advance() {
  const grpc::ByteBuffer* message = nullptr;
  grpc::Status end;
  {
    absl::MutexLock lock(&mu_);
    if (writing_ || ended_) return;
    if (!queue_.empty()) {
      writing_ = true;
      message = &queue_.front();
    } else if (ending_) {
      ended_ = true;
      end = ToGrpc(status_);
    } else {
      return;
    }
  }
  if (message != nullptr) {
    StartWrite(message);
  } else {
    Finish(end);
  }
}

}  // namespace iris::server
