// UnreadSockets: the sockets of ended sessions whose clients have not yet received every descriptor
// that was sent to them. The kernel charges these descriptors to irisd's user until the client
// reads them or closes its end, so they count in their tenant's share until then.
//
// Not thread-safe: it belongs to the session thread. It owns the sockets, and borrows the closer.
#pragma once

#include <vector>

#include "proto/wire/unique_fd.h"
#include "server/account/party.h"
#include "server/session/deferred_close.h"
#include "server/session/in_flight.h"

namespace iris::server {

// Returns whether the peer has received everything that was sent on this socket, or has thrown it
// away by closing. The kernel says so: no peer can claim it.
bool AllReceived(int socket);

class UnreadSockets {
 public:
  explicit UnreadSockets(DeferredClose* closer) : closer_(closer) {}

  // Ends the connection, and keeps `share` until the peer has received all, or is gone.
  void Add(const Party& tenant, wire::UniqueFd socket, InFlight::Hold share);
  // Closes those whose peers have.
  void Sweep();

  bool empty() const { return ended_.empty(); }
  void Clear();

 private:
  struct Ended {
    Party tenant;
    wire::UniqueFd socket;
    InFlight::Hold share;
  };
  DeferredClose* const closer_;
  std::vector<Ended> ended_;
};

}  // namespace iris::server
