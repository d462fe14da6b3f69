// The lock of irisd's directory: a file that the one irisd that serves the directory holds with
// flock. It is irisd's own and of mode 0600 whatever the umask, so nobody else can open and hold
// it. Not thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

inline constexpr char kLockName[] = "lock";

// Takes the lock of `directory`, in which nobody but this user and root can make files, and writes
// this process's pid into the file. A file that an earlier irisd left is used again; one that
// others may have opened is replaced. The lock lasts as long as the descriptor; its holder removes
// the file before.
//
// kAlreadyExists if another process holds it; the message has the pid that it wrote. If that
// process has ended, this first waits for up to a second for children of it that still hold the
// lock. kPermissionDenied if the file there is not this user's; the message says what to remove.
absl::StatusOr<wire::UniqueFd> LockDirectory(const std::string& directory);

}  // namespace iris::server
