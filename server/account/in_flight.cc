#include "server/account/in_flight.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace iris::server {

void InFlight::Hold::Add(uint32_t n) {
  if (n == 0) return;
  count_ += n;
  if (of_ == nullptr) return;
  of_->total_ += n;
  of_->by_tenant_[applicant_.tenant] += n;
}

void InFlight::Hold::Clear() {
  const uint32_t count = std::exchange(count_, 0);
  if (count == 0 || of_ == nullptr) return;
  of_->total_ -= count;
  const auto it = of_->by_tenant_.find(applicant_.tenant);
  if ((it->second -= count) == 0) of_->by_tenant_.erase(it);
}

uint64_t InFlight::of(const Party& tenant) const {
  const auto it = by_tenant_.find(tenant);
  return it == by_tenant_.end() ? 0 : it->second;
}

uint32_t InFlight::Room(const Applicant& applicant) const {
  const uint64_t own = of(applicant.tenant);
  if (total_ >= limits_.max_in_flight || own >= limits_.max_in_flight_per_tenant) return 0;
  const uint64_t free = limits_.max_in_flight - total_;
  const uint64_t own_free = limits_.max_in_flight_per_tenant - own;
  if (applicant.is_operator) return static_cast<uint32_t>(std::min(free, own_free));
  if (own >= free) return 0;
  // After these, the tenant has as many as it leaves for others, or one more.
  return static_cast<uint32_t>(std::min((free - own + 1) / 2, own_free));
}

std::string InFlight::Why(const Applicant& applicant) const {
  return absl::StrCat(
      applicant.tenant.Text(), " has ", of(applicant.tenant),
      " descriptors on their way that its processes have not received, its share: of one tenant at "
      "most ",
      limits_.max_in_flight_per_tenant, ", of all ", limits_.max_in_flight, ", of which ", total_,
      " are taken, and as many stay free as the tenant has (see sessions.max_in_flight)");
}

}  // namespace iris::server
