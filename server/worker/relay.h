// Relay: the calls that are open in a worker, and the connections they came by, on one side; the
// link to the core on the other. gRPC's threads bring calls, the worker's own thread brings what
// the core sends. It knows of a call its number and its bytes, nothing else.
//
// Thread-safe. It owns its duplicates of the connections' sockets; it borrows the link's socket and
// the epoll descriptor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/wire/unique_fd.h"
#include "server/link/link.h"
#include "server/link/methods.h"

namespace iris::server {

// A call as the relay sees it. Called by the worker's thread, with no lock of the relay's held.
class RelayedCall {
 public:
  virtual ~RelayedCall() = default;
  virtual void OnMessage(std::string_view payload) = 0;
  virtual void OnFinish(const absl::Status& status) = 0;
};

class Relay {
 public:
  struct Limits {
    // Bytes of requests that wait for the core; beyond it calls are refused.
    size_t max_queued_bytes = 0;
    // Bytes of answers that wait for their reader, of one connection and of all.
    size_t max_unread_bytes_per_connection = 0;
    size_t max_unread_bytes = 0;
  };

  // What `epoll` reports of the link has kLinkToken with it; of a connection, its number. Both
  // descriptors must outlive the relay.
  static constexpr uint64_t kLinkToken = 0;
  Relay(int link, int epoll, const Limits& limits);

  // For gRPC's threads.

  // Sends a call to the core and returns its number; `call` hears the answer. `peer` is gRPC's name
  // of the connection. The status is the call's answer if the core is not asked: kUnavailable (the
  // connection has ended, or irisd stops or is gone), kResourceExhausted (a limit; the text names
  // it).
  absl::StatusOr<uint64_t> Open(std::string_view peer, Method method,
                                const grpc::ByteBuffer& request, std::shared_ptr<RelayedCall> call)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The caller is gone: `call` hears nothing any more. The core is told, once.
  void Cancel(uint64_t call) ABSL_LOCKS_EXCLUDED(mu_);
  // gRPC has taken a message of a stream.
  void Sent(uint64_t call) ABSL_LOCKS_EXCLUDED(mu_);

  // Bytes of an answer that gRPC keeps until its reader takes them. Give them back by destroying
  // it.
  class Unread {
   public:
    Unread() = default;
    Unread(Unread&& other) noexcept { *this = std::move(other); }
    Unread& operator=(Unread&& other) noexcept;
    ~Unread();

   private:
    friend class Relay;
    Relay* relay_ = nullptr;
    uint64_t connection_ = 0;
    size_t bytes_ = 0;
  };
  // kResourceExhausted: the reader leaves too much unread.
  absl::StatusOr<Unread> HoldUnread(uint64_t connection, size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // The number of the connection that gRPC calls `peer`; 0 if it has ended.
  uint64_t ConnectionOf(std::string_view peer) const ABSL_LOCKS_EXCLUDED(mu_);

  // For the worker's thread.

  // Takes a connection. Returns a duplicate of its socket for gRPC, of a number that has not been
  // used lately.
  absl::StatusOr<int> Connect(uint64_t connection, wire::UniqueFd socket) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends it, if it has not ended: its calls are over, and the core is told. gRPC finds its socket
  // shut down.
  void Disconnect(uint64_t connection) ABSL_LOCKS_EXCLUDED(mu_);
  void DisconnectAll() ABSL_LOCKS_EXCLUDED(mu_);
  // The core's kMessage and kFinish. A number that is not open is ignored: it was cancelled
  // meanwhile.
  void DeliverMessage(uint64_t call, std::string_view payload) ABSL_LOCKS_EXCLUDED(mu_);
  void DeliverFinish(uint64_t call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends something of the worker's own.
  void Send(LinkHeader header, std::string payload = {}) ABSL_LOCKS_EXCLUDED(mu_);
  // The link can be written again.
  void OnLinkWritable() ABSL_LOCKS_EXCLUDED(mu_);
  // From now on calls are refused with `why`; FinishAll ends the open ones with it.
  void Refuse(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  void FinishAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Connection {
    wire::UniqueFd socket;
    int rpc_fd = -1;  // gRPC's, whose number is the peer's name
    uint32_t n_calls = 0;
    size_t unread_bytes = 0;
  };
  // Open towards the core: until its kFinish, or its connection's end.
  struct Call {
    uint64_t connection = 0;
    std::shared_ptr<RelayedCall> listener;  // null: cancelled
  };

  void ReleaseUnread(uint64_t connection, size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t FindPeer(std::string_view peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Queue(LinkHeader header, std::string payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int link_;
  const int epoll_;
  const Limits limits_;
  mutable absl::Mutex mu_;
  LinkWriter writer_ ABSL_GUARDED_BY(mu_);
  bool waits_for_link_ ABSL_GUARDED_BY(mu_) = false;  // epoll reports when it can be written
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status refusal_ ABSL_GUARDED_BY(mu_);
  uint64_t last_call_ ABSL_GUARDED_BY(mu_) = 0;
  int next_fd_ ABSL_GUARDED_BY(mu_) = 0;
  size_t unread_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::unordered_map<uint64_t, Call> calls_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<int, uint64_t> connection_by_fd_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::server
