// What the session server divides among tenants: places for those who come, and descriptors for
// those who are there. The rest of it is in session_server.cc.
#include <string.h>

#include <algorithm>
#include <utility>

#include "proto/wire/version.h"
#include "server/job/clock.h"
#include "server/session/session_server.h"

namespace iris::server {
namespace {

constexpr auto kRetryEvery = absl::Milliseconds(20);
constexpr auto kRetryAfterRoom = absl::Milliseconds(1);

}  // namespace

// Coming.

void SessionServer::Take(wire::UniqueFd socket, bool admin) {
  RunCommands();  // sessions that are to be released give their places to those who come
  absl::StatusOr<Peer> peer = IdentifyPeer(socket.get(), options_.attestation, tenants_);
  if (!peer.ok()) {
    const CallerInfo caller = PeerCaller(socket.get()).value_or(CallerInfo());
    return Refuse(std::move(socket), caller.party, caller, peer.status());
  }
  peer->account = daemon_->accounts().Open(peer->applicant.tenant, peer->applicant.is_operator);
  const AtWork at_work(peer->account.get());
  const absl::Status added = admin ? AddAdmin(*peer, &socket) : Add(*peer, &peer->pidfd, &socket);
  if (!added.ok()) Refuse(std::move(socket), peer->applicant.tenant, peer->caller, added);
}

void SessionServer::MakeRoom(const Applicant& applicant) {
  uint64_t asked = 0;
  while (const auto goes = admission_.WhoGoesForHandshake(applicant)) {
    Session& session = *FindKey(goes->key);
    if (asked == goes->key) {
      EndIfFailed(session, goes->reason);
      continue;
    }
    // Perhaps it has spoken, and was not heard yet: then it is not one of the silent ones.
    asked = goes->key;
    OnSocket(session, 0);
  }
}

absl::Status SessionServer::AddAdmin(const Peer& peer, wire::UniqueFd* socket) {
  while (const auto goes = admission_.WhoGoesForAdmin(peer.applicant)) {
    log_.Write(LogLevel::kWarn, "connection ended", peer.applicant.tenant, peer.caller, 0,
               goes->reason, SteadyNow());
    admins_.End(goes->key);
  }
  return admins_.Add(peer, socket);
}

DoorUse SessionServer::UseOf(const Account& account) const {
  return {admission_.sessions_of(account.tenant), admission_.admin_connections_of(account.tenant),
          account.calls.calls(), account.calls.unread_bytes(), in_flight_.of(account.tenant)};
}

DoorUse SessionServer::LimitsOfOne() const {
  const AdmissionLimits& limits = admission_.limits();
  const CallShare::Limits& of_calls = daemon_->accounts().limits_of_calls();
  return {limits.max_sessions_per_tenant, limits.max_admin_connections_per_tenant,
          of_calls.max_calls, of_calls.max_unread_bytes, limits.max_in_flight_per_tenant};
}

DoorUse SessionServer::LimitsOfAll() const {
  const AdmissionLimits& limits = admission_.limits();
  return {.sessions = limits.max_sessions,
          .admin_connections = limits.max_admin_connections,
          .descriptors_in_flight = limits.max_in_flight};
}

// Descriptors.

absl::Status SessionServer::Welcome(Session& session, absl::Span<const int> rpc_socket) {
  absl::Status sent = wire::SendFrame(
      session.socket.get(), wire::FrameType::kWelcome,
      MakeWelcome(session.id.value, daemon_id_, daemon_->driver().backend()), rpc_socket);
  if (!sent.ok() || rpc_socket.empty()) return sent;
  session.outbox.CountWelcome();
  WatchUnread(session);
  return absl::OkStatus();
}

Outbox::Socket SessionServer::SocketOf(Session& session) {
  const int socket = session.socket.get();
  return {[socket](const wire::DescriptorsPayload& payload, absl::Span<const int> fds) {
            return wire::SendFrame(socket, wire::FrameType::kDescriptors, payload, fds);
          },
          [socket] { return AllReceived(socket); }};
}

void SessionServer::WatchUnread(Session& session) {
  if (session.outbox.share().count() > 0 && !std::exchange(session.unread, true)) {
    unread_.push_back(session.key);
  }
}

absl::StatusOr<bool> SessionServer::Announce(Session& session) {
  if (session.announced) return true;
  wire::RestartedPayload restarted;
  restarted.generation = session.awaits;
  const absl::string_view version = wire::kIrisVersion;
  memcpy(restarted.daemon_version, version.data(),
         std::min(version.size(), sizeof(restarted.daemon_version) - 1));
  const absl::Status sent =
      wire::SendFrame(session.socket.get(), wire::FrameType::kRestarted, restarted);
  if (absl::IsResourceExhausted(sent)) return false;
  // Of a peer that is gone the hang-up is on its way.
  if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
  session.announced = true;
  return true;
}

void SessionServer::RetryLater(Session& session, absl::Time now) {
  if (std::exchange(session.retry, true)) return;
  if (retries_.empty()) retry_at_ = now + kRetryEvery;
  retries_.push_back(session.key);
}

absl::Status SessionServer::Flush(Session& session) {
  const absl::StatusOr<bool> announced = Announce(session);
  if (!announced.ok()) return announced.status();
  if (!*announced) {
    RetryLater(session, SteadyNow());
    return absl::OkStatus();
  }
  const Outbox::Socket socket = SocketOf(session);
  const absl::Time now = SteadyNow();
  // What one session has received makes room for the next one of its tenant.
  if (session.outbox.Look(socket)) retry_at_ = std::min(retry_at_, now + kRetryAfterRoom);
  // Before the descriptors that wait: calls of the client do.
  const absl::StatusOr<Outbox::Flushed> given =
      session.rpc->Flush(now, session.outbox, [&session](int fd) {
        return wire::SendEmptyFrame(session.socket.get(), wire::FrameType::kRpcSocket, {&fd, 1});
      });
  if (!given.ok()) return given.status();
  const absl::StatusOr<Outbox::Flushed> flushed =
      session.outbox.Flush(socket, now, options_.send_timeout);
  WatchUnread(session);
  if (!flushed.ok()) return flushed.status();
  const bool waits = *given != Outbox::Flushed::kIdle || *flushed != Outbox::Flushed::kIdle;
  if (waits) RetryLater(session, now);
  return absl::OkStatus();
}

void SessionServer::RetryBlocked(absl::Time now) {
  LookForReceived(now);
  retry_at_ = now + kRetryEvery;
  for (const uint64_t key : std::exchange(retries_, {})) {
    Session* const session = FindKey(key);
    if (session == nullptr) continue;
    session->retry = false;
    if (session->state == State::kOpen) EndIfFailed(*session, Flush(*session));
  }
}

void SessionServer::LookForReceived(absl::Time now) {
  if (now - looked_ < kRetryEvery) return;
  looked_ = now;
  std::erase_if(unread_, [this](uint64_t key) {
    Session* const session = FindKey(key);
    if (session == nullptr || session->state != State::kOpen) return true;
    session->outbox.Look(SocketOf(*session));
    session->unread = session->outbox.share().count() > 0;
    return !session->unread;
  });
  if (unread_.empty()) unread_.shrink_to_fit();
  lingering_.Sweep();
}

}  // namespace iris::server
