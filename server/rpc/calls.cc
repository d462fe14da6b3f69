#include "server/rpc/calls.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "device/base/bytes.h"
#include "proto/wire/limits.h"

namespace iris::server {

void Calls::Unary::Succeed(LinkPayload reply) {
  if (reply.size() > wire::kMaxRpcBytes) {
    return Fail(absl::ResourceExhaustedError(
        absl::StrCat("the answer has ", base::SizeText(reply.size()), "; irisd sends at most ",
                     base::SizeText(wire::kMaxRpcBytes), " in a message: ask for less at a time")));
  }
  reply_->Send(std::move(reply));
  reply_->Finish(absl::OkStatus());
}

void Calls::Unary::OnCancel() {
  if (daemon_->Cancel(id_)) Fail(absl::CancelledError("the caller is gone"));
}

absl::Status Calls::OutOfMemory() {
  return absl::ResourceExhaustedError(
      "the system gives irisd no memory for this call; it is as if it had not been made: call "
      "again later, or have the operator see to the limits of irisd's unit");
}

absl::StatusOr<SessionId> Calls::SessionOf(const IncomingCall& incoming, uint64_t session_id) {
  if (incoming.session.value == 0) {
    return absl::PermissionDeniedError(
        "heap calls need a session: connect to session.sock, and call on the socket that its "
        "handshake returns");
  }
  if (incoming.session.value != session_id) {
    return absl::PermissionDeniedError(
        absl::StrCat("the request names session ", session_id, ", which is not this connection's"));
  }
  return incoming.session;
}

bool StreamWriter::Queue(const google::protobuf::MessageLite& message, size_t max_queued) {
  absl::MutexLock lock(&mu_);
  if (ending_) return true;
  if (queue_.size() >= max_queued) return false;
  queue_.push_back(SerializeMessage(message));
  return true;
}

// The end of a stream drops a reference to it: `self` keeps it alive until the lock is released.

void StreamWriter::Flush() {
  const auto self = weak_from_this().lock();
  absl::MutexLock lock(&mu_);
  Advance();
}

void StreamWriter::Finish(const absl::Status& status) {
  const auto self = weak_from_this().lock();
  absl::MutexLock lock(&mu_);
  if (ending_) return;
  ending_ = true;
  status_ = status;
  Advance();
}

void StreamWriter::OnSent() {
  const auto self = weak_from_this().lock();
  absl::MutexLock lock(&mu_);
  if (on_their_way_ > 0) --on_their_way_;
  Advance();
}

void StreamWriter::OnCancel() {
  const auto self = weak_from_this().lock();
  OnReaderGone();
  absl::MutexLock lock(&mu_);
  queue_.clear();
  if (!std::exchange(ending_, true)) status_ = absl::CancelledError("the reader is gone");
  Advance();
}

void StreamWriter::Advance() {
  if (ended_) return;
  for (; !queue_.empty() && on_their_way_ < kStreamCredits; ++on_their_way_) {
    reply_->Send(std::move(queue_.front()));
    queue_.pop_front();
  }
  if (!queue_.empty() || !ending_) return;
  ended_ = true;
  reply_->Finish(status_);
}

}  // namespace iris::server
