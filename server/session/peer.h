// Peer: the process at the other end of a connection, as far as the kernel says. Owns its pidfd.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"
#include "server/account/accounts.h"
#include "server/job/states.h"
#include "server/session/admission.h"
#include "server/session/attestation.h"
#include "server/session/party_finder.h"

namespace iris::server {

struct Peer {
  CallerInfo caller;  // process_start is not filled in
  Applicant applicant;
  std::shared_ptr<Account> account;  // the applicant's; filled in by the Door
  wire::UniqueFd pidfd;
  // The pidfd came with the connection. Otherwise it is of the process that has the pid now, and
  // the client has yet to prove that it is that one.
  bool attested = false;
};

// kPermissionDenied: the process is in another PID namespace, and not below irisd's. kAborted: it
// has ended.
absl::StatusOr<Peer> IdentifyPeer(int socket, Attestation attestation, const PartyFinder& parties);

}  // namespace iris::server
