#include "server/session/door.h"

#include <utility>

#include "proto/wire/frame.h"
#include "server/job/clock.h"

namespace iris::server {

Door::Door(Setup setup)
    : setup_(std::move(setup)),
      admission_(setup_.limits),
      acceptor_(setup_.poller, [this](wire::UniqueFd socket) {
        Refuse(std::move(socket),
               absl::ResourceExhaustedError("irisd has no file descriptors left; try again later"));
      }) {}

absl::Status Door::Open(wire::UniqueFd session_listener, wire::UniqueFd admin_listener) {
  absl::Status status =
      acceptor_.Listen(std::move(session_listener),
                       [this](wire::UniqueFd socket) { Take(std::move(socket), /*admin=*/false); });
  if (!status.ok()) return status;
  return acceptor_.Listen(std::move(admin_listener), [this](wire::UniqueFd socket) {
    Take(std::move(socket), /*admin=*/true);
  });
}

void Door::Take(wire::UniqueFd socket, bool admin) {
  setup_.prepare();
  absl::StatusOr<Peer> peer = IdentifyPeer(socket.get(), setup_.attestation, parties_);
  if (!peer.ok()) return Refuse(std::move(socket), peer.status());
  const Applicant applicant = peer->applicant;
  const std::shared_ptr<Account> account =
      setup_.accounts->Open(applicant.tenant, applicant.is_operator);
  peer->account = account;
  const AtWork at_work(account.get());
  const CallerInfo caller = peer->caller;
  const absl::Status added = admin ? AddAdmin(*peer, &socket) : setup_.begin(&*peer, &socket);
  if (!added.ok()) Refuse(std::move(socket), applicant.tenant, caller, added);
}

absl::Status Door::AddAdmin(const Peer& peer, wire::UniqueFd* socket) {
  while (const auto goes = admission_.WhoGoesForAdmin(peer.applicant)) {
    setup_.log->Write(LogLevel::kWarn, "connection ended", peer.applicant.tenant, peer.caller, 0,
                      goes->reason, SteadyNow());
    admins_.erase(goes->key);
  }
  const uint64_t key = next_admin_++;
  absl::StatusOr<Admission::Place> place = admission_.AdmitAdmin(peer.applicant, key);
  if (!place.ok()) return place.status();
  absl::StatusOr<RpcSocket> rpc = RpcSocket::Create(
      setup_.host, socket, {peer.applicant.tenant, SessionId(), peer.caller, peer.account},
      [this, key] { admins_.erase(key); });
  if (!rpc.ok()) return rpc.status();
  admins_.emplace(key, Admin{*std::move(place), *std::move(rpc)});
  return absl::OkStatus();
}

void Door::Refuse(wire::UniqueFd socket, const absl::Status& reason) {
  const CallerInfo caller = PeerCaller(socket.get()).value_or(CallerInfo());
  Refuse(std::move(socket), caller.party, caller, reason);
}

void Door::Refuse(wire::UniqueFd socket, const Party& tenant, const CallerInfo& caller,
                  const absl::Status& reason) {
  CountRefused();
  setup_.log->Write(LogLevel::kWarn, "connection refused", tenant, caller, 0, reason, SteadyNow());
  // Unread input would turn the close into a reset, which the peer sees before this frame, so the
  // closer drops the input.
  (void)wire::SendFrame(socket.get(), wire::FrameType::kError, wire::MakeErrorPayload(reason));
  setup_.closer->CloseConnection(tenant, std::move(socket));
}

}  // namespace iris::server
