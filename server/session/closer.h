// Closer: closes what clients gave, and connections to them. The kernel may take as long over a
// close as whoever made the descriptor likes: a connection that lingers, a file of a file system
// that does not answer, or a socket in whose queue such things still are. So it happens on threads
// that wait for nobody else's: one for each tenant, while it has something to close.
//
// Thread-safe, and never blocks. Threads that hang end with the process: a Closer may be destroyed
// before they do. Copies are one and the same.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/unique_fd.h"
#include "server/session/tenant.h"

namespace iris::server {

class Closer {
 public:
  Closer() : state_(std::make_shared<State>()) {}

  // Descriptors that came from the tenant.
  void Close(const Tenant& tenant, wire::UniqueFd fd);
  void Close(const Tenant& tenant, std::vector<wire::UniqueFd> fds);
  // A connection of the tenant's. It is ended at once, and where the kernel keeps nothing that the
  // client has sent, it is also closed at once.
  void CloseConnection(const Tenant& tenant, wire::UniqueFd socket);

  // How many wait, of all tenants.
  size_t n_waiting() const;

 private:
  struct State {
    mutable absl::Mutex mu;
    // Of tenants that have something to close, or whose thread is about to end.
    std::map<Tenant, std::deque<wire::UniqueFd>> waiting ABSL_GUARDED_BY(mu);
  };
  // The thread of one tenant.
  static void Run(const std::shared_ptr<State>& state, const Tenant& tenant);

  std::shared_ptr<State> state_;
};

}  // namespace iris::server
