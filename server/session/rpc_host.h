// RpcHost: what the session side asks of irisd's other processes: of a worker of the tenant's,
// which serves gRPC, and of the one that looks at descriptors before irisd receives them. It
// belongs to the session thread, as all that is called here.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/account/accounts.h"
#include "server/account/party.h"
#include "server/job/ids.h"
#include "server/job/states.h"

namespace iris::server {

// Who is at the other end of a connection, for as long as it lasts.
struct RpcPeer {
  Party tenant;
  SessionId session;  // zero: a connection of irisd.sock
  CallerInfo caller;
  std::shared_ptr<Account> account;  // of the tenant; null: nothing is counted
};

class RpcHost {
 public:
  virtual ~RpcHost() = default;

  // Serves gRPC on a connected socket: calls on it are the peer's. Returns the connection's number,
  // which is never reused. `closed` runs when the connection has ended by itself, or with the
  // worker that served it: once, later, and not after Disconnect. kResourceExhausted,
  // kUnavailable: it cannot be served; the text says why. The socket is taken on success alone: who
  // has it closes it, which may take long.
  virtual absl::StatusOr<uint64_t> Connect(wire::UniqueFd* socket, const RpcPeer& peer,
                                           std::function<void()> closed) = 0;
  // Ends the connection and cancels its calls. No-op for one that has ended.
  virtual void Disconnect(uint64_t connection) = 0;

  // Has the next packet of a session's socket looked at, which brings descriptors; the look's
  // number. `answer` runs once, later, unless Forget comes first; the socket is borrowed so long.
  // OK: none of the descriptors can make whoever receives them wait. Else they are not to be
  // received, and the text says why.
  virtual uint64_t Look(int socket, const Party& tenant,
                        std::function<void(const absl::Status&)> answer) = 0;
  // Its answer will not run. No-op for one that has been answered.
  virtual void Forget(uint64_t look) = 0;

  // When RunDeadlines is to be called next.
  virtual absl::Time deadline() const = 0;
  virtual void RunDeadlines(absl::Time now) = 0;

  // Lets what was answered reach its clients, then ends every connection. Takes no longer than
  // `within`, and blocks meanwhile. Nothing is served afterwards.
  virtual void Stop(absl::Duration within) = 0;
};

}  // namespace iris::server
