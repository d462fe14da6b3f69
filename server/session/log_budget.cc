#include "server/session/log_budget.h"

#include <algorithm>

namespace iris::server {

void LogBudget::Fill(const LogRate& rate, absl::Time now, Bucket* bucket) {
  if (bucket->filled_at != absl::InfinitePast() && now > bucket->filled_at) {
    bucket->tokens = std::min(
        rate.burst, bucket->tokens + absl::FDivDuration(now - bucket->filled_at, rate.interval));
  }
  bucket->filled_at = now;  // also if the clock was set back
}

std::optional<uint64_t> LogBudget::Take(const Party& tenant, absl::Time now) {
  auto it = tenants_.find(tenant);
  if (it == tenants_.end()) {
    if (tenants_.size() >= kMaxTenants) {
      ++others_left_out_;
      return std::nullopt;
    }
    it = tenants_.emplace(tenant, Bucket{rates_.tenant.burst}).first;
  }
  Bucket& own = it->second;
  Fill(rates_.tenant, now, &own);
  Fill(rates_.total, now, &total_);
  if (own.tokens < 1 || total_.tokens < 1) {
    ++own.left_out;
    return std::nullopt;
  }
  own.tokens -= 1;
  total_.tokens -= 1;
  return std::exchange(own.left_out, 0);
}

LogBudget::LeftOut LogBudget::Settle(absl::Time now) {
  LeftOut left_out;
  for (auto it = tenants_.begin(); it != tenants_.end();) {
    Fill(rates_.tenant, now, &it->second);
    if (it->second.tokens < rates_.tenant.burst) {
      ++it;
      continue;
    }
    if (it->second.left_out > 0) {
      left_out.lines += it->second.left_out;
      ++left_out.n_tenants;
      left_out.one = it->first;
    }
    it = tenants_.erase(it);
  }
  if (tenants_.size() < kMaxTenants && others_left_out_ > 0) {
    left_out.lines += std::exchange(others_left_out_, 0);
  }
  return left_out;
}

}  // namespace iris::server
