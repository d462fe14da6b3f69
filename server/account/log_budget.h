// LogBudget: decides which lines that clients cause may go to the log. A line costs an event of its
// tenant's budget, and of the budget of all tenants. Omitted lines are counted, and reported with
// the tenant's next line, or when the tenant has been quiet for a while. Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "server/account/party.h"
#include "server/account/rate_budget.h"

namespace iris::server {

struct LogRates {
  RateBudget tenant;
  RateBudget total;
};

// Rates for refused and ended connections.
inline constexpr LogRates kConnectionLogRates = {{10, absl::Seconds(10)}, {100, absl::Seconds(1)}};
// Rates for events. A job of 64 ranks that joins and leaves in order makes about 140.
inline constexpr LogRates kEventLogRates = {{2000, absl::Milliseconds(200)},
                                            {10000, absl::Milliseconds(20)}};

class LogBudget {
 public:
  // If this many tenants were active lately, no line of any other tenant is written.
  static constexpr size_t kMaxTenants = 1024;

  struct LeftOut {
    uint64_t lines = 0;
    uint64_t n_tenants = 0;
    Party one;  // one of these tenants
  };

  explicit LogBudget(const LogRates& rates) : rates_(rates), total_(rates.total) {}

  // Returns nothing if the line is to be omitted. Otherwise returns how many of the tenant's lines
  // were omitted since its last line.
  std::optional<uint64_t> Take(const Party& tenant, absl::Time now);

  // Forgets tenants that have been quiet until their budget was full again. Returns how many of
  // their lines were omitted without a report. Call it now and then.
  LeftOut Settle(absl::Time now);
  // Returns true if Settle has nothing to do.
  bool settled() const { return tenants_.empty() && others_left_out_ == 0; }

 private:
  struct Tenant {
    RateBudget budget;
    uint64_t left_out = 0;
  };

  const LogRates rates_;
  RateBudget total_;
  std::map<Party, Tenant> tenants_;
  uint64_t others_left_out_ = 0;
};

}  // namespace iris::server
