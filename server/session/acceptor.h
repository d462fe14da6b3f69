// Acceptor: accepts connections, even after descriptors have run out. Not thread-safe: it belongs
// to the session thread. Borrows the poller.
//
// Acceptor keeps one descriptor in reserve. When no other is left, it gives the reserve up for a
// moment, so that a caller is refused instead of left waiting. If that does not help, because the
// whole machine has run out, it stops listening for a while instead of spinning.
#pragma once

#include <functional>
#include <list>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/session/poller.h"

namespace iris::server {

class Acceptor {
 public:
  using TakeSocket = std::function<void(wire::UniqueFd socket)>;

  // `refuse` sends an error on a connection that gets no descriptor, and closes the connection.
  Acceptor(Poller* poller, TakeSocket refuse);

  // Accepts from `listener`, which is listening and does not block. Accepted sockets do not block.
  absl::Status Listen(wire::UniqueFd listener, TakeSocket accept);

  // Returns when RunDeadlines is to be called next.
  absl::Time deadline() const { return listen_again_; }
  void RunDeadlines(absl::Time now);

  void Close() { listeners_.clear(); }

 private:
  struct Listener {
    wire::UniqueFd paused;  // has the socket while `watched` has not
    Poller::Watched watched;
    TakeSocket accept;
  };

  absl::Status Watch(Listener& listener);
  void Accept(Listener& listener);
  void AcceptWithReserve(Listener& listener);

  Poller* const poller_;
  const TakeSocket refuse_;
  std::list<Listener> listeners_;  // handlers hold addresses
  wire::UniqueFd reserve_;
  absl::Time listen_again_ = absl::InfiniteFuture();
};

}  // namespace iris::server
