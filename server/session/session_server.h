// SessionServer: the life of every session, from its connection to its end.
//
// One thread owns every session object; other threads only put commands into its inbox. Nothing on
// that thread blocks: a client that is slow, silent or hostile costs itself only. Borrows the
// daemon and the logger.
//
// The rooms around it: Acceptor takes connections, Peer says who is there, Admission counts them,
// Handshake decides what a new client is told, Outbox holds the descriptors on their way to one,
// Lingering those that an ended one has left unread, SessionCalls are the calls that a client makes
// by frames, SessionRpc is the socket that a worker serves (RpcHost) for a client that speaks gRPC,
// and its successors, and AdminConnections are those of irisd.sock.
//
// A session ends in two steps. Hang-up: its socket closed, its client broke a rule, or the daemon
// ended it; both sockets are closed and calls are refused. (That gRPC's socket closes ends
// nothing.) Gone: the pidfd says that the process has ended; only then is a rank given up.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "server/events/log.h"
#include "server/host/daemon.h"
#include "server/keep/descriptor_keeper.h"
#include "server/session/acceptor.h"
#include "server/session/admin_connections.h"
#include "server/session/admission.h"
#include "server/session/attestation.h"
#include "server/session/closer.h"
#include "server/session/connection_log.h"
#include "server/session/handshake.h"
#include "server/session/in_flight.h"
#include "server/session/lingering.h"
#include "server/session/outbox.h"
#include "server/session/party_finder.h"
#include "server/session/peer.h"
#include "server/session/poller.h"
#include "server/session/rpc_host.h"
#include "server/session/session_calls.h"
#include "server/session/session_rpc.h"

namespace iris::server {

struct SessionOptions {
  Attestation attestation = Attestation::kAuto;
  absl::Duration handshake_timeout = absl::Seconds(5);
  // A session whose descriptors cannot be sent for so long is ended.
  absl::Duration send_timeout = absl::Seconds(30);
  AdmissionLimits limits;
  // Under which clients know irisd; 0: a new one.
  uint64_t daemon_id = 0;
  // Counts the irisds that have had these sessions.
  uint64_t generation = 1;
  // Keeps the sockets of sessions for the next irisd; null: nobody does. Outlives the server.
  DescriptorKeeper* keeper = nullptr;
  // Runs on the server's thread, so often. Zero: never.
  absl::Duration heartbeat_every;
  std::function<void()> heartbeat;
};

class SessionServer : public SessionOutput {
 public:
  // Both listeners are listening, non-blocking sockets. The session listener has SO_PASSCRED on, so
  // that no message comes without its sender. `make_host` makes what serves gRPC, on the poller of
  // the server's thread, with the server's closer; `serve` answers the calls that sessions make by
  // frames.
  using MakeHost = std::function<std::unique_ptr<RpcHost>(Poller*, const Closer&)>;
  static absl::StatusOr<std::unique_ptr<SessionServer>> Create(
      const SessionOptions& options, wire::UniqueFd session_listener, wire::UniqueFd admin_listener,
      Daemon* daemon, const MakeHost& make_host, ServeCall serve, const Logger* logger);
  // Stops.
  ~SessionServer() override;

  // Takes out of `sockets` those that are no connection of the client of their session, and has
  // them kept no longer. Once, before Daemon::Keep, to which they are then lost.
  void DropForeign(std::map<SessionId, wire::UniqueFd>* sockets);
  // Goes on with sessions of an earlier irisd, as the daemon's machine has them, and with those of
  // their `sockets` that were kept, which it takes out. Once, before Start, with this as the
  // daemon's output. Not OK: this process lacks what it takes to go on with one, whose client is
  // told nothing: the next irisd may have it.
  absl::Status Restore(std::map<SessionId, wire::UniqueFd>* sockets);
  // Closes descriptors of clients where nobody waits for it; also after the server.
  std::function<void(const Party& tenant, wire::UniqueFd fd)> CloseOf() const {
    return [closer = closer_](const Party& tenant, wire::UniqueFd fd) mutable {
      closer.Close(tenant, std::move(fd));
    };
  }
  // Not zero; nobody can guess it.
  static uint64_t RandomNumber();
  // Starts the thread. Once.
  void Start();
  // Ends the thread; every socket is closed, every client told. Idempotent.
  void Stop();

