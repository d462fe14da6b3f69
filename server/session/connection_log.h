// ConnectionLog: writes lines about connections to the log, at a bounded rate (LogBudget), since
// clients cause them. Not thread-safe: it belongs to the session thread. Borrows the logger.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/account/log_budget.h"
#include "server/account/party.h"
#include "server/events/log.h"
#include "server/job/states.h"

namespace iris::server {

class ConnectionLog {
 public:
  explicit ConnectionLog(const Logger* logger) : logger_(logger), budget_(kConnectionLogRates) {}

  // Writes what happened to a connection of `caller`, with the reason.
  void Write(LogLevel level, std::string_view text, const Party& tenant, const CallerInfo& caller,
             uint64_t session, const absl::Status& reason, absl::Time now);

  // Reports omitted lines of tenants that have been quiet since. Call it now and then.
  void Settle(absl::Time now);
  bool settled() const { return budget_.settled(); }

 private:
  const Logger* const logger_;
  LogBudget budget_;
};

}  // namespace iris::server
