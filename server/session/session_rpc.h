// SessionRpc: the gRPC socket of one session, and those that come after it. Losing it ends no
// session and tells nobody anything: the client asks for another, and gets it when one is due.
// Not thread-safe: it belongs to the session thread. Borrows the host.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"
#include "proto/wire/limits.h"
#include "proto/wire/unique_fd.h"
#include "server/session/outbox.h"
#include "server/session/rpc_host.h"
#include "server/session/rpc_socket.h"

namespace iris::server {

// When a session may have its next gRPC socket: `burst` at once, then one in each `interval`. Pure.
class RpcBudget {
 public:
  RpcBudget(uint32_t burst, absl::Duration interval)
      : lead_((burst - 1) * interval), interval_(interval) {}

  absl::Time next() const { return due_ - lead_; }
  void Spend(absl::Time now) { due_ = std::max(due_, now) + interval_; }

 private:
  const absl::Duration lead_;
  const absl::Duration interval_;
  absl::Time due_ = absl::InfinitePast();  // of one more, if they came evenly
};

class SessionRpc {
 public:
  // Calls on its sockets are the peer's.
  SessionRpc(RpcHost* host, const RpcPeer& peer) : host_(host), peer_(peer) {}
  SessionRpc(const SessionRpc&) = delete;
  SessionRpc& operator=(const SessionRpc&) = delete;

  // A new socket pair: the host serves one end, the other one, which is returned, is for the
  // client. The one before is closed first. kResourceExhausted: irisd has no descriptors, or no
  // worker, left now.
  absl::StatusOr<wire::UniqueFd> Make();

  // The client asks for another one by `request`, a kRpcRequest. The one that it had is closed, so
  // that calls that came by it end now. kInvalidArgument: it has asked before and got no answer
  // yet, or the frame has a payload.
  absl::Status Ask(const wire::Frame& request);

  // Gives the client what it has asked for, if that is due and `outbox` has room for a descriptor
  // on its way; kBlocked: not yet. As Outbox::Flush.
  using Send = std::function<absl::Status(int fd)>;  // one kRpcSocket, as wire::SendFrame
  absl::StatusOr<Outbox::Flushed> Flush(absl::Time now, Outbox& outbox, const Send& send);

 private:
  RpcHost* const host_;
  const RpcPeer peer_;
  RpcSocket socket_;
  bool asked_ = false;
  RpcBudget budget_{wire::kRpcSocketBurst, absl::Milliseconds(wire::kRpcSocketIntervalMs)};
};

}  // namespace iris::server
