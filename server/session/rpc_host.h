// RpcHost: the session side's interface to irisd's other processes: workers, which serve gRPC, and
// helpers, which inspect descriptors before irisd receives them. RpcSocket holds one connection to
// a worker. Both belong to the session thread, and so do all calls here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/account/accounts.h"
#include "server/account/party.h"
#include "server/job/ids.h"
#include "server/job/states.h"

namespace iris::server {

// Identifies the other end of a connection. It does not change while the connection lasts.
struct RpcPeer {
  Party tenant;
  SessionId session;  // zero for a connection of irisd.sock
  CallerInfo caller;
  std::shared_ptr<Account> account;  // the tenant's; null if nothing is counted
};

class RpcHost {
 public:
  virtual ~RpcHost() = default;

  // Serves gRPC on a connected socket, on which calls are the peer's. Returns the connection's
  // number, which is never reused. `closed` runs later, once, when the connection has ended by
  // itself, or with the worker that served it; not after Disconnect. Returns kResourceExhausted or
  // kUnavailable if the connection cannot be served, with the reason. Takes the socket only on
  // success; otherwise the caller closes it, which may take long.
  virtual absl::StatusOr<uint64_t> Connect(wire::UniqueFd* socket, const RpcPeer& peer,
                                           std::function<void()> closed) = 0;
  // Ends the connection and cancels its calls. No-op if it has ended.
  virtual void Disconnect(uint64_t connection) = 0;

  // Starts an inspection of the descriptors in the next packet of a session's socket, and returns
  // its number. `answer` runs once, later, unless Forget comes first; the socket is borrowed until
  // then. The answer is OK if no descriptor can make its receiver wait; otherwise the packet must
  // not be received, and the message says why.
  virtual uint64_t Look(int socket, const Party& tenant,
                        std::function<void(const absl::Status&)> answer) = 0;
  // Drops the answer of an inspection. No-op if it has been answered.
  virtual void Forget(uint64_t look) = 0;

  // Returns when to call RunDeadlines next.
  virtual absl::Time deadline() const = 0;
  virtual void RunDeadlines(absl::Time now) = 0;

  // Delivers answers to clients, then ends every connection. Takes at most `within`, and blocks
  // meanwhile. Nothing is served afterwards.
  virtual void Stop(absl::Duration within) = 0;
};

// Holds a connection, and ends it in the destructor. Borrows the host.
class RpcSocket {
 public:
  RpcSocket() = default;
  // Calls RpcHost::Connect.
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