  // Changes how many sessions, handshakes and connections on irisd.sock there may be, a moment
  // later; the other limits are those from the start. Any thread.
  void SetLimits(const AdmissionLimits& limits) ABSL_LOCKS_EXCLUDED(inbox_mu_);

  // SessionOutput. Any thread; they only queue.
  void SendDescriptors(SessionId id, std::vector<OutgoingDescriptor> descriptors) override
      ABSL_LOCKS_EXCLUDED(inbox_mu_);
  void EndSession(SessionId id, const absl::Status& reason) override ABSL_LOCKS_EXCLUDED(inbox_mu_);
  void ReleaseSession(SessionId id) override ABSL_LOCKS_EXCLUDED(inbox_mu_);

  // What a tenant has, and what it and all together may have. On the server's thread, which answers
  // calls.
  DoorUse UseOf(const Account& account) const;
  DoorUse LimitsOfOne() const;
  DoorUse LimitsOfAll() const;

  // Since start. Any thread.
  uint64_t sessions_total() const { return sessions_total_.load(std::memory_order_relaxed); }
  uint64_t sessions_refused() const { return sessions_refused_.load(std::memory_order_relaxed); }
  // Descriptors of clients that wait to be closed.
  uint64_t n_closing() const { return closer_.n_waiting(); }
  const std::string& attestation_in_use() const { return attestation_in_use_; }
  const SessionOptions& options() const { return options_; }

 private:
  enum class State { kHandshake, kOpen, kEnding };
  static constexpr int kFramesPerTurn = 16;  // of one session, before others have theirs
  struct Session {
    uint64_t key = 0;  // never reused
    SessionId id;      // zero until open
    State state = State::kHandshake;
    CallerInfo caller;
    Applicant applicant;
    std::shared_ptr<Account> account;
    Admission::Place place;
    std::optional<Handshake> handshake;   // until open
    wire::UniqueFd pidfd;                 // until open, then in `process`
    Poller::Watched socket;               // until the hang-up
    Poller::Watched process;              // from open until gone
    std::optional<SessionRpc> rpc;        // from open until the hang-up
    std::shared_ptr<SessionCalls> calls;  // the same
    Outbox outbox;
    uint64_t look = 0;    // at the next packet, whose answer is awaited
    bool looked = false;  // at the next packet, which may be received
    bool retry = false;   // is in retries_
    bool unread = false;  // is in unread_
    // Another irisd had it: what comes is dropped until the client has seen this generation. 0: it
    // has, or there was none.
    uint64_t awaits = 0;
    bool announced = true;  // the client has been sent kRestarted, if there is need to
  };
  struct HandshakeDeadline {
    absl::Time at;
    uint64_t key;
  };
  // Of a session whose process is dying: told as a hang-up at `at`, unless its pidfd fires before.
  struct Dying {
    absl::Time at;
    uint64_t key;
    SessionId id;
    std::string reason;
  };
  using Command = std::function<void()>;

  SessionServer(const SessionOptions& options, std::unique_ptr<Poller> poller, Daemon* daemon,
                const MakeHost& make_host, ServeCall serve, const Logger* logger);

  static uint64_t NewSessionId();
  // Whether the session goes on; false: its process is gone. `start`: of whatever process has its
  // pid now; 0: none.
  absl::StatusOr<bool> RestoreOne(const SessionSnapshot& from, uint64_t start,
                                  wire::UniqueFd socket);
  // Makes an attested session of it.
  void MakeOpen(Session& session, InFlight::Hold share);
  // What an open session that awaits a generation says.
  absl::Status OnFrameBefore(Session& session, const wire::Frame& frame);
  // Has the socket kept, or kept no longer.
  void Keep(const Session& session);
  void ForgetKept(const Session& session);
  // Runs `command` on the thread.
  void Post(Command command) ABSL_LOCKS_EXCLUDED(inbox_mu_);

  // The thread.
  void Run();
  // Those that have been posted. False: the server is to stop.
  bool RunCommands() ABSL_LOCKS_EXCLUDED(inbox_mu_);
  absl::Duration UntilNextDeadline() const;
  void RunDeadlines();
  void RetryBlocked(absl::Time now);
  // Looks which descriptors have been received since it last looked, which is at most 50 times a
  // second.
  void LookForReceived(absl::Time now);
  void CloseAll();

