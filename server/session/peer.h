// Peer: the process at the other end of a Unix socket, as the kernel reports it. Thread-safe; a
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
  kAuto,   // SO_PEERPIDFD if the kernel has it, else a nonce
  kNonce,  // always pidfd_open and a nonce: for tests, and if SO_PEERPIDFD misbehaves
};

// Returns the attestation that `wanted` selects on this kernel: "peerpidfd" or "nonce".
std::string AttestationInUse(Attestation wanted);

// Returns pid, uid and gid of the process that connected `socket`, without process_start. Returns
// kPermissionDenied if the kernel does not report them (the peer is in another pid namespace).
absl::StatusOr<CallerInfo> PeerCaller(int socket);

// Returns the pidfd of the process that connected `socket`, from the kernel. Returns kUnimplemented
// if the kernel does not provide it (Linux < 6.5).
absl::StatusOr<wire::UniqueFd> PeerPidfd(int socket);

// Returns a pidfd of the process that has this pid now, which proves nothing until the client has
// returned the nonce.
absl::StatusOr<wire::UniqueFd> OpenPidfd(int64_t pid);

// Calls PeerPidfd and sets `*attested` if `wanted` and the kernel allow it, otherwise OpenPidfd.
absl::StatusOr<wire::UniqueFd> PidfdOf(int socket, Attestation wanted, int64_t pid, bool* attested);

bool ProcessHasEnded(int pidfd);

// Returns the start time of a process in clock ticks since boot, from /proc/PID/stat. Call
// ProcessHasEnded afterwards: if the process has not ended, the pid was still its own.
absl::StatusOr<uint64_t> ProcessStart(int64_t pid);

absl::Duration ProcessAge(uint64_t start);

struct Peer {
  CallerInfo caller;  // process_start is not filled in
  Applicant applicant;
  std::shared_ptr<Account> account;  // the applicant's account; filled in by the Door
  wire::UniqueFd pidfd;
  // True if the pidfd came with the connection. Otherwise the pidfd belongs to the process that has
  // the pid now, and the client must prove that it is that process.
  bool attested = false;
};

// Identifies the peer. Returns kPermissionDenied if the process is in another PID namespace that is
// not below irisd's, and kAborted if the process has ended.
absl::StatusOr<Peer> IdentifyPeer(int socket, Attestation attestation, const PartyFinder& parties);

}  // namespace iris::server
