// SessionServer: the accept loop of both sockets, the handshake, and the life of every session.
//
// One thread owns every session object; other threads only put commands into its inbox. Nothing on
// that thread blocks: a client that is slow, silent or hostile costs itself only. Borrows the
// daemon, the connection table and the logger.
//
// A session ends in two steps. Hang-up: its socket closed, its client broke a rule, or the daemon
// ended it; both sockets are shut down and calls are refused. Gone: the pidfd says that the process
// has ended; only then is a rank given up.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"
#include "server/daemon.h"
#include "server/log.h"
#include "server/session/attestation.h"
#include "server/session/connections.h"

namespace iris::server {

struct SessionOptions {
  Attestation attestation = Attestation::kAuto;
  absl::Duration handshake_timeout = absl::Seconds(5);
  uint32_t max_sessions = 4096;  // in total, unattested ones included
  uint32_t max_sessions_per_uid = 1024;
  uint32_t max_unattested = 256;
  uint32_t max_admin_connections = 256;
  uint32_t max_admin_connections_per_uid = 64;
};

// What of `options` fits into a limit of `fd_limit` descriptors, with room left for segments and
// pages.
SessionOptions FitToDescriptors(SessionOptions options, uint64_t fd_limit);
// How many descriptors `fitted`, of FitToDescriptors, leaves for segments and pages.
uint64_t DescriptorsForMemory(const SessionOptions& fitted, uint64_t fd_limit);

class SessionServer : public SessionOutput {
 public:
  // Both listeners are listening, non-blocking sockets. `adopt` hands a connected socket to gRPC,
  // which then owns it.
  static absl::StatusOr<std::unique_ptr<SessionServer>> Create(
      const SessionOptions& options, wire::UniqueFd session_listener, wire::UniqueFd admin_listener,
      Daemon* daemon, Connections* connections, std::function<void(int)> adopt,
      const Logger* logger);
  // Stops.
  ~SessionServer() override;

  // Starts the thread. Once.
  void Start();
  // Ends the thread; every socket is closed, every client told. Idempotent.
  void Stop();

  // SessionOutput. Any thread; they only queue.
  void SendDescriptors(SessionId session, std::vector<OutgoingDescriptor> descriptors) override
      ABSL_LOCKS_EXCLUDED(inbox_mu_);
  void EndSession(SessionId session, const absl::Status& reason) override
      ABSL_LOCKS_EXCLUDED(inbox_mu_);
  void ReleaseSession(SessionId session) override ABSL_LOCKS_EXCLUDED(inbox_mu_);

  // Since start. Any thread.
  uint64_t sessions_total() const { return sessions_total_.load(std::memory_order_relaxed); }
  uint64_t sessions_refused() const { return sessions_refused_.load(std::memory_order_relaxed); }
  uint64_t sessions_open() const { return sessions_open_.load(std::memory_order_relaxed); }
  const std::string& attestation_in_use() const { return attestation_in_use_; }
  uint64_t daemon_id() const { return daemon_id_; }
  const SessionOptions& options() const { return options_; }

 private:
  enum class State { kHello, kNonce, kOpen, kEnding };
  struct Session {
    uint64_t key = 0;  // also in epoll data
    SessionId id;      // zero until open
    State state = State::kHello;
    CallerInfo caller;
    wire::UniqueFd socket;
    wire::UniqueFd pidfd;
    wire::UniqueFd rpc;  // duplicate of the socket that gRPC owns
    int rpc_fd = -1;     // gRPC's own number
    uint64_t connection_id = 0;
    wire::NoncePayload nonce;
    std::deque<OutgoingDescriptor> outbox;
    uint32_t in_flight = 0;  // descriptors sent and not acknowledged
    bool retry = false;      // is in retries_
  };
  struct AdminConnection {
    uint64_t key = 0;
    uint32_t uid = 0;
    wire::UniqueFd rpc;
    int rpc_fd = -1;
    uint64_t connection_id = 0;
  };
  struct SendCommand {
    SessionId session;
    std::vector<OutgoingDescriptor> descriptors;
  };
  struct EndCommand {
    SessionId session;
    absl::Status reason;
  };
  struct ReleaseCommand {
    SessionId session;
  };
  struct HandshakeDeadline {
    absl::Time at;
    uint64_t key;
  };

