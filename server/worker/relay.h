// Relay: passes calls, as bytes, between the connections of a worker and the link to the core.
// gRPC's threads bring calls; the worker's own thread brings the core's messages.
//
// Thread-safe. It owns its duplicates of the connections' sockets; it borrows the link's socket and
// the epoll descriptor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/wire/unique_fd.h"
#include "server/link/link.h"
#include "server/link/methods.h"

namespace iris::server {

// Receives the answer of one call, on the worker's thread, without a lock of the relay's.
class RelayedCall {
 public:
  virtual ~RelayedCall() = default;
  virtual void OnMessage(std::string_view payload) = 0;
  virtual void OnFinish(const absl::Status& status) = 0;
};

class Relay {
 public:
  struct Limits {
    // Bytes of requests that wait for the core; more calls are refused.
    size_t max_queued_bytes = 0;
    // Bytes of answers that wait for their reader, per connection and in total.
    size_t max_unread_bytes_per_connection = 0;
    size_t max_unread_bytes = 0;
  };

  // `epoll` reports the link with kLinkToken, and a connection with its number. Both descriptors
  // must outlive the relay.
  static constexpr uint64_t kLinkToken = 0;
  Relay(int link, int epoll, const Limits& limits);

  // gRPC's threads call the following functions.

  // Returns the number of the connection that gRPC names `peer`; 0 if it has ended.
  uint64_t ConnectionOf(std::string_view peer) const ABSL_LOCKS_EXCLUDED(mu_);
  // Sends a call to the core and returns its number; `call` receives the answer. An error is the
  // call's answer, and the core is not asked: kUnavailable (the connection has ended, or irisd
  // stops or is gone), kResourceExhausted (the text names the limit).
  absl::StatusOr<uint64_t> Open(uint64_t connection, Method method, const grpc::ByteBuffer& request,
                                std::shared_ptr<RelayedCall> call) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a call whose caller is gone, and reports that to the core once.
  void Cancel(uint64_t call) ABSL_LOCKS_EXCLUDED(mu_);
  // Reports that gRPC has taken a message of a stream.
  void Sent(uint64_t call) ABSL_LOCKS_EXCLUDED(mu_);

  // Counts bytes of an answer, which gRPC keeps until its reader takes them. Returns
  // kResourceExhausted, and counts nothing, if the reader leaves too much unread.
  absl::Status HoldUnread(uint64_t connection, size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void ReleaseUnread(uint64_t connection, size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // The worker's thread calls the following functions.

  // Adds a connection. Returns a duplicate of its socket for gRPC, with a descriptor number that
  // was not used lately.
  absl::StatusOr<int> Connect(uint64_t connection, wire::UniqueFd socket) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends a connection and its calls, and notifies the core. Shuts down gRPC's socket. No-op if the
  // connection has ended.
  void Disconnect(uint64_t connection) ABSL_LOCKS_EXCLUDED(mu_);
  void DisconnectAll() ABSL_LOCKS_EXCLUDED(mu_);
  // Deliver the core's kMessage and kFinish. They ignore a call that was cancelled meanwhile.
  void DeliverMessage(uint64_t call, std::string_view payload) ABSL_LOCKS_EXCLUDED(mu_);
  void DeliverFinish(uint64_t call, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends a message of the worker's own.
  void Send(LinkHeader header, std::string payload = {}) ABSL_LOCKS_EXCLUDED(mu_);
  void OnLinkWritable() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the open calls with `why`, and refuses later calls with it.
  void FinishAll(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Connection {
    wire::UniqueFd socket;
    int rpc_fd = -1;  // gRPC's duplicate, whose number is the peer's name
    uint32_t n_calls = 0;
    size_t unread_bytes = 0;
  };
  // A call that the core has, until its kFinish, or its connection's end.
  struct Call {
    uint64_t connection = 0;
    std::shared_ptr<RelayedCall> listener;  // null: cancelled
  };

  void Queue(LinkHeader header, std::string payload) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int link_;
  const int epoll_;
  const Limits limits_;
  mutable absl::Mutex mu_;
  LinkWriter writer_ ABSL_GUARDED_BY(mu_);
  bool waits_for_link_ ABSL_GUARDED_BY(mu_) = false;  // epoll reports when the link can be written
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
