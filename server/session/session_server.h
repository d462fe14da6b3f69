// SessionServer: the life of every session, from its connection to its end.
//
// One thread owns every session; other threads only put commands into its inbox. Nothing on that
// thread blocks: a slow, silent or hostile client delays only itself. Borrows the daemon and the
// logger.
//
// The Door lets clients in, a Handshake opens a session for a new one, and the DescriptorSender
// sends descriptors. SessionCalls are the calls that a client makes by frames; SessionRpc is the
// socket that a worker serves (RpcHost) for a client that speaks gRPC.
//
// A session ends in two steps. Hang-up: its socket closed, its client broke a rule, or the daemon
// ended it; both sockets are closed and calls are refused. (The close of the gRPC socket ends
// nothing.) Gone: the pidfd reports that the process has ended; only then is a rank released.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/wire/frame.h"
#include "proto/wire/unique_fd.h"
#include "server/account/admission.h"
#include "server/events/log.h"
#include "server/host/daemon.h"
#include "server/keep/descriptor_keeper.h"
#include "server/session/connection_log.h"
#include "server/session/deferred_close.h"
#include "server/session/descriptor_sender.h"
#include "server/session/door.h"
#include "server/session/peer.h"
#include "server/session/poller.h"
#include "server/session/rpc_host.h"
#include "server/session/session.h"

namespace iris::server {

struct SessionOptions {
  Attestation attestation = Attestation::kAuto;
  absl::Duration handshake_timeout = absl::Seconds(5);
  // A session is ended if its descriptors cannot be sent for this long.
  absl::Duration send_timeout = absl::Seconds(30);
  AdmissionLimits limits;
  // The number by which clients know irisd. If it is 0, the server chooses a new one.
  uint64_t daemon_id = 0;
  // Counts the irisds that have had these sessions.
  uint64_t generation = 1;
  // If not null, keeps the sockets of sessions for the next irisd. Outlives the server.
  DescriptorKeeper* keeper = nullptr;
  // `heartbeat` runs on the server's thread at this interval, or never if that is zero.
  absl::Duration heartbeat_every;
  std::function<void()> heartbeat;
};

class SessionServer : public SessionOutput {
 public:
  // Both listeners are listening, non-blocking sockets. The session listener has SO_PASSCRED on, so
  // that every message has its sender. `make_host` makes the server of gRPC, on the poller of the
  // server's thread, with the server's closer; `serve` answers the calls that sessions make by
  // frames.
  using MakeHost = std::function<std::unique_ptr<RpcHost>(Poller*, const DeferredClose&)>;
  static absl::StatusOr<std::unique_ptr<SessionServer>> Create(
      const SessionOptions& options, wire::UniqueFd session_listener, wire::UniqueFd admin_listener,
      Daemon* daemon, const MakeHost& make_host, ServeCall serve, const Logger* logger);
  // Calls Stop.
  ~SessionServer() override;

  // Removes from `sockets` those that are not connected to their session's client, and stops
  // keeping them. Call it once, before Daemon::Keep, which then treats their sessions as lost.
  void DropForeign(std::map<SessionId, wire::UniqueFd>* sockets);
  // Continues sessions of an earlier irisd, which the daemon's machine has, and takes their kept
  // sockets out of `sockets`. Call it once, before Start, with this as the daemon's output. It
  // fails if this process lacks something that it needs to continue a session. The client gets no
  // report then: the next irisd may have the session.
  absl::Status Restore(std::map<SessionId, wire::UniqueFd>* sockets);
  // Returns a function that closes descriptors of clients and never waits. It may outlive the
  // server.
  std::function<void(const Party& tenant, wire::UniqueFd fd)> CloseOf() const {
    return [closer = closer_](const Party& tenant, wire::UniqueFd fd) mutable {
      closer.Close(tenant, std::move(fd));
    };
  }
  // Returns a number that is not zero and that nobody can guess.
  static uint64_t RandomNumber();
  // Starts the thread. Call it once.
  void Start();
  // Ends the thread, closes every socket, and notifies every client. Idempotent.
  void Stop();

  // Changes the limits of sessions, handshakes and connections on irisd.sock, a moment later; the
  // other limits stay as at the start. Any thread may call it.
  void SetLimits(const AdmissionLimits& limits) ABSL_LOCKS_EXCLUDED(inbox_mu_);

  // Implements SessionOutput. Any thread may call these functions; they only queue.
  void SendDescriptors(SessionId id, std::vector<OutgoingDescriptor> descriptors) override
      ABSL_LOCKS_EXCLUDED(inbox_mu_);
  void EndSession(SessionId id, const absl::Status& reason) override ABSL_LOCKS_EXCLUDED(inbox_mu_);
  void ReleaseSession(SessionId id) override ABSL_LOCKS_EXCLUDED(inbox_mu_);

  // Return the use of one tenant, its limits, and the limits of all tenants together. Only the
  // server's thread, which answers calls, may call these.
  DoorUse UseOf(const Account& account) const;
  DoorUse LimitsOfOne() const;
  DoorUse LimitsOfAll() const;

