#include "server/session/admin_connections.h"

#include <fcntl.h>

#include <iterator>
#include <utility>

#include "server/session/attestation.h"

namespace iris::server {

absl::Status AdminConnections::Add(wire::UniqueFd* socket) {
  const absl::StatusOr<CallerInfo> caller = PeerCaller(socket->get());
  if (!caller.ok()) return caller.status();
  absl::StatusOr<Admission::Place> place = admission_->AdmitAdmin(caller->uid);
  if (!place.ok()) return place.status();
  wire::UniqueFd duplicate(fcntl(socket->get(), F_DUPFD_CLOEXEC, 0));
  if (!duplicate.valid()) return absl::ResourceExhaustedError("irisd has no descriptors left");
  const auto admin = open_.emplace(open_.end());
  absl::StatusOr<RpcSocket> rpc =
      RpcSocket::Create(host_, std::move(duplicate), {{caller->uid}, SessionId(), *caller},
                        [this, admin] { open_.erase(admin); });
  if (!rpc.ok()) {
    open_.erase(admin);
    return rpc.status();
  }
  socket->Reset();
  admin->place = *std::move(place);
  admin->rpc = *std::move(rpc);
  return absl::OkStatus();
}

}  // namespace iris::server
