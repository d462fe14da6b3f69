// RpcSocket: irisd's hold on a socket that gRPC serves. gRPC owns a duplicate; this one notices
// that the peer hangs up, and ends the connection when it is destroyed. Not thread-safe: it belongs
// to the session thread. Borrows the poller and the connection table.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/session/connections.h"
#include "server/session/poller.h"

namespace iris::server {

class RpcSocket {
 public:
  RpcSocket() = default;
  // `socket` is connected and does not block. Takes it only on success. `hung_up` runs when the
  // peer, or gRPC, has closed.
  static absl::StatusOr<RpcSocket> Create(wire::UniqueFd* socket, Poller* poller,
                                          Connections* connections, Poller::Handler hung_up);
  // Shuts the connection down, for gRPC's duplicate too, and forgets whose it was.
  ~RpcSocket() { Close(); }
  RpcSocket(RpcSocket&& other) noexcept { *this = std::move(other); }
  RpcSocket& operator=(RpcSocket&& other) noexcept;

  // Makes calls on it `session`'s (zero: an admin connection) and `caller`'s, then gives gRPC's
  // duplicate to `adopt`, which owns it from there on. Once.
  void Serve(SessionId session, const CallerInfo& caller, const std::function<void(int)>& adopt);

  void Close();

 private:
  Connections* connections_ = nullptr;
  Poller::Watched socket_;
  wire::UniqueFd for_rpc_;  // until Serve
  int rpc_fd_ = -1;         // its number, which is gRPC's name for the peer
  uint64_t connection_id_ = 0;
};

}  // namespace iris::server