  // Return counts since the start. Any thread may call them.
  uint64_t sessions_total() const { return sessions_total_.load(std::memory_order_relaxed); }
  uint64_t sessions_refused() const { return door_.n_refused(); }
  // Returns the number of clients' descriptors that wait to be closed.
  uint64_t n_closing() const { return closer_.n_waiting(); }
  const std::string& attestation_in_use() const { return attestation_in_use_; }
  const SessionOptions& options() const { return options_; }

 private:
  using State = Session::State;
  static constexpr int kFramesAtOnce = 16;  // of one session, before others have theirs
  struct HandshakeDeadline {
    absl::Time at;
    uint64_t key;
  };
  // A session whose process is dying. It is reported as a hang-up at `at`, unless its pidfd fires
  // first.
  struct Dying {
    absl::Time at;
    uint64_t key;
    SessionId id;
    std::string reason;
  };
  using Command = std::function<void()>;

  SessionServer(const SessionOptions& options, std::unique_ptr<Poller> poller, Daemon* daemon,
                const MakeHost& make_host, ServeCall serve, const Logger* logger);

  // Continues one session. `start` is the start time of the process that has the session's pid now,
  // or 0 if none has. Returns false if the session's process is gone.
  absl::StatusOr<bool> RestoreOne(const SessionSnapshot& from, uint64_t start,
                                  wire::UniqueFd socket);
  // Keep the session's socket for the next irisd, or stop keeping it.
  void Keep(const Session& session);
  void ForgetKept(const Session& session);
  // Runs `command` on the thread.
  void Post(Command command) ABSL_LOCKS_EXCLUDED(inbox_mu_);

  // Only the server's thread runs the following functions.
  void Run();
  // Runs posted commands. Returns false if the server is to stop.
  bool RunCommands() ABSL_LOCKS_EXCLUDED(inbox_mu_);
  absl::Duration UntilNextDeadline() const;
  void RunDeadlines();
  void CloseAll();

  // Begins a handshake, as Door::Setup describes.
  absl::Status Begin(Peer* peer, wire::UniqueFd* socket);
  // Ends handshakes until there is room for the applicant's.
  void MakeRoom(const Applicant& applicant);
  absl::Status WatchSocket(Session& session, wire::UniqueFd* socket);
  absl::Status WatchProcess(Session& session, wire::UniqueFd* pidfd);

  void OnSocket(Session& session, uint32_t events);
  // Returns true if the next packet may be received now. If the packet has descriptors, another
  // process inspects them first. `closed` means that nothing more can come. If false is returned,
  // the session may have ended.
  bool MayReceive(Session& session, bool closed);
  void OnLooked(uint64_t key, const absl::Status& status);
  // Handles a frame. Returns an error if the client broke the protocol, or could not be served.
  absl::Status OnFrame(Session& session, const wire::Frame& frame);
  absl::Status OnRestartSeen(Session& session, const wire::Frame& frame);
  // Ends the handshake.
  absl::Status Open(Session& session);
  // Opens the session of an attested client.
  void MakeOpen(Session& session, InFlight::Hold share);

  // Ends the client's side of the session, after sending it `told` if that is not OK. May destroy
  // `session`.
  void HangUp(Session& session, const absl::Status& told, const std::string& reason);
  // Hangs up because of an error; does nothing if `status` is OK.
  void EndIfFailed(Session& session, const absl::Status& status);
  void Gone(Session& session);
  void Erase(Session& session);
  // Return null if no session has this key, or if no open session has this id.
  Session* FindKey(uint64_t key);
  Session* FindOpen(SessionId id);

  const SessionOptions options_;
  Daemon* const daemon_;
  const ServeCall serve_;
  const uint64_t daemon_id_;
  const std::string attestation_in_use_;

  std::atomic<uint64_t> sessions_total_{0};

  const std::unique_ptr<Poller> poller_;
  std::thread thread_;

  absl::Mutex inbox_mu_;
  std::vector<Command> inbox_ ABSL_GUARDED_BY(inbox_mu_);
  bool stop_ ABSL_GUARDED_BY(inbox_mu_) = false;

  DeferredClose closer_;

  // Only the server's thread uses these.
  ConnectionLog log_;
  const std::unique_ptr<RpcHost> host_;
  Door door_;
  DescriptorSender sender_;
  uint64_t next_key_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Session>> sessions_;  // by key
  std::unordered_map<uint64_t, uint64_t> key_by_id_;
  std::deque<HandshakeDeadline> handshakes_;
  std::deque<Dying> dying_;
  absl::Time settle_at_ = absl::InfiniteFuture();  // when to check without an event
  absl::Time heartbeat_at_ = absl::InfiniteFuture();
  absl::Time trim_at_ = absl::InfiniteFuture();
  int trims_left_ = 0;  // after that one
};

}  // namespace iris::server
