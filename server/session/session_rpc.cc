#include "server/session/session_rpc.h"

#include <errno.h>
#include <sys/socket.h>

#include <utility>

namespace iris::server {

absl::StatusOr<wire::UniqueFd> SessionRpc::Make() {
  socket_.Close();
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
    return wire::ErrnoStatus(errno, "make the session's gRPC socket");
  }
  wire::UniqueFd ours(pair[0]);
  wire::UniqueFd theirs(pair[1]);
  // The end of this socket alone does not end the session: the client asks for another one.
  absl::StatusOr<RpcSocket> made = RpcSocket::Create(host_, &ours, peer_, nullptr);
  if (!made.ok()) return made.status();
  socket_ = *std::move(made);
  return theirs;
}

absl::Status SessionRpc::Ask(const wire::Frame& request) {
  if (!request.payload.empty()) {
    return absl::InvalidArgumentError("session frame has the wrong length for its type");
  }
  if (asked_) {
    return absl::InvalidArgumentError(
        "asks for a gRPC socket before the one that it asked for has come: wait for kRpcSocket");
  }
  asked_ = true;
  socket_.Close();
  return absl::OkStatus();
}

absl::StatusOr<Outbox::Flushed> SessionRpc::Flush(absl::Time now, Outbox& outbox,
                                                  const Send& send) {
  if (!asked_) return Outbox::Flushed::kIdle;
  if (!budget_.Allows(now) || !outbox.HasRoom()) return Outbox::Flushed::kBlocked;
  const absl::StatusOr<wire::UniqueFd> theirs = Make();
  const bool later =
      absl::IsResourceExhausted(theirs.status()) || absl::IsUnavailable(theirs.status());
  if (later) return Outbox::Flushed::kBlocked;
  if (!theirs.ok()) return theirs.status();
  const absl::Status sent = send(theirs->get());
  if (absl::IsResourceExhausted(sent)) return Outbox::Flushed::kBlocked;
  if (absl::IsUnavailable(sent)) return Outbox::Flushed::kIdle;  // its hang-up will be reported
  if (!sent.ok()) return sent;
  asked_ = false;
  budget_.Spend(now);
  outbox.CountSent();
  return Outbox::Flushed::kIdle;
}

}  // namespace iris::server