  // They take the socket only on success. Otherwise the status is for the caller.
  absl::Status Add(const Peer& peer, wire::UniqueFd* pidfd, wire::UniqueFd* socket);
  absl::Status AddAdmin(const Peer& peer, wire::UniqueFd* socket);
  // Takes a connection of either listener, or refuses it.
  void Take(wire::UniqueFd socket, bool admin);
  void Refuse(wire::UniqueFd socket, const Party& tenant, const CallerInfo& caller,
              const absl::Status& reason);
  // Tells the peer why it is hung up on.
  static void SendError(int socket, const absl::Status& reason);
  // Ends handshakes until there is room for the applicant's.
  void MakeRoom(const Applicant& applicant);

  void OnSocket(Session& session, uint32_t events);
  // Whether the next packet may be received now. If it brings descriptors, another process looks at
  // them first. `closed`: nothing more can come than what is there. False: not now, and perhaps the
  // session has ended.
  bool MayReceive(Session& session, bool closed);
  void OnLooked(uint64_t key, const absl::Status& status);
  // Not ok if the client broke the protocol, or could not be served.
  absl::Status OnFrame(Session& session, const wire::Frame& frame);
  absl::Status OnOpenFrame(Session& session, const wire::Frame& frame);
  absl::Status Open(Session& session);
  absl::Status Flush(Session& session);
  // Tells the client of the restart, if it has to be told. False: its queue is full.
  absl::StatusOr<bool> Announce(Session& session);
  void RetryLater(Session& session, absl::Time now);
  // Ends the handshake; `rpc_socket` is the client's end of one, if it wants one, and borrowed.
  absl::Status Welcome(Session& session, absl::Span<const int> rpc_socket);
  static Outbox::Socket SocketOf(Session& session);
  // Has LookForReceived look at it, if something is unread.
  void WatchUnread(Session& session);

  // Ends what the client sees of the session; `told` (if not ok) is sent first. May destroy
  // `session`.
  void HangUp(Session& session, const absl::Status& told, const std::string& reason);
  // The same, because of an error: nothing if `status` is ok.
  void EndIfFailed(Session& session, const absl::Status& status);
  void Gone(Session& session);
  void Erase(Session& session);
  // Null if there is none with this key, or none with this id that is open.
  Session* FindKey(uint64_t key);
  Session* FindOpen(SessionId id);

  const SessionOptions options_;
  Daemon* const daemon_;
  const ServeCall serve_;
  const PartyFinder tenants_;
  const uint64_t daemon_id_;
  const std::string attestation_in_use_;

  std::atomic<uint64_t> sessions_total_{0};
  std::atomic<uint64_t> sessions_refused_{0};

  const std::unique_ptr<Poller> poller_;
  std::thread thread_;

  absl::Mutex inbox_mu_;
  std::vector<Command> inbox_ ABSL_GUARDED_BY(inbox_mu_);
  bool stop_ ABSL_GUARDED_BY(inbox_mu_) = false;

  Closer closer_;

  // The rest belongs to the thread.
  ConnectionLog log_;
  const std::unique_ptr<RpcHost> host_;
  Admission admission_;
  InFlight in_flight_;
  Acceptor acceptor_;
  AdminConnections admins_;
  uint64_t next_key_ = 1;
  std::unordered_map<uint64_t, std::unique_ptr<Session>> sessions_;  // by key
  std::unordered_map<uint64_t, uint64_t> key_by_id_;
  std::deque<HandshakeDeadline> handshakes_;
  std::deque<Dying> dying_;
  std::vector<uint64_t> retries_;  // keys of the sessions that something waits for
  absl::Time retry_at_ = absl::InfinitePast();
  std::vector<uint64_t> unread_;  // of those that have descriptors in flight
  Lingering lingering_{&closer_};
  absl::Time looked_ = absl::InfinitePast();       // for what has been received
  absl::Time settle_at_ = absl::InfiniteFuture();  // when to look without being asked
  absl::Time heartbeat_at_ = absl::InfiniteFuture();
  absl::Time trim_at_ = absl::InfiniteFuture();
  int trims_left_ = 0;  // after that one
};

}  // namespace iris::server
