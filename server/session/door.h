// Door: accepts connections on both sockets, identifies their clients, and admits or refuses them.
// It owns the connections on irisd.sock, whose calls a worker relays; a client of session.sock
// begins a handshake. Not thread-safe, except n_refused: it belongs to the session thread. Borrows
// the objects that its setup names.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/account/accounts.h"
#include "server/account/admission.h"
#include "server/session/acceptor.h"
#include "server/session/connection_log.h"
#include "server/session/deferred_close.h"
#include "server/session/party_finder.h"
#include "server/session/peer.h"
#include "server/session/poller.h"
#include "server/session/rpc_host.h"

namespace iris::server {

class Door {
 public:
  struct Setup {
    Attestation attestation = Attestation::kAuto;
    AdmissionLimits limits;
    Poller* poller = nullptr;
    Accounts* accounts = nullptr;
    RpcHost* host = nullptr;
    DeferredClose* closer = nullptr;
    ConnectionLog* log = nullptr;
    // Runs before a client is identified, while memory is charged to no account.
    std::function<void()> prepare;
    // Begins a handshake. Takes `*peer` and the socket only on success. The client gets errors.
    std::function<absl::Status(Peer* peer, wire::UniqueFd* socket)> begin;
  };
  explicit Door(Setup setup);

  // Accepts from both listeners, which listen and do not block.
  absl::Status Open(wire::UniqueFd session_listener, wire::UniqueFd admin_listener);
  // Closes the listeners. Clear also ends the connections on irisd.sock.
  void Close() { acceptor_.Close(); }
  void Clear() { admins_.clear(); }

  absl::Time deadline() const { return acceptor_.deadline(); }
  void RunDeadlines(absl::Time now) { acceptor_.RunDeadlines(now); }

  const PartyFinder& parties() const { return parties_; }
  Admission& admission() { return admission_; }
  const Admission& admission() const { return admission_; }
  void CountRefused() { n_refused_.fetch_add(1, std::memory_order_relaxed); }
  // Returns the number of clients refused since the start. Any thread may call it.
  uint64_t n_refused() const { return n_refused_.load(std::memory_order_relaxed); }

 private:
  struct Admin {
    Admission::Place place;
    RpcSocket rpc;
  };

  void Take(wire::UniqueFd socket, bool admin);
  // Adds a connection on irisd.sock. Takes the socket only on success. The client gets an error.
  absl::Status AddAdmin(const Peer& peer, wire::UniqueFd* socket);
  // Refuses a client whose party is unknown.
  void Refuse(wire::UniqueFd socket, const absl::Status& reason);
  void Refuse(wire::UniqueFd socket, const Party& tenant, const CallerInfo& caller,
              const absl::Status& reason);

  const Setup setup_;
  const PartyFinder parties_;
  Admission admission_;
  Acceptor acceptor_;
  std::atomic<uint64_t> n_refused_{0};
  uint64_t next_admin_ = 1;
  std::map<uint64_t, Admin> admins_;
};

}  // namespace iris::server
