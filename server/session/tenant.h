// Tenant: whom irisd counts as one when it divides what it has: sessions, handshakes, connections,
// descriptors on their way, workers, lines of log.
//
// A tenant is a user and, for a caller in another PID or user namespace than irisd's own, that
// namespace: two containers of root are two tenants. A namespace that an ordinary user made for
// itself does not count, because anybody can make as many as he likes: its caller belongs to the
// nearest namespace around it that root made.
//
// Tenant is plain data. TenantFinder is immutable and thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace iris::server {

struct Tenant {
  // Stands for a namespace that is not irisd's own and that irisd may not look at. It is no inode
  // number of a namespace.
  static constexpr uint64_t kUnknownNamespace = 1;

  uint32_t uid = 0;
  uint64_t pid_namespace = 0;   // inode number of /proc/PID/ns/pid; 0: irisd's own
  uint64_t user_namespace = 0;  // of /proc/PID/ns/user; 0: irisd's own

  friend auto operator<=>(const Tenant&, const Tenant&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Tenant& tenant) {
    return H::combine(std::move(h), tenant.uid, tenant.pid_namespace, tenant.user_namespace);
  }

  // "uid 1000", or "uid 0 of PID namespace 4026532512 and user namespace 4026532511".
  std::string Text() const;
};

class TenantFinder {
 public:
  // Looks at the namespaces and at the user of this process.
  TenantFinder();

  // The tenant of a process. `pidfd` is open on the process that has this pid, or had it: a pid
  // that belongs to another process by now is noticed. kAborted: the process has ended.
  absl::StatusOr<Tenant> Find(int64_t pid, uint32_t uid, int pidfd) const;

  // Root, or irisd's own user, in irisd's own namespaces: who looks after irisd.
  bool IsOperator(const Tenant& tenant) const;

 private:
  const uint32_t own_uid_;
  const uint64_t own_pid_namespace_;
  const uint64_t own_user_namespace_;
  const std::string own_uid_map_;
};

}  // namespace iris::server
