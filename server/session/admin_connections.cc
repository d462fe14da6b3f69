#include "server/session/admin_connections.h"

#include <fcntl.h>

#include <utility>

namespace iris::server {

absl::Status AdminConnections::Add(const Peer& peer, wire::UniqueFd* socket) {
  const uint64_t key = next_key_++;
  absl::StatusOr<Admission::Place> place = admission_->AdmitAdmin(peer.applicant, key);
  if (!place.ok()) return place.status();
  wire::UniqueFd duplicate(fcntl(socket->get(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate.valid()) return absl::ResourceExhaustedError("irisd has no descriptors left");
  absl::StatusOr<RpcSocket> rpc = RpcSocket::Create(
      host_, std::move(duplicate), {peer.applicant.tenant, SessionId(), peer.caller},
      [this, key] { End(key); });
  if (!rpc.ok()) return rpc.status();
  socket->Reset();
  Admin& admin = open_[key];
  admin.place = *std::move(place);
  admin.rpc = *std::move(rpc);
  return absl::OkStatus();
}

}  // namespace iris::server
