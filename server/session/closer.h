// Closer: closes what clients gave, and connections to them. The kernel may take as long over a
// close as whoever made the descriptor likes: a connection that lingers, a file of a file system
// that does not answer, or a socket in whose queue such things still are. So it happens elsewhere.
//
// A connection that has descriptors in its queue is handed over to a process that may hang
// (ClosingProcess), where there is one: none of these descriptors has ever been irisd's own, and
// this socket is none any more. So it does not matter how many there are.
//
// All else happens on threads that wait for nobody else's: one for each tenant, while it has
// something to close. There are at most kMaxThreads of them, and none where the system gives no
// thread: what has no thread waits for one that has nothing left to do, or for the next call.
//
// What waits takes a descriptor of irisd's. Room says whether a tenant has as many as it may have:
// take nothing more from it then. Where all tenants together have as many as they may have, that is
// so of each that has its equal part of them: one that has nothing to close is held up by nobody.
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
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/unique_fd.h"
#include "server/account/party.h"

namespace iris::server {

class Closer {
 public:
  static constexpr size_t kMaxThreads = 64;
  struct Limits {
    size_t per_tenant = std::numeric_limits<size_t>::max();
    size_t total = std::numeric_limits<size_t>::max();
  };
  // Starts a thread that runs `body` and that nobody joins. False: the system gives none.
  using StartThread = std::function<bool(std::function<void()> body)>;
  // Has another process close the socket, too, after which closing it here cannot hang. False: not
  // now. Called on the thread that calls CloseConnection.
  using HandOver = std::function<bool(int socket)>;

  Closer() : Closer(Limits()) {}
  explicit Closer(const Limits& limits, StartThread start_thread = nullptr);

  // From now on; null: none. Connections are then closed on one thread.
  void SetHandOver(HandOver hand_over);

  // Descriptors that came from the tenant.
  void Close(const Party& tenant, wire::UniqueFd fd);
  void Close(const Party& tenant, std::vector<wire::UniqueFd> fds);
  // A connection of the tenant's. It is ended at once. The client still reads what was sent to it,
  // and what it has sent is dropped. Where that brought no descriptors, it is also closed at once.
  void CloseConnection(const Party& tenant, wire::UniqueFd socket);

  // kResourceExhausted: so many wait as may wait; the text says of whom, and what to do.
  absl::Status Room(const Party& tenant) const;
  bool IsFull(const Party& tenant) const { return !Room(tenant).ok(); }

  // How many wait, of all tenants, without those that are being closed; and with them.
  size_t n_waiting() const;
  size_t n_unclosed() const;

 private:
  struct Item {
    wire::UniqueFd fd;
    bool is_connection = false;
  };
  struct Queue {
    std::deque<Item> items;
    bool has_thread = false;
  };
  struct State {
    State(const Limits& limits_, StartThread start)
        : limits(limits_), start_thread(std::move(start)) {}
    const Limits limits;
    const StartThread start_thread;
    mutable absl::Mutex mu;
    std::shared_ptr<const HandOver> hand_over ABSL_GUARDED_BY(mu);
    // Of tenants that have something to close, or whose thread is about to look.
    std::map<Party, Queue> queues ABSL_GUARDED_BY(mu);
    size_t n_waiting ABSL_GUARDED_BY(mu) = 0;
    size_t n_being_closed ABSL_GUARDED_BY(mu) = 0;
    size_t n_threads ABSL_GUARDED_BY(mu) = 0;
  };
  void Add(const Party& tenant, std::vector<Item> items);
  // A thread: closes what the tenant has, then what others have who have no thread.
  static void Run(const std::shared_ptr<State>& state, Party tenant);
  // A tenant that has something to close and no thread.
  static std::optional<Party> NextWithoutThread(const State& state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu);

  std::shared_ptr<State> state_;
};

}  // namespace iris::server
