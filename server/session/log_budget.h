// LogBudget: which lines may go to the log when clients cause them. Each tenant has a bucket of
// tokens, and all tenants together have one; a line costs a token of both. What is left out is
// counted, and said with the tenant's next line, or when the tenant has been quiet for a while.
// Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "server/account/party.h"

namespace iris::server {

// So many lines at once, and then one in each `interval`.
struct LogRate {
  double burst = 0;
  absl::Duration interval;
};

struct LogRates {
  LogRate tenant;
  LogRate total;
};

// Of refused and ended connections.
inline constexpr LogRates kConnectionLogRates = {{10, absl::Seconds(10)}, {100, absl::Seconds(1)}};
// Of events. A job of 64 ranks that comes and goes in order makes about 140.
inline constexpr LogRates kEventLogRates = {{2000, absl::Milliseconds(200)},
                                            {10000, absl::Milliseconds(20)}};

class LogBudget {
 public:
  // Of tenants beyond so many, all active lately, no line is written.
  static constexpr size_t kMaxTenants = 1024;

  struct LeftOut {
    uint64_t lines = 0;
    uint64_t n_tenants = 0;
    Party one;  // of these tenants
  };

  explicit LogBudget(const LogRates& rates) : rates_(rates), total_{rates.total.burst} {}

  // Nothing: the line is to be left out. Otherwise it may be written, and the number says how many
  // of the tenant have been left out since its last line.
  std::optional<uint64_t> Take(const Party& tenant, absl::Time now);

  // Forgets the tenants that have been quiet until their bucket was full again. Returns what was
  // left out of theirs and nobody has been told of. To be called now and then.
  LeftOut Settle(absl::Time now);
  // True if Settle has nothing to do.
  bool settled() const { return tenants_.empty() && others_left_out_ == 0; }

 private:
  struct Bucket {
    double tokens = 0;
    absl::Time filled_at = absl::InfinitePast();
    uint64_t left_out = 0;
  };
  static void Fill(const LogRate& rate, absl::Time now, Bucket* bucket);

  const LogRates rates_;
  Bucket total_;
  std::map<Party, Bucket> tenants_;
  uint64_t others_left_out_ = 0;
};

}  // namespace iris::server