  SessionServer(const SessionOptions& options, Daemon* daemon, Connections* connections,
                std::function<void(int)> adopt, const Logger* logger);
  absl::Status Init(wire::UniqueFd session_listener, wire::UniqueFd admin_listener);

  void Run();
  int EpollTimeoutMs() const;
  void RunCommands() ABSL_LOCKS_EXCLUDED(inbox_mu_);
  void RunDeadlines();
  void Wake();

  void Accept(int listener, bool admin);
  void AcceptOutOfDescriptors(int listener);
  void Refuse(wire::UniqueFd socket, const absl::Status& reason);
  absl::Status AddSession(wire::UniqueFd& socket);
  absl::Status AddAdmin(wire::UniqueFd& socket);

  void OnSocket(Session& session, uint32_t events);
  // Returns not ok if the client broke the protocol.
  absl::Status OnFrame(Session& session, wire::Frame frame);
  absl::Status OnHello(Session& session, const wire::Frame& frame);
  absl::Status OnNonce(Session& session, const wire::Frame& frame);
  absl::Status OnAck(Session& session, const wire::Frame& frame);
  absl::Status Open(Session& session);
  void Flush(Session& session);
  void FlushSome(Session& session, absl::Status* failure);

  // Ends what the client sees of the session; `told` (if not ok) is sent first. May destroy
  // `session`.
  void HangUp(Session& session, const absl::Status& told, const std::string& reason);
  void Gone(Session& session);
  void Erase(Session& session);
  void EraseAdmin(uint64_t key);
  void ReleaseUid(uint32_t uid);
  void ReleaseUnattested(uint32_t uid);
  Session* FindSession(SessionId id);

  const SessionOptions options_;
  Daemon* const daemon_;
  Connections* const connections_;
  const std::function<void(int)> adopt_;
  const Logger* const logger_;
  uint64_t daemon_id_ = 0;
  std::string attestation_in_use_;

  std::atomic<uint64_t> sessions_total_{0};
  std::atomic<uint64_t> sessions_refused_{0};
  std::atomic<uint64_t> sessions_open_{0};

  wire::UniqueFd epoll_;
  wire::UniqueFd wake_;
  std::thread thread_;

  absl::Mutex inbox_mu_;
  std::vector<std::variant<SendCommand, EndCommand, ReleaseCommand>> inbox_
      ABSL_GUARDED_BY(inbox_mu_);
  bool stop_ ABSL_GUARDED_BY(inbox_mu_) = false;

  // The rest belongs to the thread.
  wire::UniqueFd session_listener_;
  wire::UniqueFd admin_listener_;
  wire::UniqueFd
      spare_;  // given up for a moment to accept and refuse when descriptors have run out
  bool listening_ = true;
  absl::Time listen_again_ = absl::InfiniteFuture();
  uint64_t next_key_ = 16;
  uint64_t next_connection_ = 1;
  uint32_t n_unattested_ = 0;
  std::unordered_map<uint32_t, uint32_t> unattested_by_uid_;
  std::unordered_map<uint64_t, std::unique_ptr<Session>> sessions_;  // by key
  std::unordered_map<uint64_t, uint64_t> key_by_id_;
  std::unordered_map<uint64_t, AdminConnection> admins_;
  std::unordered_map<uint32_t, uint32_t> sessions_by_uid_;
  std::unordered_map<uint32_t, uint32_t> admins_by_uid_;
  std::deque<HandshakeDeadline> handshakes_;
  std::vector<uint64_t> retries_;
  absl::Time refusal_logged_ = absl::InfinitePast();
  size_t sessions_peak_ = 0;  // since memory was last given back
  absl::Time trim_at_ = absl::InfiniteFuture();
};

}  // namespace iris::server
