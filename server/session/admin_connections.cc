#include "server/session/admin_connections.h"

#include <utility>

namespace iris::server {

AdminConnections::AdminConnections(Poller* poller, Connections* connections, Admission* admission,
                                   std::function<void(int)> adopt)
    : poller_(poller), connections_(connections), admission_(admission), adopt_(std::move(adopt)) {}

absl::Status AdminConnections::Add(const Peer& peer, wire::UniqueFd* socket) {
  const uint64_t key = next_key_++;
  absl::StatusOr<Admission::Place> place = admission_->AdmitAdmin(peer.applicant, key);
  if (!place.ok()) return place.status();
  absl::StatusOr<RpcSocket> rpc =
      RpcSocket::Create(socket, poller_, connections_, [this, key](uint32_t) { End(key); });
  if (!rpc.ok()) return rpc.status();
  Admin& admin = open_[key];
  admin.place = *std::move(place);
  admin.rpc = *std::move(rpc);
  admin.rpc.Serve(SessionId(), peer.caller, adopt_);
  return absl::OkStatus();
}

}  // namespace iris::server
