#include "server/session/peer.h"

#include <utility>

namespace iris::server {

absl::StatusOr<Peer> IdentifyPeer(int socket, Attestation attestation,
                                  const TenantFinder& tenants) {
  Peer peer;
  absl::StatusOr<CallerInfo> caller = PeerCaller(socket);
  if (!caller.ok()) return caller.status();
  peer.caller = *caller;
  absl::StatusOr<wire::UniqueFd> pidfd = attestation == Attestation::kNonce
                                             ? absl::UnimplementedError("not wanted")
                                             : PeerPidfd(socket);
  peer.attested = pidfd.ok();
  if (absl::IsUnimplemented(pidfd.status())) pidfd = OpenPidfd(caller->pid);
  if (!pidfd.ok()) return pidfd.status();
  peer.pidfd = *std::move(pidfd);
  absl::StatusOr<Tenant> tenant = tenants.Find(caller->pid, caller->uid, peer.pidfd.get());
  if (!tenant.ok()) return tenant.status();
  peer.applicant = {*tenant, tenants.IsOperator(*tenant)};
  return peer;
}

}  // namespace iris::server
