// SessionRpc: the gRPC socket of one session, and its successors. A session outlives the loss of
// its socket: the client asks for another, and gets one when the rate limit allows. Not
// thread-safe: it belongs to the session thread. Borrows the host.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"
#include "server/account/rate_budget.h"
#include "server/session/outbox.h"
#include "server/session/rpc_host.h"

namespace iris::server {

class SessionRpc {
 public:
  // Calls on the sockets count as calls of `peer`.
  SessionRpc(RpcHost* host, const RpcPeer& peer) : host_(host), peer_(peer) {}
  SessionRpc(const SessionRpc&) = delete;
  SessionRpc& operator=(const SessionRpc&) = delete;

  // Closes the previous socket, and makes a new pair. The host serves one end; the client's end is
  // returned. Returns kResourceExhausted if irisd has no descriptors, or no worker, now.
  absl::StatusOr<wire::UniqueFd> Make();

  // Notes that the client asks for another socket with `request`, a kRpcRequest, and closes the
  // present one, so its calls end now. Returns kInvalidArgument if an earlier request waits for its
  // answer, or if the frame has a payload.
  absl::Status Ask(const wire::Frame& request);

  // Sends the client the socket that it asked for, if that is due and `outbox` has room for a
  // descriptor; otherwise returns kBlocked. Returns the errors of Outbox::Flush.
  using Send = std::function<absl::Status(int fd)>;  // sends one kRpcSocket, as wire::SendFrame
  absl::StatusOr<Outbox::Flushed> Flush(absl::Time now, Outbox& outbox, const Send& send);

 private:
  RpcHost* const host_;
  const RpcPeer peer_;
  RpcSocket socket_;
  bool asked_ = false;
  RateBudget budget_{wire::kRpcSocketBurst, absl::Milliseconds(wire::kRpcSocketIntervalMs)};
};

}  // namespace iris::server
