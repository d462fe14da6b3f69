#include "server/session/peer.h"

#include <utility>

namespace iris::server {

absl::StatusOr<Peer> IdentifyPeer(int socket, Attestation attestation, const PartyFinder& parties) {
  Peer peer;
  absl::StatusOr<CallerInfo> caller = PeerCaller(socket);
  if (!caller.ok()) return caller.status();
  peer.caller = *caller;
  absl::StatusOr<wire::UniqueFd> pidfd = PidfdOf(socket, attestation, caller->pid, &peer.attested);
  if (!pidfd.ok()) return pidfd.status();
  peer.pidfd = *std::move(pidfd);
  absl::StatusOr<Party> party = parties.Find(caller->pid, caller->party.uid, peer.pidfd.get());
  if (!party.ok()) return party.status();
  peer.caller.party = *party;
  peer.applicant = {party->Account(), parties.IsOperator(*party)};
  return peer;
}

}  // namespace iris::server
