#include "server/rpc/calls.h"

#include <optional>

#include "absl/strings/str_cat.h"

namespace iris::server {

void Calls::Unary::End(const absl::Status& status) { Finish(ToGrpc(status)); }

void Calls::Unary::OnCancel() {
  if (daemon_->Cancel(id_)) End(absl::CancelledError("the caller is gone"));
}

absl::StatusOr<SessionId> Calls::SessionOf(const Context& context, uint64_t session_id) const {
  const std::optional<Connection> connection = connections_->Find(context.peer());
  if (!connection.has_value()) {
    return absl::PermissionDeniedError("the connection's session has ended");
  }
  if (connection->session.value == 0) {
    return absl::PermissionDeniedError(
        "heap calls need a session: connect to session.sock, and call on the socket that its "
        "handshake returns");
  }
  if (connection->session.value != session_id) {
    return absl::PermissionDeniedError(
        absl::StrCat("the request names session ", session_id, ", which is not this connection's"));
  }
  return connection->session;
}

absl::StatusOr<CallerInfo> Calls::CallerOf(const Context& context) const {
  const std::optional<Connection> connection = connections_->Find(context.peer());
  if (!connection.has_value()) return absl::PermissionDeniedError("the connection has ended");
  return connection->caller;
}

}  // namespace iris::server
