// DeferredClose: closes what clients gave, and connections to them. The kernel may take as long
// over a close as whoever made the descriptor likes: a connection that lingers, a file of a file
// system that does not answer, or a socket in whose queue such things still are. So it happens
// elsewhere.
//
// A connection that has descriptors in its queue is handed over to a process that may hang
// (ClosingProcess), where there is one: none of these descriptors has ever been irisd's own, and
// this socket is none any more. So it does not matter how many there are.
//
// All else happens on threads that wait for nobody else's: a tenant has one for memory and one for
// the rest, while there is something to close. There are at most kMaxThreads of them, and none
// where the system gives no thread: what has no thread waits for one that has nothing left to do,
// or for the next call.
//
// Each descriptor that waits is one of irisd's. There are two kinds, counted apart:
// - Memory that was looked at (decision 45). Its close always ends, but may take a while: pages are
//   freed, or the driver is slow. RoomForMemory says when to wait before more is received.
// - All else. Its close may never end. Room says when a tenant has too much of it: take nothing
//   more from it then.
// Where all tenants together have as many as they may have, there is no room for each that has its
// equal part of them: one that has nothing to close is held up by nobody.
//
// Thread-safe, and never blocks. Threads that hang end with the process: a DeferredClose may be
// destroyed before they do. Copies are one and the same.
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
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/unique_fd.h"
#include "server/account/party.h"

namespace iris::server {

class DeferredClose {
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

  DeferredClose() : DeferredClose(Limits()) {}
  explicit DeferredClose(const Limits& limits, StartThread start_thread = nullptr);

  // From now on; null: none. Connections are then closed on one thread.
  void SetHandOver(HandOver hand_over);

  // Descriptors of memory that came from the tenant and were looked at: their close cannot wait for
  // whoever made them.
  void Close(const Party& tenant, wire::UniqueFd fd);
  void Close(const Party& tenant, std::vector<wire::UniqueFd> fds);
  // Descriptors whose close may wait for whoever made them.
  void CloseUnknown(const Party& tenant, wire::UniqueFd fd);
  void CloseUnknown(const Party& tenant, std::vector<wire::UniqueFd> fds);
  // A connection of the tenant's. It is ended at once. The client still reads what was sent to it,
  // and what it has sent is dropped. Where that brought no descriptors, it is also closed at once.
  void CloseConnection(const Party& tenant, wire::UniqueFd socket);

  // kResourceExhausted: as many wait as may wait, memory left aside; the text says of whom, and
  // what to do.
  absl::Status Room(const Party& tenant) const;
  bool IsFull(const Party& tenant) const { return !Room(tenant).ok(); }
  // kResourceExhausted: so much memory of the tenant waits that no more of it is to be received
  // yet. That passes, unless the devices' driver hangs.
  absl::Status RoomForMemory(const Party& tenant) const;

  // True: something waits for which no thread could be started; Retry tries that again, as do
  // later closes.
  bool needs_thread() const;
  void Retry() { StartThreadFor(std::nullopt); }

  // How many wait, of all tenants and without memory: those that are not being closed yet, and all.
  size_t n_waiting() const;
  size_t n_unclosed() const;

 private:
  struct Item {
    wire::UniqueFd fd;
    bool is_connection = false;
  };
  struct Key {
    bool is_memory = false;
    Party tenant;
    friend bool operator<(const Key& a, const Key& b) {
      return a.is_memory != b.is_memory ? a.is_memory : a.tenant < b.tenant;
    }
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
    // Those that are not empty, or whose thread is about to look; memory comes first.
    std::map<Key, Queue> queues ABSL_GUARDED_BY(mu);
    size_t n_memory_waiting ABSL_GUARDED_BY(mu) = 0;
    // Without memory.
    size_t n_waiting ABSL_GUARDED_BY(mu) = 0;
    size_t n_being_closed ABSL_GUARDED_BY(mu) = 0;
    size_t n_threads ABSL_GUARDED_BY(mu) = 0;
  };
  void Add(const Key& key, std::vector<wire::UniqueFd> fds);
  void Add(const Key& key, std::vector<Item> items);
  // Starts a thread for a queue that has none, if there may be one more: this one, or another.
  void StartThreadFor(const std::optional<Key>& wanted);
  // A thread: closes what is in the queue, then in others that have no thread.
  static void Run(const std::shared_ptr<State>& state, Key key);
  // A queue that is not empty and has no thread.
  static std::optional<Key> NextWithoutThread(const State& state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu);
  // kResourceExhausted: the queue has as many as it may have, where `n_waiting` wait in all.
  static absl::Status RoomIn(const State& state, const Key& key, size_t n_waiting,
                             absl::string_view what_they_are)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu);

  std::shared_ptr<State> state_;
};

}  // namespace iris::server
