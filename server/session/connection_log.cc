#include "server/session/connection_log.h"

#include <optional>

namespace iris::server {

void ConnectionLog::Write(LogLevel level, std::string_view text, const Party& tenant,
                          const CallerInfo& caller, uint64_t session, const absl::Status& reason,
                          absl::Time now) {
  // A line below the log level must not use up the budget.
  if (!logger_->WouldLog(level)) return;
  const std::optional<uint64_t> left_out = budget_.Take(tenant, now);
  if (!left_out.has_value()) return;
  logger_->Log(level, text,
               {{"session", session},
                {"pid", caller.pid},
                {"tenant", tenant.Text()},
                {"reason", reason.ToString()},
                {"left_out", *left_out}});
}

void ConnectionLog::Settle(absl::Time now) {
  const LogBudget::LeftOut left_out = budget_.Settle(now);
  if (left_out.lines == 0) return;
  logger_->Warn("lines about connections were left out", {{"lines", left_out.lines},
                                                          {"tenants", left_out.n_tenants},
                                                          {"one_of_them", left_out.one.Text()}});
}

}  // namespace iris::server
