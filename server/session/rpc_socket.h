// RpcSocket: the session side's hold on a socket that gRPC serves: it ends the connection when it
// is destroyed. Not thread-safe: it belongs to the session thread. Borrows the host.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/session/rpc_host.h"

namespace iris::server {

class RpcSocket {
 public:
  RpcSocket() = default;
  // As RpcHost::Connect.
  static absl::StatusOr<RpcSocket> Create(RpcHost* host, wire::UniqueFd* socket,
                                          const RpcPeer& peer, std::function<void()> closed) {
    const absl::StatusOr<uint64_t> connection = host->Connect(socket, peer, std::move(closed));
    if (!connection.ok()) return connection.status();
    RpcSocket made;
    made.host_ = host;
    made.connection_ = *connection;
    return made;
  }
  ~RpcSocket() { Close(); }
  RpcSocket(RpcSocket&& other) noexcept { *this = std::move(other); }
  RpcSocket& operator=(RpcSocket&& other) noexcept {
    std::swap(host_, other.host_);
    std::swap(connection_, other.connection_);
    return *this;
  }

  void Close() {
    if (host_ != nullptr) std::exchange(host_, nullptr)->Disconnect(connection_);
  }

 private:
  RpcHost* host_ = nullptr;
  uint64_t connection_ = 0;
};

}  // namespace iris::server
