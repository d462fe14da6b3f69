#include "server/session/log_budget.h"

namespace iris::server {

std::optional<uint64_t> LogBudget::Take(const Party& tenant, absl::Time now) {
  auto it = tenants_.find(tenant);
  if (it == tenants_.end()) {
    if (tenants_.size() >= kMaxTenants) {
      ++others_left_out_;
      return std::nullopt;
    }
    it = tenants_.emplace(tenant, Tenant{rates_.tenant}).first;
  }
  auto& [budget, left_out] = it->second;
  if (!budget.Allows(now) || !total_.Allows(now)) {
    ++left_out;
    return std::nullopt;
  }
  budget.Spend(now);
  total_.Spend(now);
  return std::exchange(left_out, 0);
}

LogBudget::LeftOut LogBudget::Settle(absl::Time now) {
  LeftOut left_out;
  for (auto it = tenants_.begin(); it != tenants_.end();) {
    auto& [budget, lines] = it->second;
    if (!budget.full(now)) {
      ++it;
      continue;
    }
    if (lines > 0) {
      left_out.lines += lines;
      ++left_out.n_tenants;
      left_out.one = it->first;
    }
    it = tenants_.erase(it);
  }
  if (tenants_.size() < kMaxTenants) left_out.lines += std::exchange(others_left_out_, 0);
  return left_out;
}

}  // namespace iris::server
