#include "server/rpc/calls.h"

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

}  // namespace iris::server
