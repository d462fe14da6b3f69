// CallShares: what the calls of sessions take in irisd, of each tenant: how many are under way, and
// how many bytes of answers wait for a reader. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/wire/limits.h"
#include "server/account/party.h"

namespace iris::server {

class CallShares {
 public:
  struct Limits {
    uint32_t max_calls = wire::kMaxCallsPerTenant;
    size_t max_unread_bytes = 32 << 20;
  };

  CallShares() = default;
  explicit CallShares(const Limits& limits) : limits_(limits) {}
  CallShares(const CallShares&) = delete;
  CallShares& operator=(const CallShares&) = delete;

  const Limits& limits() const { return limits_; }

  // One more call. False: the tenant has as many as it may have.
  bool AddCall(const Party& tenant) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Share& share = by_tenant_[tenant];
    if (share.calls >= limits_.max_calls) return false;
    ++share.calls;
    return true;
  }
  void RemoveCalls(const Party& tenant, uint32_t n) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    by_tenant_[tenant].calls -= n;
    Forget(tenant);
  }

  // So many more bytes wait, and with them what `tail` holds, if anything. However many answers
  // share a tail, it counts once: it is there once. False: they are more than may wait; they count
  // all the same.
  bool AddUnread(const Party& tenant, size_t bytes, const std::string* tail)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Share& share = by_tenant_[tenant];
    share.unread_bytes += bytes;
    if (tail != nullptr && ++share.tails[tail] == 1) share.unread_bytes += tail->size();
    return share.unread_bytes <= limits_.max_unread_bytes;
  }
  void RemoveUnread(const Party& tenant, size_t bytes, const std::string* tail)
      ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Share& share = by_tenant_[tenant];
    share.unread_bytes -= bytes;
    if (tail != nullptr && --share.tails[tail] == 0) {
      share.unread_bytes -= tail->size();
      share.tails.erase(tail);
    }
    Forget(tenant);
  }

  // {calls under way, bytes unread}.
  std::pair<uint64_t, uint64_t> Of(const Party& tenant) const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    const auto found = by_tenant_.find(tenant);
    if (found == by_tenant_.end()) return {};
    return {found->second.calls, found->second.unread_bytes};
  }

  // How many tenants have something. For tests.
  size_t n_tenants() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return by_tenant_.size();
  }

 private:
  struct Share {
    uint32_t calls = 0;
    size_t unread_bytes = 0;
    std::map<const std::string*, uint32_t> tails;  // and in how many answers each is
  };

  void Forget(const Party& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto it = by_tenant_.find(tenant);
    if (it->second.calls == 0 && it->second.unread_bytes == 0) by_tenant_.erase(it);
  }

  const Limits limits_;
  mutable absl::Mutex mu_;
  std::map<Party, Share> by_tenant_ ABSL_GUARDED_BY(mu_);  // no empty ones
};

}  // namespace iris::server
