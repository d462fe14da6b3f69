#include "server/session/tenant_queue.h"

namespace iris::server {

template <typename F>
void TenantQueue::Change(const Party& tenant, F change) {
  const auto it = members_.try_emplace(tenant).first;
  Members& members = it->second;
  if (!members.empty()) by_size_.erase(SizeOf(tenant, members));
  total_ -= members.size();
  change(members);
  total_ += members.size();
  if (members.empty()) {
    members_.erase(it);
  } else {
    by_size_.insert(SizeOf(tenant, members));
  }
}

TenantQueue::Ticket TenantQueue::Add(const Party& tenant, uint64_t key) {
  const Ticket ticket = next_++;
  Change(tenant, [&](Members& members) { members.emplace(ticket, key); });
  return ticket;
}

void TenantQueue::Remove(const Party& tenant, Ticket ticket) {
  Change(tenant, [&](Members& members) { members.erase(ticket); });
}

TenantQueue::Ticket TenantQueue::Renew(const Party& tenant, Ticket ticket) {
  const Ticket renewed = next_++;
  Change(tenant, [&](Members& members) {
    const auto it = members.find(ticket);
    if (it == members.end()) return;
    members.emplace(renewed, it->second);
    members.erase(it);
  });
  return renewed;
}

uint64_t TenantQueue::of(const Party& tenant) const {
  const auto it = members_.find(tenant);
  return it == members_.end() ? 0 : it->second.size();
}

std::optional<TenantQueue::Oldest> TenantQueue::OldestOf(const Party& tenant) const {
  const auto it = members_.find(tenant);
  if (it == members_.end()) return std::nullopt;
  return Oldest{tenant, it->second.size(), it->second.begin()->second};
}

std::optional<TenantQueue::Oldest> TenantQueue::OldestOfMost() const {
  if (by_size_.empty()) return std::nullopt;
  return OldestOf(by_size_.begin()->tenant);
}

}  // namespace iris::server
