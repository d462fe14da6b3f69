#include "server/session/admin_connections.h"

#include <iterator>
#include <utility>

#include "server/session/attestation.h"

namespace iris::server {

AdminConnections::AdminConnections(Poller* poller, Connections* connections, Admission* admission,
                                   std::function<void(int)> adopt)
    : poller_(poller), connections_(connections), admission_(admission), adopt_(std::move(adopt)) {}

absl::Status AdminConnections::Add(wire::UniqueFd* socket) {
  const absl::StatusOr<CallerInfo> caller = PeerCaller(socket->get());
  if (!caller.ok()) return caller.status();
  absl::StatusOr<Admission::Place> place = admission_->AdmitAdmin(caller->uid);
  if (!place.ok()) return place.status();
  const auto admin = open_.emplace(open_.end());
  absl::StatusOr<RpcSocket> rpc = RpcSocket::Create(
      socket, poller_, connections_, [this, admin](uint32_t) { open_.erase(admin); });
  if (!rpc.ok()) {
    open_.erase(admin);
    return rpc.status();
  }
  admin->place = *std::move(place);
  admin->rpc = *std::move(rpc);
  admin->rpc.Serve(SessionId(), *caller, adopt_);
  return absl::OkStatus();
}

}  // namespace iris::server
