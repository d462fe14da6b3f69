// Connections: whose connection a gRPC call came in on. gRPC calls the peer of a socket that was
// handed to it "fd:N"; this table says which session, or which caller of the admin socket, stands
// behind N. Thread-safe.
//
// Identity is the connection: there is no token to steal. Descriptor numbers are not reused
// quickly, and every request repeats its session id, so that a late call on a closed connection
// cannot pass for a new one.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/job/ids.h"
#include "server/job/states.h"

namespace iris::server {

struct Connection {
  uint64_t id = 0;    // unique in the life of this irisd
  SessionId session;  // zero: an admin connection
  CallerInfo caller;
};

class Connections {
 public:
  // Duplicates `fd` to a number that was not used lately; the caller owns the duplicate.
  // Close-on-exec.
  absl::StatusOr<int> DuplicateToFreshNumber(int fd) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls on the descriptor number `fd` are the session's (zero: an admin connection) and the
  // caller's from now on. Returns the connection's id.
  uint64_t Add(int fd, SessionId session, const CallerInfo& caller) ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets the connection, unless the number belongs to a newer one by now.
  void Remove(int fd, uint64_t connection_id) ABSL_LOCKS_EXCLUDED(mu_);

  // `peer` as gRPC reports it. Nothing for a peer that is not "fd:N" of a known connection.
  std::optional<Connection> Find(std::string_view peer) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  int next_fd_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::unordered_map<int, Connection> by_fd_ ABSL_GUARDED_BY(mu_);
};

}  // namespace iris::server
