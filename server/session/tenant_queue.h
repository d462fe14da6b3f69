// TenantQueue: those who hold a place of one kind, in the order in which they came, and which
// tenant has most of them. It is what an Admission decides by when somebody has to go. Pure; not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <set>
#include <utility>

#include "server/account/party.h"

namespace iris::server {

class TenantQueue {
 public:
  // One who is in. Never reused; a smaller one has come earlier.
  using Ticket = uint64_t;

  struct Oldest {
    Party tenant;
    uint64_t count = 0;  // how many the tenant has
    uint64_t key = 0;    // of its oldest
  };

  // Takes its memory from `memory`, which outlives it.
  explicit TenantQueue(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : members_(memory), by_size_(memory) {}

  // `key` is the caller's name for the one who comes. O(log n), as the others.
  Ticket Add(const Party& tenant, uint64_t key);
  // Lets one go who is in.
  void Remove(const Party& tenant, Ticket ticket);
  // One who is in counts as the youngest from now on; returns the new ticket.
  Ticket Renew(const Party& tenant, Ticket ticket);

  uint64_t total() const { return total_; }
  uint64_t of(const Party& tenant) const;

  // The oldest of one tenant; nothing if it has none.
  std::optional<Oldest> OldestOf(const Party& tenant) const;
  // The oldest of the tenant that has most; among several such tenants, the oldest of all.
  std::optional<Oldest> OldestOfMost() const;

 private:
  using Members = std::pmr::map<Ticket, uint64_t>;  // keys by ticket
  // Sorts the tenants that are in: most members first, then the oldest member.
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
  // Changes one tenant's members by `change`, and keeps by_size_ true.
  template <typename F>
  void Change(const Party& tenant, F change);

  Ticket next_ = 1;
  uint64_t total_ = 0;
  std::pmr::map<Party, Members> members_;  // no empty ones
  std::pmr::set<Size> by_size_;
};

}  // namespace iris::server
