// The lock of irisd's directory: a file on which the irisd that serves the directory holds flock.
// The file is irisd's own and has mode 0600 whatever the umask, so no other user can open and hold
// it. Not thread-safe.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/wire/unique_fd.h"

namespace iris::server {

inline constexpr char kLockName[] = "lock";

// Takes the lock of `directory`, in which only this user and root can make files, and writes this
// process's pid into the lock file. A file that an earlier irisd left is used again; a file that
// others may have opened is replaced. The lock lasts as long as the descriptor; its holder removes
// the file first.
//
// Returns kAlreadyExists if another process holds the lock; the message has the pid that it wrote.
// If that process has ended, this first waits for up to a second for its children that still hold
// the lock. kPermissionDenied if the file is not this user's; the message says what to remove.
absl::StatusOr<wire::UniqueFd> LockDirectory(const std::string& directory);

}  // namespace iris::server
