// WorkerLink: the core's end of one worker's link. It receives the calls that the worker relays,
// passes them to the services, and writes the answers. Messages are hostile until they are checked:
// a message that breaks a rule of server/link/link.h ends the link.
//
// Two kinds of threads call WorkerLink: the session thread, which owns it and reads; and threads
// that answer calls, which write without waiting for the session thread. The owner and the calls
// under way share the object. Borrows the poller.
//
// A worker that has connections is pinged. If it does not answer, because it is stopped or hangs,
// the link ends, since its clients would wait for ever. The core reads only while few bytes of
// answers wait for the worker, so a worker that sends calls and takes no answers costs little.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/link/incoming_call.h"
#include "server/link/link.h"
#include "server/session/poller.h"
#include "server/session/rpc_host.h"

namespace iris::server {

class WorkerLink : public std::enable_shared_from_this<WorkerLink> {
 public:
  // A worker that answers no ping is ended after at most kPingEvery * (kPingsMissed + 1).
  static constexpr absl::Duration kPingEvery = absl::Seconds(5);
  static constexpr int kPingsMissed = 2;

  // Callbacks to the owner on the session thread. The last one is `ended`, once, after all calls
  // were cancelled; it does not run after Close.
  struct Owner {
    std::function<void()> ready;
    // Called when the worker has released the connection.
    std::function<void(uint64_t connection)> closed;
    // Gets kUnavailable if the worker has closed the link. Otherwise the worker broke a rule, which
    // the message names.
    std::function<void(const absl::Status&)> ended;
    // Closes a socket that a client or the worker may have filled with descriptors, so that the
    // close may take long.
    std::function<void(wire::UniqueFd socket)> close_socket;
    // Closes irisd's descriptor of a socket that the worker was given and still uses. Any thread
    // may call it; it calls nothing of the link.
    std::function<void(wire::UniqueFd given)> close_given;
  };

  // `socket` is one end of a socket pair and does not block.
  static absl::StatusOr<std::shared_ptr<WorkerLink>> Create(wire::UniqueFd socket, Poller* poller,
                                                            ServeCall serve, Owner owner);

  // Only the session thread calls the following functions.

  // Passes the worker a connection, whose number is larger than all before.
  void Connect(uint64_t connection, const RpcPeer& peer, wire::UniqueFd socket)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Has the worker close the connection, and cancels its calls; `closed` follows. No-op if it has
  // ended. Returns true if the worker was not given it yet: it has ended, and `closed` never runs.
  bool Disconnect(uint64_t connection) ABSL_LOCKS_EXCLUDED(mu_);
  // Asks the worker to deliver its messages, then exit.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // Cancels every call, and closes the link. Idempotent.
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  // Returns when to call Continue.
  absl::Time deadline() const ABSL_LOCKS_EXCLUDED(mu_);
  void Continue(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);

  // For repliers. Any thread may call the following functions.
  void Send(uint64_t call, LinkPayload message) ABSL_LOCKS_EXCLUDED(mu_);
  void Finish(uint64_t call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Connection {
    RpcPeer peer;
    std::unordered_set<uint64_t> calls;
    bool closing = false;  // kDisconnect was sent, kClosed has not come
  };
  struct Call {
    uint64_t connection = 0;
    Method method = Method::kJoin;
    bool streams = false;
    uint32_t on_their_way = 0;  // messages of a stream, sent without their kSent
    std::shared_ptr<ActiveCall> active;
  };

  WorkerLink(Poller* poller, ServeCall serve, Owner owner)
      : poller_(poller), serve_(std::move(serve)), owner_(std::move(owner)) {}

  // Only the session thread calls the following functions.
  void OnEvents(uint32_t events) ABSL_LOCKS_EXCLUDED(mu_);
  // Handles messages that were read, up to a limit.
  void RunMessages() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Handle(const LinkMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnCall(const LinkMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnCancelOrSent(uint64_t call, bool sent) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnClosed(uint64_t connection) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status OnPong() ABSL_LOCKS_EXCLUDED(mu_);
  // Pings the worker, or counts a missing answer. Returns false if the worker must be ended.
  bool Ping(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void End(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_);

  // Any thread may call these functions. Flush writes what the socket takes, and sets its events.
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the counter of the method's open calls, if these have a limit of their own; else null.
  uint32_t* CounterOf(Method method) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes and returns the connection's calls; the caller cancels them without the lock.
  std::vector<std::shared_ptr<ActiveCall>> TakeCalls(Connection* connection)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Poller* const poller_;
  const ServeCall serve_;
  const Owner owner_;

  // Only the session thread uses these.
  LinkReader reader_{LinkSender::kWorker};
  bool ready_ = false;
  bool more_ = false;                 // a message that was read may not be handled yet
  std::shared_ptr<Account> account_;  // of the tenant, from its first connection
  uint64_t last_call_ = 0;

  mutable absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Poller::Watched socket_ ABSL_GUARDED_BY(mu_);
  uint32_t events_ ABSL_GUARDED_BY(mu_) = 0;  // that are watched
  bool paused_ ABSL_GUARDED_BY(mu_) = false;  // too much waits for the worker
  LinkWriter writer_ ABSL_GUARDED_BY(mu_);
  absl::Time retry_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::Time stalled_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::Time ping_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool pinged_ ABSL_GUARDED_BY(mu_) = false;  // the answer to the ping is missing
  int pings_missed_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t n_event_streams_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t n_admin_calls_ ABSL_GUARDED_BY(mu_) = 0;  // other calls of the admin service
  std::unordered_map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, Call> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::server
