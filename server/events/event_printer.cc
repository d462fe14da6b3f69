#include "server/events/event_printer.h"

#include <optional>
#include <utility>

namespace iris::server {
namespace {

constexpr auto kSettleEvery = absl::Seconds(10);

LogLevel LevelOf(Severity severity) {
  if (severity == Severity::kDebug) return LogLevel::kDebug;
  return severity == Severity::kInfo ? LogLevel::kInfo : LogLevel::kWarn;
}

}  // namespace

void EventPrinter::Push(EventRecord event) {
  absl::MutexLock lock(&queue_mu_);
  queue_.push_back(std::move(event));
}

void EventPrinter::Print() {
  absl::MutexLock print(&print_mu_);
  std::deque<EventRecord> events;
  {
    absl::MutexLock lock(&queue_mu_);
    events.swap(queue_);
  }
  for (const EventRecord& event : events) Print(event);
  if (!events.empty()) Settle(events.back().time);
}

void EventPrinter::Print(const EventRecord& event) {
  const LogLevel level = LevelOf(event.severity);
  if (!logger_->WouldLog(level)) return;
  const std::optional<uint64_t> left_out = budget_.Take(event.party.Account(), event.time);
  if (!left_out.has_value()) return;
  if (*left_out > 0) {
    logger_->Warn("events of a user were left out of the log",
                  {{"uid", event.party.uid}, {"lines", *left_out}});
  }
  logger_->Log(level, "event",
               {{"kind", event.kind},
                {"job", event.job},
                {"rank", event.rank},
                {"pid", event.pid},
                {"uid", event.party.uid},
                {"text", event.text}});
}

void EventPrinter::Settle(absl::Time now) {
  if (now - settled_ < kSettleEvery && now >= settled_) return;
  settled_ = now;
  const LogBudget::LeftOut left_out = budget_.Settle(now);
  if (left_out.lines == 0) return;
  logger_->Warn("events were left out of the log", {{"lines", left_out.lines},
                                                    {"tenants", left_out.n_tenants},
                                                    {"one_of_them", left_out.one.Text()}});
}

}  // namespace iris::server
