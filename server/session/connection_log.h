// ConnectionLog: lines of the log that clients cause by connecting, misbehaving and hanging up, at
// a bounded rate (LogBudget). Not thread-safe: it belongs to the session thread. Borrows the
// logger.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/account/party.h"
#include "server/events/log.h"
#include "server/job/states.h"
#include "server/session/log_budget.h"

namespace iris::server {

class ConnectionLog {
 public:
  explicit ConnectionLog(const Logger* logger) : logger_(logger), budget_(kConnectionLogRates) {}

  // One line: what happened to a connection of `caller`, and why.
  void Write(LogLevel level, std::string_view text, const Party& tenant, const CallerInfo& caller,
             uint64_t session, const absl::Status& reason, absl::Time now);

  // Says now and then what has been left out of whom nothing more was heard.
  void Settle(absl::Time now);
  bool settled() const { return budget_.settled(); }

 private:
  const Logger* const logger_;
  LogBudget budget_;
};

}  // namespace iris::server
