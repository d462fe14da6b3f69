// RpcServer: the gRPC server of both kinds of connection. It listens nowhere: irisd accepts and
// attests every connection itself, then hands the socket in. Thread-safe after Create. Borrows the
// services' parts.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "server/daemon.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/calls.h"
#include "server/rpc/heap_service.h"
#include "server/session/connections.h"

namespace iris::server {

class RpcServer {
 public:
  // Heap, admin, health and reflection services.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Create(Daemon* daemon,
                                                           const Connections* connections,
                                                           DaemonFacts facts);
  ~RpcServer();

  // Serves a connected, non-blocking socket; owns it from here on. gRPC calls its peer
  // "fd:<number>".
  void Adopt(int fd);

  // Waits until no call of ours is under way: every answer is on its way to its client. False: the
  // timeout came first.
  bool Drain(absl::Duration timeout) { return calls_.Drain(timeout); }

  // Refuses new calls, waits for the running ones until the timeout, then cancels them. Idempotent.
  void Shutdown(absl::Duration timeout);

 private:
  RpcServer(Daemon* daemon, const Connections* connections, DaemonFacts facts);

  Calls calls_;
  HeapService heap_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace iris::server
