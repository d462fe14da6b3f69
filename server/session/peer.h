// Peer: the process at the other end of a Unix socket, as far as the kernel says. Thread-safe; a
// Peer owns its pidfd.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/account/accounts.h"
#include "server/account/admission.h"
#include "server/job/states.h"
#include "server/session/party_finder.h"

namespace iris::server {

enum class Attestation {
  kAuto,   // SO_PEERPIDFD where the kernel has it, else a nonce
  kNonce,  // always pidfd_open and a nonce: for tests, and where SO_PEERPIDFD misbehaves
};

// Returns the attestation that `wanted` selects on this kernel: "peerpidfd" or "nonce".
std::string AttestationInUse(Attestation wanted);

// Returns pid, uid and gid of the process that connected `socket`, without process_start.
// kPermissionDenied if the kernel does not say (the peer is in another pid namespace).
absl::StatusOr<CallerInfo> PeerCaller(int socket);

// Returns the pidfd of the process that connected `socket`, from the kernel. kUnimplemented if the
// kernel cannot say (Linux < 6.5).
absl::StatusOr<wire::UniqueFd> PeerPidfd(int socket);

// Returns a pidfd of the process that has this pid now, which proves nothing until the nonce has
// come back.
absl::StatusOr<wire::UniqueFd> OpenPidfd(int64_t pid);

// Calls PeerPidfd and sets `*attested` if `wanted` and the kernel allow it, else OpenPidfd.
absl::StatusOr<wire::UniqueFd> PidfdOf(int socket, Attestation wanted, int64_t pid, bool* attested);

bool ProcessHasEnded(int pidfd);

// Returns the start time of a process in clock ticks since boot, from /proc/PID/stat. Call
// ProcessHasEnded afterwards: if the pidfd is still live, the number was still the same process.
absl::StatusOr<uint64_t> ProcessStart(int64_t pid);

absl::Duration ProcessAge(uint64_t start);

struct Peer {
  CallerInfo caller;  // process_start is not filled in
  Applicant applicant;
  std::shared_ptr<Account> account;  // the applicant's; filled in by the Door
  wire::UniqueFd pidfd;
  // True if the pidfd came with the connection. Otherwise the pidfd is of the process that has the
  // pid now, and the client has yet to prove that it is that one.
  bool attested = false;
};

// kPermissionDenied if the process is in another PID namespace that is not below irisd's. kAborted
// if it has ended.
absl::StatusOr<Peer> IdentifyPeer(int socket, Attestation attestation, const PartyFinder& parties);

}  // namespace iris::server
