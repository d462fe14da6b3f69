// AdminConnections: the connections on irisd.sock. irisd knows whose they are; gRPC does the rest.
// Not thread-safe: it belongs to the session thread. Borrows everything it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "proto/wire/unique_fd.h"
#include "server/session/admission.h"
#include "server/session/connections.h"
#include "server/session/peer.h"
#include "server/session/poller.h"
#include "server/session/rpc_socket.h"

namespace iris::server {

class AdminConnections {
 public:
  // `adopt` hands a connected socket to gRPC, which then owns it.
  AdminConnections(Poller* poller, Connections* connections, Admission* admission,
                   std::function<void(int)> adopt);

  // Takes the socket only on success. Otherwise the status is for the caller.
  absl::Status Add(const Peer& peer, wire::UniqueFd* socket);

  // Ends one, by the key that its place was admitted with.
  void End(uint64_t key) { open_.erase(key); }
  // Ends them all.
  void Close() { open_.clear(); }

 private:
  struct Admin {
    Admission::Place place;
    RpcSocket rpc;
  };

  Poller* const poller_;
  Connections* const connections_;
  Admission* const admission_;
  const std::function<void(int)> adopt_;
  uint64_t next_key_ = 1;
  std::map<uint64_t, Admin> open_;
};

}  // namespace iris::server
