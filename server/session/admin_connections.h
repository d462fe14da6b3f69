// AdminConnections: the connections on irisd.sock. irisd knows whose they are; a worker does the
// rest. Not thread-safe: it belongs to the session thread. Borrows everything it is given.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "proto/wire/unique_fd.h"
#include "server/session/admission.h"
#include "server/session/peer.h"
#include "server/session/rpc_host.h"
#include "server/session/rpc_socket.h"

namespace iris::server {

class AdminConnections {
 public:
  AdminConnections(Admission* admission, RpcHost* host) : admission_(admission), host_(host) {}

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

  Admission* const admission_;
  RpcHost* const host_;
  uint64_t next_key_ = 1;
  std::map<uint64_t, Admin> open_;
};

}  // namespace iris::server
