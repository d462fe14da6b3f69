// The kernel's word on the process at the other end of a Unix socket. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire/unique_fd.h"
#include "server/job/states.h"

namespace iris::server {

enum class Attestation {
  kAuto,   // SO_PEERPIDFD where the kernel has it, else a nonce
  kNonce,  // always pidfd_open and a nonce: for tests, and where SO_PEERPIDFD misbehaves
};

// Returns what `wanted` means on this kernel: "peerpidfd" or "nonce".
std::string AttestationInUse(Attestation wanted);

// Returns pid, uid and gid of the process that connected `socket`, without process_start.
// kPermissionDenied: the kernel does not tell (the peer is in another pid namespace).
absl::StatusOr<CallerInfo> PeerCaller(int socket);

// Returns the pidfd of the process that connected `socket`, from the kernel. kUnimplemented: it
// cannot say (Linux < 6.5).
absl::StatusOr<wire::UniqueFd> PeerPidfd(int socket);

// Returns a pidfd of the process that has this pid now, which proves nothing until the nonce has
// come back.
absl::StatusOr<wire::UniqueFd> OpenPidfd(int64_t pid);

// As PeerPidfd, with *attested true, where `wanted` and the kernel allow it; else as OpenPidfd.
absl::StatusOr<wire::UniqueFd> PidfdOf(int socket, Attestation wanted, int64_t pid, bool* attested);

bool ProcessHasEnded(int pidfd);

// Returns the start time of a process in clock ticks since boot, from /proc/PID/stat. Check
// ProcessHasEnded afterwards: a live pidfd says that the number was still the same process.
absl::StatusOr<uint64_t> ProcessStart(int64_t pid);

absl::Duration ProcessAge(uint64_t start);

// Parses a /proc/PID/stat line; command names may contain spaces and parentheses. For ProcessStart
// and its test.
absl::StatusOr<uint64_t> ParseProcessStart(const std::string& stat_line);

}  // namespace iris::server
