#include "server/session/admin_connections.h"

#include <utility>

namespace iris::server {

absl::Status AdminConnections::Add(const Peer& peer, wire::UniqueFd* socket) {
  const uint64_t key = next_key_++;
  absl::StatusOr<Admission::Place> place = admission_->AdmitAdmin(peer.applicant, key);
  if (!place.ok()) return place.status();
  absl::StatusOr<RpcSocket> rpc = RpcSocket::Create(
      host_, socket, {peer.applicant.tenant, SessionId(), peer.caller, peer.account},
      [this, key] { End(key); });
  if (!rpc.ok()) return rpc.status();
  Admin& admin = open_[key];
  admin.place = *std::move(place);
  admin.rpc = *std::move(rpc);
  return absl::OkStatus();
}

}  // namespace iris::server
