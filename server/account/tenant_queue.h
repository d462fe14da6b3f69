// TenantQueue: the holders of places of one kind, in the order in which they came, and the tenant
// that has most. An Admission uses it to decide which holder must leave. Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <set>

#include "server/account/party.h"

namespace iris::server {

class TenantQueue {
 public:
  // Identifies a holder. Never reused; a smaller ticket is older.
  using Ticket = uint64_t;

  struct Oldest {
    Party tenant;
    uint64_t count = 0;  // number of the tenant's holders
    uint64_t key = 0;    // key of the tenant's oldest holder
  };

  // The queue allocates from `memory`, which outlives it.
  explicit TenantQueue(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : members_(memory), by_size_(memory) {}

  // Adds a holder, which the caller knows by `key`. O(log n), as all functions here.
  Ticket Add(const Party& tenant, uint64_t key);
  void Remove(const Party& tenant, Ticket ticket);
  // Makes a holder the youngest one; returns its new ticket.
  Ticket Renew(const Party& tenant, Ticket ticket);

  uint64_t total() const { return total_; }
  uint64_t of(const Party& tenant) const;

  // Returns the tenant's oldest holder, or nothing if the tenant has none.
  std::optional<Oldest> OldestOf(const Party& tenant) const;
  // Returns the oldest holder of the tenant with most; of several such tenants, the oldest of all.
  std::optional<Oldest> OldestOfMost() const;

 private:
  using Members = std::pmr::map<Ticket, uint64_t>;  // keys by ticket
  // Sorts tenants: most holders first, then the oldest holder.
  struct Size {
    uint64_t count = 0;
    Ticket oldest = 0;
    Party tenant;
    bool operator<(const Size& other) const {
      if (count != other.count) return count > other.count;
      return oldest < other.oldest;
    }
  };
  static Size SizeOf(const Party& tenant, const Members& members) {
    return {members.size(), members.begin()->first, tenant};
  }
  // Changes one tenant's holders by `change`, and updates by_size_.
  template <typename F>
  void Change(const Party& tenant, F change);

  Ticket next_ = 1;
  uint64_t total_ = 0;
  std::pmr::map<Party, Members> members_;  // no value is empty
  std::pmr::set<Size> by_size_;
};

}  // namespace iris::server
