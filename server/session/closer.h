// Closer: closes what clients gave, and connections to them. The kernel may take as long over a
// close as whoever made the descriptor likes: a connection that lingers, a file of a file system
// that does not answer, or a socket in whose queue such things still are. So it happens on threads
// that wait for nobody else's: one for each tenant, while it has something to close. There are at
// most kMaxThreads of them, and none where the system gives no thread: what has no thread waits for
// one that has nothing left to do, or for the next call.
//
// What waits takes a descriptor of irisd's. IsFull says that a tenant has as many as it may have:
// take nothing more from it then.
//
// Thread-safe, and never blocks. Threads that hang end with the process: a Closer may be destroyed
// before they do. Copies are one and the same.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/unique_fd.h"
#include "server/session/tenant.h"

namespace iris::server {

class Closer {
 public:
  static constexpr size_t kMaxThreads = 64;
  // Starts a thread that runs `body` and that nobody joins. False: the system gives none.
  using StartThread = std::function<bool(std::function<void()> body)>;

  explicit Closer(size_t max_per_tenant = std::numeric_limits<size_t>::max(),
                  StartThread start_thread = nullptr);

  // Descriptors that came from the tenant.
  void Close(const Tenant& tenant, wire::UniqueFd fd);
  void Close(const Tenant& tenant, std::vector<wire::UniqueFd> fds);
  // A connection of the tenant's. It is ended at once, and where the kernel keeps nothing that the
  // client has sent, it is also closed at once.
  void CloseConnection(const Tenant& tenant, wire::UniqueFd socket);

  // Whether so many of the tenant's wait as may wait.
  bool IsFull(const Tenant& tenant) const;
  size_t max_per_tenant() const { return state_->max_per_tenant; }

  // How many wait, of all tenants, without those that are being closed.
  size_t n_waiting() const;

 private:
  struct Queue {
    std::deque<wire::UniqueFd> fds;
    bool has_thread = false;
  };
  struct State {
    State(size_t max, StartThread start) : max_per_tenant(max), start_thread(std::move(start)) {}
    const size_t max_per_tenant;
    const StartThread start_thread;
    mutable absl::Mutex mu;
    // Of tenants that have something to close, or whose thread is about to look.
    std::map<Tenant, Queue> queues ABSL_GUARDED_BY(mu);
    size_t n_threads ABSL_GUARDED_BY(mu) = 0;
  };
  // A thread: closes what the tenant has, then what others have who have no thread.
  static void Run(const std::shared_ptr<State>& state, Tenant tenant);
  // A tenant that has something to close and no thread.
  static std::optional<Tenant> NextWithoutThread(const State& state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu);

  std::shared_ptr<State> state_;
};

}  // namespace iris::server
