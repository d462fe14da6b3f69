// PartyFinder: finds the party of a process (server/account/party.h).
//
// A container is a PID or user namespace that root made around the process, and that is not irisd's
// own. If several are nested, the outermost counts, and PID namespaces count before user
// namespaces, because root in a container can make any number of namespaces inside. A user
// namespace that an ordinary user made is no container: its users count as that user's.
//
// Immutable and thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/account/party.h"

namespace iris::server {

class PartyFinder {
 public:
  // Reads the namespaces and the user of this process.
  PartyFinder();

  // Returns the party of a process of the user `uid`. `pidfd` belongs to the process that has this
  // pid, or had it: Find detects if the pid was reused. Returns kAborted if the process has ended.
  absl::StatusOr<Party> Find(int64_t pid, uint32_t uid, int pidfd) const;

  bool IsOperator(const Party& party) const { return party.IsOperator(own_uid_); }

 private:
  const uint32_t own_uid_;
  const uint64_t own_pid_namespace_;
  const uint64_t own_user_namespace_;
  const std::string own_uid_map_;
};

}  // namespace iris::server
