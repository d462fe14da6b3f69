// DeferredClose: closes descriptors that clients gave, and connections to clients, without waiting.
// A client can make the close of its descriptor block for as long as it likes: a connection that
// lingers, a file of a file system that does not answer, or a socket with such ones in its queue.
//
// A connection that has descriptors in its queue is handed over to a process that may hang
// (HelperProcesses), if there is one. Neither those descriptors nor the socket count as irisd's
// then, so their number does not matter.
//
// All other descriptors are closed on threads: a tenant has one for memory and one for the rest,
// while there is something to close. There are at most kMaxThreads threads, and none if the system
// provides none: descriptors without a thread wait for an idle thread, or for the next call.
//
// Each descriptor that waits is one of irisd's. There are two kinds, counted separately:
// - Inspected memory (decision 45). Its close always ends, but may take a while: pages are freed,
//   or the driver is slow. While RoomForMemory returns an error, receive no more yet.
// - All others. Their close may never end. While Room returns an error, take nothing more
//   from the tenant.
// If all tenants together have reached the limit, a tenant that has its equal part has no room; a
// tenant without descriptors to close still has.
//
// Thread-safe, and never blocks. Threads that hang end with the process: a DeferredClose may be
// destroyed before its threads end. Copies share their state.
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
  // Starts a detached thread that runs `body`. Returns false if the system provides no thread.
  using StartThread = std::function<bool(std::function<void()> body)>;
  // Has another process close the socket as well, after which irisd's close cannot hang. Returns
  // false if no process can now. CloseConnection calls it on its caller's thread.
  using HandOver = std::function<bool(int socket)>;
  // One or several descriptors.
  struct Fds {
    Fds(wire::UniqueFd fd) { all.push_back(std::move(fd)); }       // NOLINT: implicit
    Fds(std::vector<wire::UniqueFd> fds) : all(std::move(fds)) {}  // NOLINT: implicit
    std::vector<wire::UniqueFd> all;
  };

  DeferredClose() : DeferredClose(Limits()) {}
  explicit DeferredClose(const Limits& limits, StartThread start_thread = nullptr);

  // Sets the function. Without one, or with null, connections are closed on threads.
  void SetHandOver(HandOver hand_over);

  // Closes inspected memory of the tenant. Such a close never waits for the descriptor's maker.
  void Close(const Party& tenant, Fds fds) {
    Add({/*is_memory=*/true, tenant}, std::move(fds.all), /*are_connections=*/false);
  }
  // Closes descriptors whose close may wait for their maker.
  void CloseUnknown(const Party& tenant, Fds fds) {
    Add({/*is_memory=*/false, tenant}, std::move(fds.all), /*are_connections=*/false);
  }
  // Ends a connection of the tenant at once. The client can still read data that was sent to it.
  // Unread data from the client is dropped; if it has no descriptors, the socket is closed at once.
  void CloseConnection(const Party& tenant, wire::UniqueFd socket);

  // kResourceExhausted if too many wait, memory excluded. The message has the tenant and advice.
  absl::Status Room(const Party& tenant) const;
  bool IsFull(const Party& tenant) const { return !Room(tenant).ok(); }
  // Returns kResourceExhausted if so much memory of the tenant waits that no more may be received
  // yet. That passes, unless the devices' driver hangs.
  absl::Status RoomForMemory(const Party& tenant) const;

  // Returns true if descriptors wait without a thread, because none could be started. Retry and
  // later closes try again.
  bool needs_thread() const;
  void Retry() { StartThreadFor(std::nullopt); }

  // Count descriptors of all tenants, without memory: those that no thread closes yet, and all.
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
    // Queues that are not empty, or whose thread is about to check them; memory comes first.
    std::map<Key, Queue> queues ABSL_GUARDED_BY(mu);
    size_t n_memory_waiting ABSL_GUARDED_BY(mu) = 0;
    // The following counts exclude memory.
    size_t n_waiting ABSL_GUARDED_BY(mu) = 0;
    size_t n_being_closed ABSL_GUARDED_BY(mu) = 0;
    size_t n_threads ABSL_GUARDED_BY(mu) = 0;
  };
  void Add(const Key& key, std::vector<wire::UniqueFd> fds, bool are_connections);
  // Starts a thread for `wanted` or for another queue that has none, if one more is allowed.
  void StartThreadFor(const std::optional<Key>& wanted);
  // Runs on a thread: empties the queue of `key`, then other queues that have no thread.
  static void Run(const std::shared_ptr<State>& state, Key key);
  // Returns a queue that is not empty and has no thread.
  static std::optional<Key> NextWithoutThread(const State& state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu);
  // Returns kResourceExhausted if the queue has reached its limit, when `n_waiting` wait in all.
  static absl::Status RoomIn(const State& state, const Key& key, size_t n_waiting,
                             absl::string_view what_they_are)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu);

  std::shared_ptr<State> state_;
};

}  // namespace iris::server
